"""Dict observations travel as one row of bytes, and action masks in the info; nothing is lost on the way."""

import copy
import itertools
import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.wrappers import TimeLimit
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from builders import make_config, make_setup
from rl_training import DQN
from rl_training.acceleration.steps import accelerate
from rl_training.algorithms.dqn import build_dqn
from rl_training.api import algorithms
from rl_training.cli import app
from rl_training.core.packed_space import PackedSpace
from rl_training.core.spaces import Spaces, pack_space
from rl_training.core.types import ActResult, Batch, Metrics, State
from rl_training.data.replay_buffer import build_replay_buffer
from rl_training.envs.dict_obs import PackedDictObs, Packer, sample_action
from rl_training.envs.factory import make_env_factory
from rl_training.envs.resumable import EpisodeRecipe, check_replay, restore_env
from rl_training.envs.slot import check_env
from rl_training.envs.tiny import Masked, TinyDict
from rl_training.envs.vector import EnvGroup, SyncEnvs
from rl_training.envs.workers import AsyncEnvs
from rl_training.errors import EnvError, SpaceError
from rl_training.experiment.registry import registry
from rl_training.learners.flat_module import FlatModule
from rl_training.models.encoders import DictInput, build_encoder
from rl_training.runtime.collector import Collector
from rl_training.runtime.observations import read_observations
from stand_ins import ActsOnly

VECTOR = Box(-1.0, 1.0, (3,), np.float64)
IMAGE = Box(0, 255, (4, 4, 1), np.uint8)
MIXED = spaces.Dict({"image": IMAGE, "inner": spaces.Dict({"choice": Discrete(5, start=2)}), "vector": VECTOR})
MIXED_OBS: dict[str, Any] = {
    "image": np.arange(16, dtype=np.uint8).reshape(4, 4, 1),
    "inner": {"choice": 6},
    "vector": np.array([0.5, -1.0, 0.25]),
}


class Scripted(gym.Env[Any, Any]):
    """Gives `obs` at every reset and step, but `wrong` at step `at` of each episode (0: the reset)."""

    def __init__(self, space: Any, obs: Any, wrong: Any = None, at: int = -1, actions: Any = None) -> None:
        self.observation_space, self.action_space = space, actions or Discrete(2)
        self._obs, self._wrong, self._at = obs, wrong, at
        self._num_steps = 0
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._observe(), {"note": 1}

    def step(self, action: Any) -> Any:
        self._num_steps += 1
        return self._observe(), 0.5, False, self._num_steps == 4, {"note": 2}

    def close(self) -> None:
        self.closed = True

    def _observe(self) -> Any:
        return self._wrong if self._num_steps == self._at else self._obs


# --- Packing ---------------------------------------------------------------------------------------------------------


def boxes() -> st.SearchStrategy[Any]:
    dtypes = st.sampled_from(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "?"])
    shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)
    return st.builds(
        lambda dtype, shape: Box(0, 1 if dtype == "?" else 100, shape, np.dtype(dtype).type), dtypes, shapes
    )


LEAVES = st.one_of(
    boxes(), st.builds(Discrete, st.integers(1, 9), start=st.integers(-9, 9)), st.builds(MultiBinary, st.integers(1, 9))
)
KEYS = st.text("abc ,é", min_size=1, max_size=3)
DICTS = st.recursive(
    st.dictionaries(KEYS, LEAVES, min_size=1, max_size=5).map(spaces.Dict),
    lambda inner: st.dictionaries(KEYS, LEAVES | inner, min_size=1, max_size=3).map(spaces.Dict),
    max_leaves=6,
)


@given(space=DICTS, seed=st.integers(0, 99))
def test_packed_observations_can_be_unpacked_unchanged(space: spaces.Dict, seed: int) -> None:
    packed = pack_space(space)
    space.seed(seed)
    obs = space.sample()
    row = Packer(packed).pack(obs)
    assert (row.dtype, row.shape) == (np.dtype(np.uint8), packed.shape)
    assert len(row) % 8 == 0
    for leaf, view, value in zip(packed.leaves, packed.views(row), packed.leaf_values(obs), strict=True):
        assert view.dtype == leaf.dtype
        assert view.flags.aligned
        np.testing.assert_array_equal(view, np.asarray(value).astype(leaf.dtype))
    ends = sorted((leaf.start, leaf.start + leaf.num_bytes) for leaf in packed.leaves)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    np.testing.assert_array_equal(Packer(packed).pack(copy.deepcopy(obs)), row)  # the padding too


@given(space=DICTS, seed=st.integers(0, 99))
def test_the_networks_view_of_a_stored_row_is_what_was_packed(space: spaces.Dict, seed: int) -> None:
    packed = pack_space(space)
    setup = make_setup(observation=packed)
    packed.seed(seed)
    rows = np.stack([packed.sample() for _ in range(4)])
    buffer = build_replay_buffer(setup)
    numbers = np.arange(2)
    transitions = {"actions": numbers, "rewards": numbers, "terminated": numbers > 0}
    buffer.add({"obs": rows[:2], "next_obs": rows[2:], **transitions})
    batch = buffer.sample(6)
    chosen = batch["actions"].numpy()
    for name, stored in (("obs", rows[:2]), ("next_obs", rows[2:])):
        parts = DictInput(packed, []).parts(batch[name])
        for part, view in zip(parts, packed.views(stored), strict=True):
            np.testing.assert_array_equal(part.numpy(), view[chosen])


