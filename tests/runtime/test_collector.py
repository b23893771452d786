"""The collector brings every transition as it happened: true successors, no pseudo-steps, seeds and returns right."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from rl_training.core.action_masks import MaskReader
from rl_training.core.seeding import Streams
from rl_training.core.types import ActResult, Carry
from rl_training.envs.factory import make_env_factory, make_envs
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import EnvError, SpaceError, TrainingError
from rl_training.runtime.collector import Collector
from stand_ins import ActsOnly


class Scripted(gym.Env[np.ndarray, np.int64]):
    """Episode k has `lengths[k]` steps and ends by termination if k is even, by truncation if it is odd.

    The observation is (episode, step within it); the reward of a step is that step's number. `infos`: the info of each
    observation, by (episode, step).
    """

    def __init__(
        self,
        lengths: Sequence[int],
        dtype: Any = np.float32,
        action_space: gym.Space[Any] | None = None,
        infos: Mapping[tuple[int, int], dict[str, Any]] | None = None,
    ) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), dtype)
        self.action_space = action_space or Discrete(3)
        self.lengths = lengths
        self.infos = infos or {}
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []
        self.episode, self.time = -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.seeds.append(seed)
        self.episode, self.time = self.episode + 1, 0
        return self.observe(), self.info()

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.actions.append(action.tolist())
        self.time += 1
        ends = self.time == self.lengths[self.episode]
        terminated, truncated = ends and self.episode % 2 == 0, ends and self.episode % 2 == 1
        return self.observe(), float(self.time), terminated, truncated, self.info()

    def info(self) -> dict[str, Any]:
        return self.infos.get((self.episode, self.time), {})

    def observe(self) -> np.ndarray:
        return np.array([self.episode, self.time], self.observation_space.dtype)


class Cycling(ActsOnly):
    """Acts 0, 1, 2, 0, ... by the step's number; keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []
        self.masks: list[Any] = []

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        assert explore
        self.seen.append(obs.copy())
        self.masks.append(None if action_mask is None else action_mask.tolist())
        return ActResult(np.full(len(obs), step // len(obs) % 3))


def collect(
    lengths: Sequence[Sequence[int]], steps: int, *, collector: Any = None, policy: Any = None, **kwargs: Any
) -> tuple[Collector, list[Scripted], list[dict[str, np.ndarray]], Any]:
    """Step one env per list of lengths; give the collector, the envs, the transitions and the policy."""
    envs = [Scripted(each, **kwargs) for each in lengths]
    to_make = iter(envs)
    collector = Collector(make_envs(lambda: next(to_make), len(envs)), Streams(4), **(collector or {}))
    collector.start()
    policy = policy or Cycling()
    return collector, envs, [collector.step(policy, step=k * len(envs)) for k in range(steps)], policy


def test_next_obs_is_the_final_observation_at_termination_and_at_truncation() -> None:
    _, _, transitions, policy = collect([[2, 3, 9]], 7)
    obs = [t["obs"][0].tolist() for t in transitions]
    next_obs = [t["next_obs"][0].tolist() for t in transitions]
    #             episode 0       | episode 1               | episode 2
    assert obs == [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]
    assert next_obs == [[0, 1], [0, 2], [1, 1], [1, 2], [1, 3], [2, 1], [2, 2]]
    assert [bool(t["terminated"][0]) for t in transitions] == [False, True, False, False, False, False, False]
    assert [bool(t["truncated"][0]) for t in transitions] == [False, False, False, False, True, False, False]
    assert [t["rewards"][0] for t in transitions] == [1, 2, 1, 2, 3, 1, 2]
    assert [t["actions"][0] for t in transitions] == [0, 1, 2, 0, 1, 2, 0]
    assert [seen[0].tolist() for seen in policy.seen] == obs  # the policy acts on what is stored


def test_no_reset_shows_up_as_a_transition_in_any_env() -> None:
    _, envs, transitions, _ = collect([[2, 3, 9], [1, 1, 1, 9], [5, 9]], 6)
    for t in transitions:
        assert np.array_equal(t["obs"][:, 0], t["next_obs"][:, 0])  # both ends lie in one episode
        assert np.array_equal(t["obs"][:, 1] + 1, t["next_obs"][:, 1])  # one step apart
        assert np.array_equal(t["rewards"], t["next_obs"][:, 1])
    assert [len(env.actions) for env in envs] == [6, 6, 6]  # each env was stepped once per step, no more
    assert [env.actions for env in envs] == [[0, 1, 2, 0, 1, 2]] * 3


def test_later_steps_do_not_change_transitions_that_were_given() -> None:
    collector, _, transitions, policy = collect([[2, 2, 9]], 2)
    before = {name: values.copy() for name, values in transitions[1].items()}
    collector.step(policy, step=2)
    assert all(np.array_equal(transitions[1][name], before[name]) for name in before)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_every_episode_is_reset_with_its_own_documented_seed(num_envs: int) -> None:
    _, envs, _, _ = collect([[2, 2, 9]] * num_envs, 5)
    streams = Streams(4)
    expected = [[streams.episode_seed(env, episode) for episode in range(3)] for env in range(num_envs)]
    assert [env.seeds for env in envs] == expected


def test_finished_episodes_have_their_return_length_seed_and_step() -> None:
    collector, _, _, _ = collect([[2, 3, 9]], 6)
    streams = Streams(4)
    assert [episode.record() for episode in collector.finished] == [
        {"step": 2, "env": 0, "episode": 0, "seed": streams.episode_seed(0, 0), "length": 2, "return": 1 + 2},
        {"step": 5, "env": 0, "episode": 1, "seed": streams.episode_seed(0, 1), "length": 3, "return": 1 + 2 + 3},
    ]


def test_the_chosen_episodes_are_kept_until_a_callback_clears_them() -> None:
    collector, *_ = collect([[*[1] * 12, 9]], 12)
    assert [(played.number, played.ret) for played in collector.played] == [(1, 1.0), (10, 1.0)]


def test_with_three_envs_each_counts_its_own_episodes() -> None:
    collector, _, _, _ = collect([[2, 9], [1, 3, 9], [9]], 4)
    found = [(e.step, e.env, e.episode, e.ret, e.length) for e in collector.finished]
    assert found == [(3, 1, 0, 1.0, 1), (6, 0, 0, 3.0, 2), (12, 1, 1, 6.0, 3)]


def test_actions_are_shifted_for_the_env_and_stored_as_indices() -> None:
    _, (env,), transitions, _ = collect([[9]], 4, action_space=Discrete(3, start=5))
    assert env.actions == [5, 6, 7, 5]
    assert [t["actions"][0] for t in transitions] == [0, 1, 2, 0]


class Constant:
    """Answers every observation with one action."""

    def __init__(self, action: Any) -> None:
        self.action = np.asarray(action)

    def act(self, obs: np.ndarray, **kwargs: Any) -> ActResult:
        return ActResult(np.stack([self.action] * len(obs)))


def test_the_numbers_of_a_box_are_clipped_and_spread_for_the_env_and_stored_as_they_were_drawn() -> None:
    # Bounds 0..10, -4..4 and 1..3: -1 is the lowest, 0 the middle, 1 the highest, and beyond them it is the same.
    space = Box(np.array([0.0, -4.0, 1.0], np.float32), np.array([10.0, 4.0, 3.0], np.float32))
    drawn = np.array([-0.5, 3.0, -7.0], np.float32)
    _, (env,), (transitions,), _ = collect([[9]], 1, action_space=space, policy=Constant(drawn))
    assert env.actions == [[2.5, 4.0, 1.0]]
    assert np.array_equal(transitions["actions"], [drawn])


def test_several_choices_are_shifted_each_by_its_own_start() -> None:
    space = MultiDiscrete([3, 4], start=[10, 20])
    _, (env,), (transitions,), _ = collect([[9]], 1, action_space=space, policy=Constant([2, 3]))
    assert env.actions == [[12, 23]]
    assert transitions["actions"].tolist() == [[2, 3]]


def test_with_clipped_rewards_transitions_hold_the_sign_and_returns_the_full_reward() -> None:
    collector, _, transitions, _ = collect([[3, 9]], 3, collector={"clip_rewards": True})
    assert [t["rewards"][0] for t in transitions] == [1.0, 1.0, 1.0]
    assert [episode.ret for episode in collector.finished] == [1 + 2 + 3]


def test_a_lost_life_ends_the_episode_for_learning_alone() -> None:
    infos = {(0, 2): {"life_lost": True}, (0, 3): {"life_lost": False}}
    collector, (env,), transitions, _ = collect([[4, 9]], 5, infos=infos)
    assert [bool(t["terminated"][0]) for t in transitions] == [False, True, False, True, False]
    assert [t["next_obs"][0].tolist() for t in transitions[:4]] == [[0, 1], [0, 2], [0, 3], [0, 4]]
    assert [(episode.ret, episode.length) for episode in collector.finished] == [(1 + 2 + 3 + 4, 4)]
    assert len(env.seeds) == 2


def test_all_envs_that_end_in_a_step_are_reset_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[int], list[int], list[int]]] = []
    reset = SyncEnvs.reset

    def noted(self: SyncEnvs, indices: Any, seeds: Any, episodes: Any = None) -> Any:
        calls.append((list(indices), list(seeds), list(episodes)))
        return reset(self, indices, seeds, episodes)

    monkeypatch.setattr(SyncEnvs, "reset", noted)
    collect([[2, 9], [1, 1, 9], [2, 9]], 2)
    seed = Streams(4).episode_seed
    assert calls == [
        ([0, 1, 2], [seed(0, 0), seed(1, 0), seed(2, 0)], [0, 0, 0]),
        ([1], [seed(1, 1)], [1]),
        ([0, 1, 2], [seed(0, 1), seed(1, 2), seed(2, 1)], [1, 2, 1]),
    ]