def test_the_widest_parts_come_first_and_each_is_stored_as_it_would_be_alone() -> None:
    packed = pack_space(MIXED)
    # int64 8 bytes, then three float32 (of float64) 12, then 16 pixels: 36, padded to 40.
    assert [(leaf.name, leaf.dtype.name, leaf.start) for leaf in packed.leaves] == [
        ("image", "uint8", 20),
        ("inner.choice", "int64", 0),
        ("vector", "float32", 8),
    ]
    row = Packer(packed).pack(MIXED_OBS)
    assert row.shape == (40,)
    assert row[:8].view(np.int64).tolist() == [6]
    assert row[8:20].view(np.float32).tolist() == [0.5, -1.0, 0.25]
    assert row[20:].tolist() == [*range(16), 0, 0, 0, 0]


def test_a_packed_space_prints_equals_and_copies_as_its_dict() -> None:
    packed = pack_space(MIXED)
    assert str(packed) == str(MIXED)
    other = spaces.Dict({**MIXED.spaces, "vector": Box(-2.0, 1.0, (3,), np.float64)})
    assert pack_space(other).shape == packed.shape
    assert packed == pack_space(copy.deepcopy(MIXED))
    assert packed != pack_space(other)
    assert packed != Box(0, 255, packed.shape, np.uint8)
    for twin in (pickle.loads(pickle.dumps(packed)), copy.deepcopy(packed)):
        assert twin == packed
        np.testing.assert_array_equal(Packer(twin).pack(MIXED_OBS), Packer(packed).pack(MIXED_OBS))


def test_samples_of_a_packed_space_are_observations() -> None:
    packed, original = pack_space(copy.deepcopy(MIXED)), copy.deepcopy(MIXED)
    packed.seed(3)
    original.seed(3)
    np.testing.assert_array_equal(packed.sample(), Packer(packed).pack(original.sample()))


def test_rows_belong_to_the_caller_and_copies_of_an_env_are_independent() -> None:
    env = check_env(TinyDict())
    first, _ = env.reset(seed=0)
    kept = first.copy()
    twin = copy.deepcopy(env)
    after = twin.step(np.int64(0))[0]
    assert not np.array_equal(after, kept)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(env.step(np.int64(0))[0], after)


# --- Groups of environments ------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("make", [TinyDict, lambda: Masked(mask_in_obs=True), lambda: Masked(multi=True)])
def test_worker_processes_give_the_same_as_this_process(make: Callable[[], Any]) -> None:
    def play(envs: EnvGroup) -> list[Any]:
        obs, infos = envs.reset([0, 1], [3, 4])
        seen: list[Any] = [obs, infos]
        for _ in range(12):
            actions = np.array([sample_action(envs.action_space, info) for info in infos])
            result = envs.step(actions)
            infos = result.infos
            seen += [result.obs, result.rewards, result.terminated, infos]
            if result.ended:
                envs.reset(result.ended, [5] * len(result.ended))
        return seen

    with SyncEnvs(make, 2) as here, AsyncEnvs(make, 2) as there:
        assert here.observation_space == there.observation_space
        for envs in (here, there):
            envs.action_space.seed(0)
        np.testing.assert_equal(play(there), play(here))


def test_envs_of_other_parts_do_not_make_a_group() -> None:
    keys = iter("ab")
    with pytest.raises(EnvError, match=r"env 1 has the spaces Dict\('b': .* but the group has Dict\('a': "):
        SyncEnvs(lambda: Scripted(spaces.Dict({next(keys): VECTOR}), None), 2)