def test_float64_observations_are_given_as_float32() -> None:
    _, _, transitions, policy = collect([[2, 9]], 3, dtype=np.float64)
    assert {t[name].dtype for t in transitions for name in ("obs", "next_obs")} == {np.dtype(np.float32)}
    assert {seen.dtype for seen in policy.seen} == {np.dtype(np.float32)}
    assert [t["obs"][0].tolist() for t in transitions] == [[0, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("fault", "step", "message"),
    [
        ("nan_obs", 3, r"the observation \[nan nan nan\] with values that are not finite at step 3"),
        ("nan_reward", 3, r"the reward nan, which is not finite, at step 3"),
        ("nan_obs", 0, r"the observation \[nan nan nan\] with values that are not finite at the reset"),
    ],
)
def test_what_is_not_finite_is_named_with_env_episode_and_step(fault: str, step: int, message: str) -> None:
    kwargs = {"fault": fault, "step": step, "episode": 1, "length": 5}
    streams = Streams(0)
    collector = Collector(make_envs(make_env_factory("rl_training/Misbehaving-v0", kwargs), 2), streams)
    collector.start()
    policy = Cycling()
    expected = rf"^env 0 returned {message} of episode 1 \(seed {streams.episode_seed(0, 1)}\)"
    before = 5 + max(0, step - 1)  # env 0 ends its first episode at its fifth step, and is reset there
    for k in range(before - (step == 0)):
        collector.step(policy, step=2 * k)
    with pytest.raises(EnvError, match=expected):
        collector.step(policy, step=2 * before)


class Large(Scripted):
    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return np.full_like(obs, 3e38), 1.0, terminated, truncated, info


@pytest.mark.filterwarnings("ignore:overflow")  # of the quick check; the exact one follows
def test_large_numbers_whose_sum_overflows_are_finite() -> None:
    collector = Collector(make_envs(lambda: Large([9])), Streams(0))
    collector.start()
    assert collector.step(Cycling(), step=0)["next_obs"].tolist() == [[np.float32(3e38)] * 2]


@pytest.mark.parametrize(("action", "kind"), [([0.0, np.nan], "a NaN"), ([np.inf, 0.0], "an infinite")])
def test_an_action_that_is_not_finite_is_blamed_on_the_policy(action: list[float], kind: str) -> None:
    with pytest.raises(TrainingError, match=rf"the policy produced {kind} action for env 0 at env step 0: .*diverged"):
        collect([[9]], 1, action_space=Box(-1.0, 1.0, (2,), np.float32), policy=Constant(action))


def test_a_restored_collector_goes_on_in_the_same_episodes() -> None:
    def make() -> Collector:
        kwargs = {"length": 4}
        return Collector(make_envs(make_env_factory("rl_training/Identity-v0", kwargs), 2), Streams(0))

    unbroken = make()
    unbroken.start()
    for k in range(6):
        unbroken.step(Cycling(), step=2 * k)
    unbroken.finished.clear()
    restored = make()
    restored.load_state_dict(unbroken.state_dict())
    assert restored.inexact_restores == []
    for k in range(6, 14):
        ours, theirs = restored.step(Cycling(), step=2 * k), unbroken.step(Cycling(), step=2 * k)
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert restored.finished == unbroken.finished
    assert len(restored.finished) == 4


def test_an_env_that_cannot_be_replayed_begins_its_next_episode_and_is_listed() -> None:
    saved, _, _, _ = collect([[5, 5, 9], [5, 5, 9]], 3)
    restored = Collector(make_envs(lambda: Scripted([5, 5, 9]), 2), Streams(4), replayable=False)
    restored.load_state_dict(saved.state_dict())
    assert restored.inexact_restores == [0, 1]
    restored.step(Cycling(), step=6)
    state = restored.state_dict()
    assert state["numbers"] == [1, 1]
    assert state["seeds"] == [Streams(4).episode_seed(env, 1) for env in range(2)]
    assert state["returns"] == [1.0, 1.0]


# --- Action masks ----------------------------------------------------------------------------------------------------

ALL = {"action_mask": np.array([1, 1, 1], np.int8)}


def masked(*flags: int) -> dict[str, Any]:
    return {"action_mask": np.array(flags, np.int8)}


def test_the_mask_of_an_observation_is_what_the_policy_gets_and_what_is_stored_with_it() -> None:
    infos = {
        (0, 0): masked(1, 0, 0),
        (0, 1): masked(0, 1, 0),
        (0, 2): masked(0, 0, 0),
        (1, 0): masked(0, 0, 1),
        (1, 2): ALL,
        (1, 1): masked(1, 1, 0),
    }
    _, _, transitions, policy = collect([[2, 9]], 4, collector={"action_masks": True}, infos=infos)
    expected = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]]
    assert [mask[0] for mask in policy.masks] == [[bool(flag) for flag in flags] for flags in expected]
    assert [t["action_mask"].tolist() for t in transitions] == policy.masks
    assert transitions[0]["action_mask"].dtype == np.bool_