WRONG = [
    ({"image": MIXED_OBS["image"], "inner": {"choice": 2}}, "without the part 'vector'; the space declares 'image', "),
    ({**MIXED_OBS, "more": 1}, "with the unknown part 'more'; the space declares 'image', 'inner', 'vector'"),
    ({**MIXED_OBS, "inner": {}}, "without the part 'inner.choice'; the space declares 'inner.choice'"),
    ({**MIXED_OBS, "inner": 3}, "whose part 'inner' is of type int, but the space declares a dict of 'inner.choice'"),
    (np.zeros(3), "that is of type ndarray, but the space declares a dict of 'image', 'inner', 'vector'"),
    ({**MIXED_OBS, "vector": np.zeros(1)}, "whose part 'vector' has shape (1,), but its space Box(-1.0, 1.0, (3,), "),
    ({**MIXED_OBS, "vector": np.zeros(3, int)}, "whose part 'vector' has dtype int64, but its space Box(-1.0, "),
    ({**MIXED_OBS, "image": np.zeros((4, 4, 1))}, "whose part 'image' has dtype float64, but its space Box(0, 255, "),
    ({**MIXED_OBS, "image": np.full((4, 4, 1), 300)}, "whose part 'image' has the value 300, but uint8 holds 0 to 255"),
    ({**MIXED_OBS, "vector": np.array([0, 1e300, 0])}, "whose part 'vector' has the value 1e+300, which is too large"),
    (
        {**MIXED_OBS, "inner": {"choice": 2.0}},
        "whose part 'inner.choice' has dtype float64, but its space Discrete(5, ",
    ),
    ({**MIXED_OBS, "inner": {"choice": 7}}, "whose part 'inner.choice' has the value 7, which is none of Discrete(5, "),
    ({**MIXED_OBS, "inner": {"choice": np.array(1)}}, "whose part 'inner.choice' has the value 1, which is none of"),
    ({**MIXED_OBS, "vector": np.array([0, np.nan, 0])}, "whose part 'vector' is not finite: [ 0. nan  0.]"),
    ({**MIXED_OBS, "vector": np.array([0, -np.inf, 0])}, "whose part 'vector' is not finite: [  0. -inf   0.]"),
]


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
@pytest.mark.filterwarnings("ignore:overflow")  # of the cast, after which the value is named
def test_an_observation_that_the_space_does_not_declare_is_refused_by_the_name_of_its_part(
    wrong: Any, message: str, at: int
) -> None:
    envs = SyncEnvs(lambda: Scripted(MIXED, MIXED_OBS, wrong, at))
    where = "the reset" if at == 0 else f"step {at}"
    what = f"^env 0 returned an observation {re.escape(message)}.* at {where} of episode 0"
    with pytest.raises(EnvError, match=what):  # noqa: PT012
        envs.reset([0], [0])
        for _ in range(2):
            envs.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("part", "dtypes"),
    [("a", {"a": "f4", "b": "f4"}), ("b", {"a": "f4", "b": "f4"}), ("c", {"a": "f4", "c": "f2"}), ("c", {"c": "f8"})],
)
def test_every_float_part_must_be_finite(part: str, dtypes: dict[str, str]) -> None:
    space = spaces.Dict({key: Box(-1.0, 1.0, (2,), np.dtype(dtype).type) for key, dtype in dtypes.items()})
    obs = {key: np.zeros(2, dtype) for key, dtype in dtypes.items()}
    obs[part][1] = np.nan
    with pytest.raises(EnvError, match=f"whose part '{part}' is not finite"):
        Packer(pack_space(space)).pack(obs)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_large_numbers_are_finite() -> None:
    packer = Packer(pack_space(spaces.Dict({"a": Box(-np.inf, np.inf, (2,), np.float32)})))
    row = packer.pack({"a": np.full(2, 3e38, np.float32)})  # whose squares are infinite
    assert row.view(np.float32).tolist() == [np.float32(3e38)] * 2


def test_values_of_another_width_or_of_lists_are_taken() -> None:
    packer = Packer(pack_space(MIXED))
    loose = {
        "image": MIXED_OBS["image"].astype(np.int32),
        "inner": {"choice": np.uint8(6)},
        "vector": [0.5, -1.0, 0.25],
    }
    np.testing.assert_array_equal(packer.pack(loose), packer.pack(MIXED_OBS))


def test_spaces_that_cannot_be_encoded_are_refused_by_name_and_the_env_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = spaces.Dict({"a": VECTOR, "b": spaces.Dict({"c": spaces.Text(3)})})
    made: list[Scripted] = []

    def make(**_: Any) -> Scripted:
        made.append(Scripted(space, None))
        return made[-1]

    for group in (SyncEnvs, AsyncEnvs):
        with pytest.raises(
            SpaceError, match=r"^the part 'b\.c' of the observation space cannot be encoded: it is Text"
        ):
            group(make)
    assert [env.closed for env in made] == [True, True]
    spec = gym.envs.registration.EnvSpec("Talking-v0", entry_point=make)
    monkeypatch.setitem(gym.registry, "Talking-v0", spec)
    with pytest.raises(SpaceError, match=r"^env_id 'Talking-v0': the part 'b\.c' of the observation space"):
        make_env_factory("Talking-v0")


# --- Action masks ----------------------------------------------------------------------------------------------------


def masked(parts: dict[str, Any], obs: dict[str, Any], mask: Any, actions: Any = None) -> PackedDictObs:
    """An env with these parts and a mask of three flags."""
    space = spaces.Dict({**parts, "action_mask": Box(0, 1, np.shape(mask), np.asarray(mask).dtype.type)})
    env = check_env(Scripted(space, {**obs, "action_mask": mask}, actions=actions or Discrete(3)))
    assert isinstance(env, PackedDictObs)
    return env


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.float32, np.int64])
def test_a_mask_in_the_observation_moves_to_the_info(dtype: Any) -> None:
    env = masked({"vector": VECTOR}, {"vector": MIXED_OBS["vector"]}, np.array([1, 0, 1], dtype))
    for _, info in (env.reset(), env.step(0)[::4]):
        assert info["action_mask"].dtype == np.bool_
        assert info["action_mask"].tolist() == [True, False, True]
    assert env.reset()[1]["note"] == 1
    assert env.step(0)[4]["note"] == 2