def test_the_mask_of_the_true_successor_is_stored_too() -> None:
    # Env 0 ends its first episode by termination at its second step, and its next one by truncation.
    infos = {
        (0, 0): masked(1, 0, 0),
        (0, 1): masked(0, 1, 0),
        (0, 2): masked(0, 1, 1),
        (1, 0): masked(0, 0, 1),
        (1, 1): masked(1, 1, 0),
        (1, 2): masked(1, 0, 1),
        (2, 0): ALL,
    }
    always = {(0, time): masked(1, 1, 0) for time in range(9)}
    envs = [Scripted([2, 2, 9], infos=infos), Scripted([9], infos=always)]
    to_make = iter(envs)
    collector = Collector(make_envs(lambda: next(to_make), 2), Streams(4), action_masks=True)
    collector.start()
    transitions = [collector.step(Cycling(), step=2 * k) for k in range(4)]
    expected = [[0, 1, 0], [0, 1, 1], [1, 1, 0], [1, 0, 1]]
    assert np.array_equal([t["next_action_mask"][0] for t in transitions], expected)
    assert [t["action_mask"][0].tolist() for t in transitions[2:]] == [[False, False, True], [True, True, False]]
    assert all(t["next_action_mask"][1].tolist() == [True, True, False] for t in transitions)
    assert transitions[0]["next_action_mask"].dtype == np.bool_