def test_a_single_part_beside_the_mask_is_the_observation_itself() -> None:
    env = masked({"vector": VECTOR}, {"vector": MIXED_OBS["vector"]}, np.ones(3, np.int8))
    assert env.observation_space == VECTOR
    for obs in (env.reset()[0], env.step(0)[0]):
        np.testing.assert_array_equal(obs, MIXED_OBS["vector"])


def test_several_parts_beside_the_mask_are_packed() -> None:
    env = masked(dict(MIXED.spaces), MIXED_OBS, np.array([0, 1, 0], np.int8))
    assert env.observation_space == pack_space(MIXED)
    np.testing.assert_array_equal(env.step(0)[0], Packer(pack_space(MIXED)).pack(MIXED_OBS))
    nested = masked({"all": MIXED}, {"all": MIXED_OBS}, np.array([0, 1, 0], np.int8))
    assert nested.observation_space == pack_space(spaces.Dict({"all": MIXED}))


def test_the_mask_of_several_choices_is_one_row_of_flags() -> None:
    mask = np.array([[1, 0, 0], [0, 1, 1]], np.int8)
    env = masked({"vector": VECTOR}, {"vector": MIXED_OBS["vector"]}, mask, MultiDiscrete([3, 3]))
    assert env.reset()[1]["action_mask"].tolist() == [True, False, False, False, True, True]


@pytest.mark.parametrize(
    ("mask_space", "actions", "message"),
    [
        (
            MultiBinary(4),
            Discrete(3),
            "'action_mask' of the observation space must be an array of 3 flags, one per choice",
        ),
        (
            Discrete(2),
            Discrete(3),
            "'action_mask' of the observation space must be an array of 3 flags, one per choice",
        ),
        (MultiBinary(3), VECTOR, "action masks need a Discrete or MultiDiscrete action space, but it is Box"),
    ],
)
def test_a_mask_that_does_not_fit_the_actions_is_refused(mask_space: Any, actions: Any, message: str) -> None:
    space = spaces.Dict({"vector": VECTOR, "action_mask": mask_space})
    with pytest.raises(SpaceError, match=message):
        check_env(Scripted(space, None, actions=actions))


def test_a_mask_alone_is_no_observation() -> None:
    with pytest.raises(SpaceError, match="the observation space has no parts"):
        check_env(Scripted(spaces.Dict({"action_mask": MultiBinary(2)}), None))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vector": np.zeros(3)}, "returned an observation without the part 'action_mask'"),
        (np.zeros(3), "returned an observation without the part 'action_mask'"),
        (
            {"vector": np.zeros(3), "action_mask": np.ones(2, np.int8)},
            "returned an observation whose part 'action_mask' has shape (2,) and dtype int8, but",
        ),
        (
            {"vector": np.zeros(3), "action_mask": np.ones(3, np.int8), "other": 1},
            "returned an observation of other parts than 'vector' and 'action_mask': 'vector', 'other'",
        ),
    ],
)
def test_an_observation_without_its_mask_or_its_part_is_refused(wrong: Any, message: str) -> None:
    space = spaces.Dict({"vector": VECTOR, "action_mask": MultiBinary(3)})
    obs = {"vector": np.zeros(3), "action_mask": np.ones(3, np.int8)}
    envs = SyncEnvs(lambda: Scripted(space, obs, wrong, at=1, actions=Discrete(3)))
    envs.reset([0], [0])
    with pytest.raises(EnvError, match=f"^env 0 {re.escape(message)}.* at step 1"):
        envs.step(np.zeros(1, np.int64))


class Strict(Masked):
    """Crashes on an invalid action."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if result[4].get("invalid_action"):
            raise ValueError(f"invalid action {action}")
        return result


@pytest.mark.parametrize("settings", [{}, {"multi": True}, {"mask_in_obs": True}], ids=str)
def test_random_actions_before_a_run_are_valid_ones(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        gym.registry,
        "Strict-v0",
        gym.envs.registration.EnvSpec("Strict-v0", entry_point=lambda **_: Strict(**settings)),
    )
    assert check_replay(make_env_factory("Strict-v0"), seed=0)


# --- Replay and restore ----------------------------------------------------------------------------------------------


class OtherMasks(Masked):
    """Repeats its observations and rewards, but not the masks of its resets, or of its steps."""

    at_resets: bool

    def _draw(self) -> Any:
        obs, info = super()._draw()
        if (self._num_steps == 0) == self.at_resets:
            obs["action_mask"][:] = np.random.permutation(obs["action_mask"])
        return obs, info


@pytest.mark.parametrize("at_resets", [True, False])
def test_an_env_repeats_itself_if_its_parts_and_masks_do(at_resets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_replay(TinyDict, seed=0)
    assert check_replay(lambda: Masked(mask_in_obs=True), seed=0)
    monkeypatch.setattr(OtherMasks, "at_resets", at_resets, raising=False)
    assert not check_replay(lambda: OtherMasks(mask_in_obs=True), seed=0)


class Stateful(TinyDict):
    """Hands out its state; its generator counts, so that replay alone would not do."""

    def get_state(self) -> dict[str, np.ndarray]:
        return {**self._last, "answer": np.array(self._answer), "steps": np.array(self._num_steps)}

    def set_state(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self._answer, self._num_steps = int(state["answer"]), int(state["steps"])
        return {"image": state["image"], "vector": state["vector"]}

    def _draw(self) -> dict[str, np.ndarray]:
        self._last = super()._draw()
        return self._last


class Stacking(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper with memory of its own."""


def test_open_episodes_are_brought_back_by_replay_and_by_the_envs_own_state() -> None:
    actions = np.array([[0], [2], [1]])
    for make in (TinyDict, lambda: TimeLimit(Stateful(), 5)):
        envs = SyncEnvs(make)
        envs.reset([0], [7])
        for action in actions:
            obs = envs.step(action).obs[0]
        state = envs.get_state(0)
        assert (state is not None) == (make is not TinyDict)
        fresh = SyncEnvs(make)
        fresh.reset([0], [8])
        assert restore_env(fresh, 0, EpisodeRecipe(7, actions[:, 0], state), obs)
        other = obs.copy()
        other[0] ^= 1
        assert not restore_env(fresh, 0, EpisodeRecipe(7, actions[:, 0], state), other)
        assert restore_env(fresh, 0, EpisodeRecipe(7, actions[:, 0], state), obs)
        assert not fresh.step(np.array([0])).truncated[0]
        assert fresh.step(np.array([0])).truncated[0] == (state is not None)  # the limit of 5 was counted on


def test_the_state_below_a_wrapper_with_a_memory_is_not_used_but_its_own_is() -> None:
    class Offering(Stacking):
        def get_state(self) -> dict[str, np.ndarray]:
            return {"all": np.array(3)}

        def set_state(self, state: dict[str, np.ndarray]) -> None:
            assert state["all"] == 3

    assert SyncEnvs(lambda: Stacking(Stateful())).get_state(0) is None
    envs = SyncEnvs(lambda: Offering(Stateful()))
    envs.reset([0], [0])
    state = envs.get_state(0)
    assert state is not None
    assert state["all"] == 3
    assert envs.set_state(0, state) is None


# --- The network -----------------------------------------------------------------------------------------------------


def test_each_part_goes_through_its_own_encoder_and_they_stand_side_by_side() -> None:
    torch.manual_seed(0)
    packed = pack_space(MIXED)
    encoder, features = build_encoder(packed)
    rows = torch.from_numpy(np.stack([Packer(packed).pack(MIXED_OBS)] * 2))
    encoded = encoder(rows)
    assert features == encoded.shape[1] == 16 * 2 * 2 + 5 + 3
    image = torch.from_numpy(MIXED_OBS["image"])[None]
    assert isinstance(encoder[0], DictInput)
    torch.testing.assert_close(encoded[0, :64], encoder[0].encoders[0](image)[0])
    assert encoded[0, 64:].tolist() == [0, 0, 0, 0, 1, 0.5, -1.0, 0.25]


@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("count", [1, 3])
def test_rows_may_lie_anywhere_in_memory(offset: int, count: int) -> None:
    packed = pack_space(MIXED)
    row = torch.from_numpy(Packer(packed).pack(MIXED_OBS))
    for stride in (40, 43, 48):
        rows = torch.zeros(300, dtype=torch.uint8).as_strided((count, 40), (stride, 1), offset)
        rows[:] = row
        image, choice, vector = DictInput(packed, []).parts(rows)
        assert choice.tolist() == [6] * count
        assert vector.tolist() == [[0.5, -1.0, 0.25]] * count
        assert image.flatten(1).tolist() == [list(range(16))] * count


def test_aligned_rows_are_not_copied() -> None:
    packed = pack_space(MIXED)
    rows = torch.zeros((3, 48), dtype=torch.uint8)[:, 8:]
    parts = DictInput(packed, []).parts(rows)
    assert [part.untyped_storage().data_ptr() for part in parts] == [rows.untyped_storage().data_ptr()] * 3