class Touchy:
    """Cannot be read as an array."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("on another device")


@pytest.mark.parametrize("info", [masked(0, 0, 0), {}, masked(1, 1), {"action_mask": "abc"}, {"action_mask": Touchy()}])
@pytest.mark.parametrize("lengths", [[2, 9], [9, 2, 9]])  # the first episode terminates, the second is truncated
def test_after_an_end_every_action_counts_as_valid_if_the_mask_cannot_be_read(
    lengths: list[int], info: dict[str, Any]
) -> None:
    ends = len(lengths) - 2
    infos = {(episode, time): masked(1, 0, 0) for episode in range(3) for time in range(10)} | {(ends, 2): info}
    _, _, transitions, _ = collect([lengths], sum(lengths[:-1]) + 1, collector={"action_masks": True}, infos=infos)
    only_first = [True, False, False]
    found = [t["next_action_mask"][0].tolist() for t in transitions]
    assert found == [only_first] * (len(found) - 2) + [[True, True, True], only_first]
    assert [t["action_mask"][0].tolist() for t in transitions] == [only_first] * len(found)


def test_without_masks_the_policy_gets_none_and_nothing_is_stored() -> None:
    _, _, transitions, policy = collect([[9]], 2, infos={(0, 0): ALL})
    assert policy.masks == [None, None]
    assert transitions[0].keys() == {"obs", "actions", "rewards", "next_obs", "terminated", "truncated"}


@pytest.mark.parametrize(
    ("info", "what"),
    [
        (masked(0, 0, 0), r"the all-false action mask \[0 0 0\]"),
        ({}, "no action mask"),
        (masked(1, 1), r"the action mask \[1 1\]"),
        ({"action_mask": [[1], [1, 0]]}, r"the action mask \[\[1\], \[1, 0\]\]"),
    ],
)
@pytest.mark.parametrize(
    ("place", "where"),
    [
        ((0, 0), "the reset of episode 0"),
        ((0, 1), "step 1 of episode 0"),
        ((1, 0), "the reset of episode 1"),
        ((1, 2), "step 2 of episode 1"),
    ],
)
def test_a_mask_that_allows_nothing_is_named_with_env_episode_and_step(
    info: dict[str, Any], what: str, place: tuple[int, int], where: str
) -> None:
    infos = {(episode, time): ALL for episode in range(2) for time in range(9)} | {place: info}
    seed = Streams(4).episode_seed(0, place[0])
    message = rf"^env 0 gave {what} \(expected: 3 flags, at least one of them true\) at {where} \(seed {seed}\)$"
    with pytest.raises(EnvError, match=message):
        collect([[3, 9]], 6, collector={"action_masks": True}, infos=infos)


def test_each_of_several_choices_must_have_something_to_choose() -> None:
    infos = {(0, 0): masked(1, 0, 0, 1, 1), (0, 1): masked(1, 1, 1, 0, 0)}
    message = r"the action mask \[1 1 1 0 0\] \(expected: 5 flags, at least one of each choice true\) at step 1"
    settings = {"action_space": MultiDiscrete([3, 2]), "policy": Constant([0, 0]), "infos": infos}
    with pytest.raises(EnvError, match=message):
        collect([[9]], 1, collector={"action_masks": True}, **settings)


def test_masks_of_a_multidiscrete_may_come_as_gymnasium_writes_them() -> None:
    reader = MaskReader(MultiDiscrete([2, 3]))
    mask = reader.read({"action_mask": (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8))})
    assert mask.tolist() == [True, False, False, True, True]
    for given in ((1, 0), (np.ones(2),), (np.ones(2), np.zeros(3))):
        with pytest.raises(ValueError, match="expected: 5 flags, at least one of each choice true"):
            reader.read({"action_mask": given})


def test_masks_need_choices() -> None:
    with pytest.raises(SpaceError, match=r"action masks need a Discrete or MultiDiscrete action space, but it is Box"):
        collect([[9]], 1, collector={"action_masks": True}, action_space=Box(-1.0, 1.0, (2,), np.float32))


def test_a_restored_collector_has_the_masks_of_its_observations() -> None:
    def make() -> Collector:
        envs = make_envs(make_env_factory("rl_training/Masked-v0", {"length": 4}), 2)
        return Collector(envs, Streams(0), action_masks=True)

    class FirstAllowed(Cycling):
        def act(self, obs: np.ndarray, **kwargs: Any) -> ActResult:
            super().act(obs, **kwargs)
            return ActResult(kwargs["action_mask"].argmax(1))

    unbroken, restored = make(), make()
    unbroken.start()
    policy, other_policy = FirstAllowed(), FirstAllowed()
    for k in range(6):
        unbroken.step(policy, step=2 * k)
    restored.load_state_dict(unbroken.state_dict())
    assert restored.inexact_restores == []
    for k in range(6, 11):
        ours, theirs = restored.step(other_policy, step=2 * k), unbroken.step(policy, step=2 * k)
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert other_policy.masks == policy.masks[6:]


def test_an_env_that_cannot_be_replayed_begins_with_the_mask_of_its_new_episode() -> None:
    infos = {(0, time): ALL for time in range(9)}
    saved, _, _, _ = collect([[9]], 3, collector={"action_masks": True}, infos=infos)
    to_make = iter([Scripted([9], infos={(0, 0): masked(0, 0, 1)})])
    restored = Collector(make_envs(lambda: next(to_make)), Streams(4), replayable=False, action_masks=True)
    restored.load_state_dict(saved.state_dict())
    assert restored.state_dict()["action_masks"].tolist() == [[False, False, True]]


# --- What a recurrent algorithm carries ------------------------------------------------------------------------------


class Counting(ActsOnly):
    """Carries the number of steps that each env's episode has taken, and acts by it."""

    def act(self, obs: np.ndarray, *, carry: Carry | None = None, **kwargs: Any) -> ActResult:
        count = np.zeros(len(obs), np.int64) if carry is None else carry["count"]
        return ActResult(count % 3, {"count": count + 1})