@pytest.mark.compile
def test_a_compiled_step_on_stored_rows_equals_the_plain_one() -> None:
    space = spaces.Dict({"board": Box(0, 255, (3, 3), np.uint8), "choice": Discrete(4, start=1), "vector": VECTOR})
    setup = make_setup(observation=pack_space(space))
    generator = np.random.default_rng(0)
    buffer, packed = build_replay_buffer(setup), setup.spaces.observation
    packed.seed(0)
    rows = np.stack([packed.sample() for _ in range(20)])
    numbers = generator.random(10)
    others = {"actions": np.zeros(10, np.int64), "rewards": numbers, "terminated": numbers > 1}
    buffer.add({"obs": rows[:10], "next_obs": rows[10:], **others})
    draw = buffer.sampler(4)
    torch.manual_seed(0)
    encoder, features = build_encoder(packed)
    network = FlatModule(torch.nn.Sequential(encoder, torch.nn.Linear(features, 1)))

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        def loss(params: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
            change = network.apply(params, batch["obs"]) - network.apply(params.detach(), batch["next_obs"])
            error = (change[:, 0] - batch["rewards"]).square().mean()
            return error, {"loss": error}

        gradient, metrics = torch.func.grad(loss, has_aux=True)(state["params"])
        return {"params": state["params"] - 0.1 * gradient}, metrics

    plain, fast = accelerate(step, "eager"), accelerate(step, "compile")
    states = [{"params": network.params.clone()} for _ in range(2)]
    for _ in range(5):
        batch = draw()
        torch.testing.assert_close(fast(states[1], batch), plain(states[0], batch), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(states[1], states[0], rtol=1e-5, atol=1e-6)
    assert not torch.equal(states[0]["params"], network.params)


@pytest.mark.learning
def test_dqn_learns_what_needs_both_parts() -> None:
    setup = make_setup(
        observation=check_env(TinyDict()).observation_space,
        num_actions=3,
        hidden_sizes=(64,),
        learning_rate=3e-3,
        gamma=0.0,
        buffer_capacity=1_600,
        batch_size=64,
        learning_rate_schedule="constant",
    )
    agent, memory = build_dqn(setup), build_replay_buffer(setup)
    collector = Collector(SyncEnvs(TinyDict, 8), setup.streams)
    collector.start()
    for _ in range(200):
        memory.add(collector.step(agent, step=0))
    draw = memory.sampler(64)
    for _ in range(400):
        agent.update(draw())
    rights = [collector.step(Greedy(agent), step=0)["rewards"].mean() for _ in range(20)]
    assert np.mean(rights) > 0.95  # chance: 1/3


class Greedy(ActsOnly):
    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def act(self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: Any = None) -> ActResult:
        result: ActResult = self.agent.act(obs)
        return result


# --- Predictions -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DQN run of a few steps on TinyDict."""
    config = make_config(tmp_path_factory.mktemp("runs"), env_id="rl_training/TinyDict-v0", total_timesteps=12)
    folder: Path = DQN(config, show_progress=False).learn().run_dir
    return folder


@pytest.fixture
def agent(run_dir: Path) -> DQN:
    return DQN.load(run_dir, show_progress=False)


def some_observations(count: int = 5) -> list[dict[str, np.ndarray]]:
    env = TinyDict()
    return [env.reset(seed=seed)[0] for seed in range(count)]


def test_predict_takes_a_dict_a_dict_of_batches_and_a_list_of_dicts(agent: DQN) -> None:
    observations = some_observations()
    batch = {key: np.stack([obs[key] for obs in observations]) for key in ("image", "vector")}
    rows = np.stack([check_env(TinyDict()).reset(seed=seed)[0] for seed in range(5)])
    expected = agent._policy().act(rows).actions.tolist()
    assert agent.predict(batch).tolist() == expected
    assert agent.predict(observations).tolist() == expected
    assert [agent.predict(obs) for obs in observations] == expected
    assert all(np.ndim(agent.predict(obs)) == 0 for obs in observations)
    assert agent.predict(observations[:1]).tolist() == expected[:1]
    as_lists = [{key: value.tolist() for key, value in obs.items()} for obs in observations]
    assert agent.predict(as_lists).tolist() == expected
    assert agent.predict({key: value[:0] for key, value in batch.items()}).shape == (0,)


IMAGE_8, VECTOR_3 = np.zeros((8, 8, 1), np.uint8), np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"image": IMAGE_8}, "got an observation without the part 'vector'; the space declares 'image', 'vector'"),
        ({"image": IMAGE_8, "vector": VECTOR_3, "x": 1}, "got an observation with the unknown part 'x'"),
        (VECTOR_3, "got an observation that is of type ndarray, but the space declares a dict of 'image', 'vector'"),
        (
            {"image": IMAGE_8, "vector": [1, 2]},
            "the part 'vector' of an observation has shape (3,), a batch (n, 3)",
        ),
        ({"image": IMAGE_8, "vector": [1, 2, None]}, "the part 'vector' of an observation must hold finite numbers"),
        ({"image": IMAGE_8 + 300.0, "vector": VECTOR_3}, "the part 'image' of an observation must hold uint8 numbers"),
        (
            {"image": IMAGE_8, "vector": VECTOR_3[None]},
            "of one observation, or of the same number, got {'image': 'one', ",
        ),
        ({"image": IMAGE_8[None], "vector": np.zeros((2, 3))}, "the same number, got {'image': 1, 'vector': 2}"),
        (
            [{"image": IMAGE_8, "vector": VECTOR_3}, 3],
            "observation 1 of the list: got an observation that is of type int",
        ),
        ([{"image": IMAGE_8[None], "vector": VECTOR_3[None]}], "observation 0 of the list holds 1 observations"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_predict_says_which_part_is_wrong(agent: DQN, obs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        agent.predict(obs)


SPACES = Spaces(Box(-1.0, 1.0, (2,), np.float32), Discrete(3), action_mask=True)
PARTS = Spaces(pack_space(spaces.Dict({"a": Box(-1.0, 1.0, (2,), np.float32), "b": Discrete(2)})), SPACES.action)


def test_masks_are_given_beside_the_observations_or_in_them() -> None:
    assert read_observations([0.5, 0.5], SPACES).action_mask is None
    single = read_observations([0.5, 0.5], SPACES, [1, 0, 1])
    assert (single.action_mask.tolist(), single.single) == ([[True, False, True]], True)  # type: ignore[union-attr]
    inside = read_observations({"observation": [0.5, 0.5], "action_mask": [True, False, True]}, SPACES)
    np.testing.assert_equal((inside.rows, inside.action_mask), (single.rows, single.action_mask))
    masks = [[1, 0, 0], [0, 1, 1]]
    for batch in (
        read_observations([[0.5, 0.5]] * 2, SPACES, masks),
        read_observations({"observation": [[0.5, 0.5]] * 2, "action_mask": masks}, SPACES),
        read_observations([{"observation": [0.5, 0.5], "action_mask": mask} for mask in masks], SPACES),
        read_observations([{"a": [0.5, 0.5], "b": 1, "action_mask": mask} for mask in masks], PARTS),
        read_observations([{"a": [0.5, 0.5], "b": 1}] * 2, PARTS, masks),
    ):
        assert (batch.action_mask.tolist(), batch.single) == (np.array(masks, bool).tolist(), False)  # type: ignore[union-attr]
        assert len(batch.rows) == 2


@pytest.mark.parametrize(
    ("obs", "mask", "message"),
    [
        ([0, 0], [1, 0], "action_mask must have shape (3,), got (2,)"),
        ([[0, 0], [0, 0]], [1, 0, 1], "action_mask must have shape (2, 3), got (3,)"),
        ([[0, 0], [0, 0]], [1, 0, 1, 1, 0, 1], "action_mask must have shape (2, 3), got (6,)"),
        ([0, 0], [2, 0, 1], "action_mask must hold only 0 and 1, or false and true, got [2, 0, 1]"),
        ([[0, 0], [0, 0]], [[1, 1, 1], [0, 0, 0]], "got the all-false action mask [0 0 0] (expected: 3 flags"),
        ({"x": [0, 0], "action_mask": [1, 1, 1]}, [1, 1, 1], "contains its own action_mask: give that or the argument"),
        ({"x": [0, 0]}, None, "an observation is one array of shape (2,), got a dict of 'x'"),
        ({"x": [0, 0], "y": 1, "action_mask": [1, 1, 1]}, None, "one array of shape (2,), got a dict of 'x', 'y'"),
        ([{"x": [0, 0], "action_mask": [1, 1, 1]}] * 2, [[1, 1, 1]], "there are 2 observations, but 1 action masks"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_masks_that_do_not_fit_are_refused(obs: Any, mask: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_observations(obs, SPACES, mask)


def test_some_observations_with_a_mask_and_some_without_are_refused() -> None:
    parts = {"a": [0.0, 0.0], "b": 1}
    with pytest.raises(ValueError, match="1 of 2 observations have an action_mask: all or none must have one"):
        read_observations([parts, {**parts, "action_mask": [1, 1, 1]}], PARTS)


def test_what_reset_returns_is_told_apart_from_a_batch_of_two_dicts() -> None:
    parts = {"a": [0.0, 0.0], "b": 1}
    assert len(read_observations((parts, parts), PARTS).rows) == 2
    with pytest.raises(ValueError, match=r"got the tuple that env\.reset or env\.step returns"):
        read_observations((parts, {"seed": 1}), PARTS)


def test_each_choice_needs_a_valid_action() -> None:
    both = Spaces(SPACES.observation, MultiDiscrete([3, 2]))
    assert read_observations([0, 0], both, [1, 0, 0, 0, 1]).action_mask is not None
    with pytest.raises(
        ValueError, match=r"got the action mask \[1 1 1 0 0\] \(expected: 5 flags, at least one of each"
    ):
        read_observations([0, 0], both, [1, 1, 1, 0, 0])


class Spy:
    def __init__(self) -> None:
        self.masks: list[Any] = []

    def act(self, obs: np.ndarray, *, action_mask: np.ndarray | None = None, **kwargs: Any) -> ActResult:
        self.masks.append(action_mask)
        return ActResult(np.zeros(len(obs), np.int64))


def test_predict_hands_masks_to_the_policy(agent: DQN, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy()
    monkeypatch.setattr(agent, "_algorithm", spy)
    agent.predict(some_observations(2))
    agent.predict({**some_observations(1)[0], "action_mask": [0, 1, 1]})
    assert spy.masks[0] is None
    np.testing.assert_array_equal(spy.masks[1], [[False, True, True]])


def test_a_mask_for_an_algorithm_that_does_not_use_it_is_refused(agent: DQN, monkeypatch: pytest.MonkeyPatch) -> None:
    without_masks = replace(registry()["dqn"], action_masks=False)
    monkeypatch.setattr(algorithms, "registry", lambda: {"dqn": without_masks})
    with pytest.raises(ValueError, match="dqn does not use action masks"):
        agent.predict(some_observations(1)[0], action_mask=[1, 1, 1])


def test_the_command_line_takes_an_object_or_a_list_of_them(agent: DQN, run_dir: Path) -> None:
    observations = some_observations(3)
    as_json = [{key: value.tolist() for key, value in obs.items()} for obs in observations]
    one = CliRunner().invoke(app, ["predict", str(run_dir), "--obs", json.dumps(as_json[0])])
    several = CliRunner().invoke(app, ["predict", str(run_dir), "--obs", json.dumps(as_json)])
    assert json.loads(one.stdout) == agent.predict(observations[0])
    assert json.loads(several.stdout) == agent.predict(observations).tolist()
    wrong = CliRunner().invoke(app, ["predict", str(run_dir), "--obs", '{"image": 3}'])
    assert wrong.exit_code == 2
    assert "error: --obs: got an observation without the part 'vector'; the space declares" in wrong.stderr


# --- Tuple and MultiDiscrete -----------------------------------------------------------------------------------------

TUPLE = spaces.Tuple([VECTOR, spaces.Dict({"choice": Discrete(5, start=2)}), MultiDiscrete([2, 3])])
TUPLE_OBS: tuple[Any, ...] = (np.array([0.5, -1.0, 0.25]), {"choice": 6}, np.array([1, 2]))


def test_a_tuple_is_packed_with_its_positions_as_names() -> None:
    env = check_env(Scripted(TUPLE, TUPLE_OBS))
    packed = env.observation_space
    assert isinstance(packed, PackedSpace)
    assert [leaf.name for leaf in packed.leaves] == ["0", "1.choice", "2"]
    obs, _ = env.reset()
    values = [view.tolist() for view in packed.views(obs)]
    assert values == [[0.5, -1.0, 0.25], 6, [1, 2]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (TUPLE_OBS[:2], "that is a tuple of 2, but the space declares a tuple of 3"),
        (5, "that is of type int, but the space declares a tuple of 3"),
        ((TUPLE_OBS[0], {"choice": 9}, TUPLE_OBS[2]), "part '1.choice' has the value 9"),
        ((TUPLE_OBS[0], TUPLE_OBS[1], np.array([1])), r"part '2' has shape \(1,\)"),
    ],
    ids=str,
)
def test_a_tuple_that_the_space_does_not_declare_is_refused(wrong: Any, message: str) -> None:
    env = check_env(Scripted(TUPLE, wrong))
    with pytest.raises(EnvError, match=message):
        env.reset()


def test_the_encoder_of_a_tuple_encodes_each_part() -> None:
    env = check_env(Scripted(TUPLE, TUPLE_OBS))
    encoder, size = build_encoder(env.observation_space)
    encoded = encoder(torch.from_numpy(env.reset()[0])[None])
    assert size == 3 + 5 + 5
    assert encoded.tolist() == [[0.5, -1.0, 0.25, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1]]


@pytest.mark.parametrize(
    ("space", "obs"), [(TUPLE, TUPLE_OBS), (MultiDiscrete([2, 3]), np.array([1, 2]))], ids=["tuple", "multidiscrete"]
)
def test_an_agent_learns_predicts_and_loads(space: Any, obs: Any, tmp_path: Path) -> None:
    def make() -> gym.Env[Any, Any]:
        return TimeLimit(Scripted(space, obs), 5)

    agent = DQN.for_env(make, 40, algo_kwargs={"learning_starts": 10, "hidden_sizes": [8]}, output_dir=tmp_path)
    agent.learn()
    loaded = DQN.load(agent.save(tmp_path / "saved"), env_factory=make)
    assert loaded.predict(obs) == agent.predict(obs)


def test_predict_takes_a_batch_of_tuples_as_a_tuple_of_batches() -> None:
    known = Spaces(pack_space(TUPLE), Discrete(2))
    batch = (np.zeros((2, 3)), {"choice": [2, 6]}, [[0, 0], [1, 2]])
    assert read_observations(batch, known).rows.shape == (2, known.observation.shape[0])  # type: ignore[index]
    assert read_observations(TUPLE_OBS, known).single
    with pytest.raises(ValueError, match=r"the part '2' of an observation must be one of MultiDiscrete"):
        read_observations((TUPLE_OBS[0], TUPLE_OBS[1], [1, 3]), known)


def test_predict_takes_a_batch_of_tuples_as_a_list_of_them() -> None:
    # As many observations as parts: read as a tuple of batches, the rows would be the columns.
    known = Spaces(pack_space(spaces.Tuple([Discrete(9), Discrete(9)])), Discrete(2))
    found = read_observations([(1, 2), (3, 4)], known)
    one_by_one = [read_observations(obs, known).rows[0] for obs in ((1, 2), (3, 4))]
    assert not found.single
    np.testing.assert_array_equal(found.rows, one_by_one)