def test_a_carry_is_passed_from_step_to_step_and_reset_with_each_episode_of_its_env() -> None:
    _, _, transitions, _ = collect([[2, 3, 9], [5, 9]], 7, policy=Counting())
    taken = np.stack([t["actions"] for t in transitions], axis=1)
    assert taken.tolist() == [[0, 1, 0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 0, 1]]


def test_a_restored_collector_has_the_carry_of_its_open_episodes() -> None:
    def make() -> Collector:
        return Collector(make_envs(make_env_factory("rl_training/Identity-v0", {"length": 4}), 2), Streams(0))

    unbroken, restored = make(), make()
    unbroken.start()
    for k in range(6):
        unbroken.step(Counting(), step=2 * k)
    restored.load_state_dict(unbroken.state_dict())
    assert restored.step(Counting(), step=12)["actions"].tolist() == [2, 2]  # two steps into the second episode


def test_an_env_that_cannot_be_replayed_begins_without_a_carry() -> None:
    saved, _, _, _ = collect([[9], [9]], 2, policy=Counting())
    to_make = iter([Scripted([9]), Scripted([9])])
    restored = Collector(make_envs(lambda: next(to_make), 2), Streams(4), replayable=False)
    restored.load_state_dict(saved.state_dict())
    assert restored.step(Counting(), step=4)["actions"].tolist() == [0, 0]


def test_a_step_that_an_env_failed_in_is_taken_again_with_its_actions_and_its_carry() -> None:
    class FailsOnce(Scripted):
        fails = True

        def step(self, action: np.int64) -> Any:
            if self.time == 2 and FailsOnce.fails:
                FailsOnce.fails = False
                raise ValueError("on purpose")
            return super().step(action)

    def make() -> Collector:
        return Collector(make_envs(lambda: FailsOnce([9])), Streams(4))

    collector, restored = make(), make()
    collector.start()
    for k in range(2):
        collector.step(Counting(), step=k)
    with pytest.raises(EnvError):
        collector.step(Counting(), step=2)
    restored.load_state_dict(collector.state_dict())
    assert [restored.step(Counting(), step=k)["actions"][0] for k in (2, 3)] == [2, 0]
