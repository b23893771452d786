"""Tensor environments: equal to their oracles step by step, true final observations, usable everywhere, test kit."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor

from rl_training.acceleration.steps import accelerate
from rl_training.core.counters import Keys
from rl_training.core.seeding import Streams
from rl_training.core.spaces import action_bounds
from rl_training.core.types import ActResult, State
from rl_training.envs.factory import make_env_factory, make_envs
from rl_training.envs.resumable import check_replay
from rl_training.envs.slot import Env
from rl_training.envs.tensor_catch import TensorCatch
from rl_training.envs.tensor_checks import check_tensor_env
from rl_training.envs.tensor_classic import Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum
from rl_training.envs.tensor_env import (
    TENSOR_ENVS,
    TensorEnv,
    TensorEnvs,
    as_gym_env,
    register_tensor_env,
    tensor_env_in,
    tensor_env_of,
    to_env_tensors,
)
from rl_training.envs.tiny import Catch
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.state_files import flatten, read_tensors, unflatten, write_tensors
from rl_training.learners.stack import stack_states
from rl_training.runtime.collector import Collector
from rl_training.runtime.device_collector import DeviceCollector
from stand_ins import ActsOnly
from state_comparison import assert_identical

ROWS = 10_000
OWN_IDS = [env_id for env_id in TENSOR_ENVS if "MinAtar" not in env_id]  # test_tensor_minatar.py has the others


def keys(rows: int, episode: int = 0, step: int = 0) -> Keys:
    count = torch.arange(rows)
    return Keys(torch.full_like(count, 3), count, torch.full_like(count, episode), torch.full_like(count, step))


# ------------------------------------------------------------------------------------------------- oracles: one step


def corners(*columns: tuple[float, ...]) -> np.ndarray:
    """Return random states within the bounds of each column, and ones at and beside the given values."""
    generator = np.random.default_rng(0)
    drawn = [generator.uniform(min(values), max(values), ROWS) for values in columns]
    for values, column in zip(columns, drawn, strict=True):
        places = generator.integers(ROWS, size=(len(values), 40))
        for value, rows in zip(values, places, strict=True):
            column[rows] = value + generator.choice([-1e-6, 0.0, 1e-6], 40)
    return np.stack(drawn, 1)


ANGLE = 12 * 2 * np.pi / 360
EPS = np.finfo(np.float64).eps
USUAL = (EPS, 1e-6)
CLASSIC: dict[str, tuple[Callable[..., TensorEnv], tuple[str, ...], np.ndarray, tuple[float, float]]] = {
    # id of the oracle: class, names of the state, states, and the largest relative error in float64 and in float32
    "CartPole-v1": (
        CartPole,
        ("x", "x_dot", "theta", "theta_dot"),
        corners((-2.5, -2.4, 2.4, 2.5), (-3.0, 3.0), (-0.22, -ANGLE, ANGLE, 0.22), (-4.0, 4.0)),
        USUAL,
    ),
    "Pendulum-v1": (Pendulum, ("theta", "speed"), corners((-20.0, -np.pi, np.pi, 20.0), (-8.0, 8.0)), USUAL),
    # Runge and Kutta's method evaluates the slope four times, with speeds of up to 28 squared: errors grow.
    "Acrobot-v1": (
        Acrobot,
        ("theta_1", "theta_2", "speed_1", "speed_2"),
        corners((-np.pi, np.pi), (-np.pi, np.pi), (-4 * np.pi, 4 * np.pi), (-9 * np.pi, 9 * np.pi)),
        (1e-12, 1e-3),
    ),
    "MountainCar-v0": (MountainCar, ("position", "speed"), corners((-1.2, 0.5, 0.6), (-0.07, 0.0, 0.07)), USUAL),
    "MountainCarContinuous-v0": (
        MountainCarContinuous,
        ("position", "speed"),
        corners((-1.2, 0.45, 0.6), (-0.07, 0.0, 0.07)),
        (float(np.finfo(np.float32).eps), 1e-6),  # Gymnasium rounds this state to float32
    ),
}


def oracle_step(oracle: Any, state: np.ndarray, action: Any) -> tuple[np.ndarray, np.ndarray, float, bool]:
    oracle.state = state.copy()
    if hasattr(oracle, "steps_beyond_terminated"):
        oracle.steps_beyond_terminated = None
    obs, reward, terminated, _, _ = oracle.step(action)
    return np.array(oracle.state, np.float64), obs, float(reward), terminated


def actions_for(space: gym.Space[Any]) -> np.ndarray:
    generator = np.random.default_rng(1)
    if isinstance(space, Discrete):
        return generator.integers(space.n, size=ROWS)
    assert isinstance(space, Box)
    return generator.uniform(1.2 * space.low, 1.2 * space.high, (ROWS, 1))  # some are clipped


@pytest.mark.parametrize("env_id", CLASSIC)
def test_one_step_equals_gymnasium(env_id: str) -> None:
    build, names, states, tolerances = CLASSIC[env_id]
    oracle = gym.make(env_id).unwrapped
    actions = actions_for(oracle.action_space)
    expected = [oracle_step(oracle, state, action) for state, action in zip(states, actions, strict=True)]
    after, obs, rewards, terminated = (np.array(values) for values in zip(*expected, strict=True))
    for dtype, tolerance in zip((torch.float64, torch.float32), tolerances, strict=True):
        env = build(dtype=dtype)
        state = {name: torch.tensor(column, dtype=dtype) for name, column in zip(names, states.T, strict=True)}
        new, found_rewards, found_terminated = env.step(state, torch.from_numpy(actions), keys(ROWS))
        error = np.abs(np.stack([new[name].double().numpy() for name in names], 1) - after)
        # An angle at the border of its range may come out as pi in one and -pi in the other.
        error = np.minimum(error, np.abs(error - 2 * np.pi))
        assert (error / np.maximum(1.0, np.abs(after))).max() <= tolerance
        if dtype == torch.float64:
            assert np.array_equal(found_terminated.numpy(), terminated)
            assert np.allclose(found_rewards.numpy(), rewards, rtol=1e-14, atol=1e-14)
            assert np.allclose(env.observe(new).numpy(), obs, rtol=1e-6, atol=1e-6)


def test_one_step_of_catch_equals_the_tiny_environment() -> None:
    oracle, env = Catch(), TensorCatch()
    cases = list(itertools.product(range(7), range(8), range(8), range(3)))  # row, column, paddle, action
    expected = []
    for row, column, paddle, action in cases:
        oracle._row, oracle._column, oracle._paddle = row, column, paddle
        expected.append(oracle.step(np.int64(action)))
    row, column, paddle, action = torch.tensor(cases).T
    new, rewards, terminated = env.step({"row": row, "column": column, "paddle": paddle}, action, keys(len(cases)))
    assert np.array_equal(env.observe(new).numpy(), np.stack([step[0] for step in expected]))
    assert rewards.tolist() == [step[1] for step in expected]
    assert terminated.tolist() == [step[2] for step in expected]


@pytest.mark.parametrize("env_id", OWN_IDS)
def test_spaces_and_start_states_are_those_of_the_oracle(env_id: str) -> None:
    name = env_id.removeprefix("tensor/")
    oracle = gym.make({"Catch-v0": "rl_training/Catch-v0"}.get(name, name))
    env = tensor_env_of(make_env_factory(env_id))
    assert (env.observation_space, env.action_space) == (oracle.observation_space, oracle.action_space)
    spec = oracle.spec
    assert spec is not None
    assert env.max_episode_steps == spec.max_episode_steps
    drawn = np.stack([oracle.reset(seed=seed)[0] for seed in range(300)]).astype(np.float64)
    found = env.observe(env.first(keys(3_000))).double().numpy()
    spread = drawn.std(0) / np.sqrt(len(drawn)) + found.std(0) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - drawn.mean(0)) <= 5 * spread + 1e-9).all()
    assert (np.abs(found.std(0) - drawn.std(0)) <= 0.15 * drawn.std(0) + 0.05 * np.abs(drawn).max()).all()


@pytest.mark.parametrize(("env_id", "episodes"), [("CartPole-v1", 400), ("Pendulum-v1", 60)])
def test_a_random_policy_earns_what_it_earns_in_gymnasium(env_id: str, episodes: int) -> None:
    oracle, generator = gym.make(env_id), np.random.default_rng(0)
    expected = []
    for episode in range(episodes):
        oracle.reset(seed=episode)
        ret, ended = 0.0, False
        while not ended:
            drawn = generator.integers(2) if env_id == "CartPole-v1" else generator.uniform(-2, 2, 1)
            _, reward, terminated, truncated, _ = oracle.step(drawn)
            ret, ended = ret + float(reward), terminated or truncated
        expected.append(ret)
    env: TensorEnv = CartPole() if env_id == "CartPole-v1" else Pendulum()
    envs = TensorEnvs(env, episodes, seed=5)
    state, found = envs.start(), torch.full((episodes,), torch.nan)
    for step in range(210):
        uniform = keys(episodes, step=step).uniform(9, 1)
        actions = (uniform[:, 0] < 0.5).long() if env_id == "CartPole-v1" else 4.0 * uniform - 2.0
        state, result = envs.step(state, actions)
        found = torch.where(result.ended & found.isnan(), result.episode_return, found)
    assert not found.isnan().any()
    spread = np.std(expected) * np.sqrt(2.0 / episodes)
    assert abs(float(found.mean()) - np.mean(expected)) < 3.5 * spread


# ----------------------------------------------------------------------------------------------- episodes of many rows


class Walk:
    """Walk from 0 towards `goal`, one place per step with action 1; a step in the wind of the keys' luck counts double.

    Terminates at the goal with reward 1; truncated after 5 steps.
    """

    max_episode_steps: int | None = 5

    def __init__(self, goal: int = 4) -> None:
        self.observation_space: gym.Space[Any] = Box(0.0, np.inf, (2,), np.float32)
        self.action_space: gym.Space[Any] = Discrete(2)
        self._goal = goal

    def first(self, keys: Keys) -> State:
        return {"place": torch.zeros_like(keys.seed), "luck": keys.below(0, 3)}

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        place = state["place"] + actions * (1 + (keys.below(1, 4) == 0))
        arrived = place >= self._goal
        return {"place": place, "luck": state["luck"]}, arrived.float(), arrived

    def observe(self, state: State) -> Tensor:
        return torch.stack((state["place"], state["luck"]), 1).float()


def play(envs: TensorEnvs, steps: int) -> list[Any]:
    state, results = envs.start(), []
    for step in range(steps):
        actions = keys(envs.num_envs, step=step).below(7, 2)
        state, result = envs.step(state, actions)
        results.append((envs.observe(state), result))
    return results


def test_final_observation_and_truncation_are_those_of_single_episodes() -> None:
    env, num_envs, steps = Walk(), 6, 40
    found = play(TensorEnvs(env, num_envs, seed=3), steps)
    seen = {"terminated": 0, "truncated": 0}
    for row in range(num_envs):
        one = keys(num_envs)
        episode, elapsed, ret = 0, 0, 0.0

        def key(episode: int, step: int, one: Keys = one, row: int = row) -> Keys:
            return Keys(one.seed[[row]], one.env[[row]], torch.tensor([episode]), torch.tensor([step]))

        state = env.first(key(0, 0))
        for step in range(steps):
            elapsed += 1
            actions = keys(num_envs, step=step).below(7, 2)[[row]]
            state, reward, terminated = env.step(state, actions, key(episode, elapsed))
            ret += float(reward)
            truncated = elapsed == 5 and not terminated
            obs, result = found[step]
            assert torch.equal(result.final_obs[row], env.observe(state)[0])
            assert (bool(result.terminated[row]), bool(result.truncated[row])) == (bool(terminated), truncated)
            assert (float(result.episode_return[row]), int(result.episode_length[row])) == (ret, elapsed)
            seen["terminated"] += bool(terminated)
            seen["truncated"] += truncated
            if terminated or truncated:
                episode, elapsed, ret = episode + 1, 0, 0.0
                state = env.first(key(episode, 0))
            assert torch.equal(obs[row], env.observe(state)[0])
            assert torch.equal(result.obs[row], obs[row])
    assert min(seen.values()) > 3


class Addressed:
    """An environment whose seeds are the numbers of a row and of its episode: those of `TensorEnvs` with seed 3."""

    def __init__(self, env: TensorEnv) -> None:
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.max_episode_steps, self.observe, self._env = env.max_episode_steps, env.observe, env

    def first(self, keys: Keys) -> State:
        return self._env.first(self._keys(keys))

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        return self._env.step(state, actions, self._keys(keys))

    def _keys(self, keys: Keys) -> Keys:
        return Keys(torch.full_like(keys.seed, 3), keys.seed // 1_000, keys.seed % 1_000, keys.step)


class Addresses(Streams):
    def episode_seed(self, env: int, episode: int) -> int:
        return 1_000 * env + episode


class Acts(ActsOnly):
    """Returns the given actions."""

    def __init__(self, actions: np.ndarray) -> None:
        self._actions = actions

    def act(self, obs: np.ndarray, *, step: int = 0, explore: bool = False, **_: Any) -> ActResult:
        return ActResult(self._actions)


LIMITS = {"tensor/CartPole-v1": 20, "tensor/Catch-v0": 7, "walk": 5}
TERMINATES = {"walk", "tensor/CartPole-v1", "tensor/Catch-v0"}  # within so few steps
TERMINATES |= {env_id for env_id in TENSOR_ENVS if "Breakout" in env_id}


@pytest.mark.parametrize(
    ("env_id", "limit"),
    [(env_id, LIMITS.get(env_id, 12 if "MinAtar" in env_id else 9)) for env_id in (*TENSOR_ENVS, "walk")],
)
def test_transitions_are_those_that_the_collector_brings(env_id: str, limit: int) -> None:
    env: TensorEnv = Walk() if env_id == "walk" else tensor_env_of(make_env_factory(env_id))
    env.max_episode_steps = limit
    num_envs, ends = 5, np.zeros(2)
    envs, to_env = TensorEnvs(env, num_envs, seed=3), to_env_tensors(env.action_space, torch.device("cpu"))
    collector = Collector(SyncEnvs(lambda: as_gym_env(Addressed(env)), num_envs), Addresses(0))
    collector.start()
    state = envs.start()
    for step in range(40):
        drawn, choices = keys(num_envs, step=step), getattr(env.action_space, "n", 0)
        actions = drawn.below(7, int(choices)) if choices else 2.0 * drawn.uniform(7, 1) - 1.0
        expected = collector.step(Acts(actions.numpy()), step=step * num_envs)
        obs = envs.observe(state)
        state, result = envs.step(state, to_env(actions))
        for name, found in (("obs", obs), ("next_obs", result.final_obs), ("rewards", result.rewards)):
            assert np.allclose(found.numpy(), expected[name], rtol=1e-5, atol=1e-5), name
        # At a termination in the last step that is allowed, Gymnasium sets both flags.
        truncated = expected["truncated"] & ~expected["terminated"]
        assert np.array_equal(result.terminated.numpy(), expected["terminated"])
        assert np.array_equal(result.truncated.numpy(), truncated)
        ends += expected["terminated"].sum(), truncated.sum()
    assert ends[0] > 3 or env_id not in TERMINATES
    assert ends[1] > 3 or env_id == "tensor/Catch-v0"


def one_step(envs: TensorEnvs) -> Callable[[State, Tensor], tuple[State, State]]:
    """Return the step of these environments from drawn numbers, (rows,) words; the transition is a dict."""
    to_env = to_env_tensors(envs.env.action_space, torch.device("cpu"))
    choices = int(getattr(envs.env.action_space, "n", 0))

    def step(state: State, words: Tensor) -> tuple[State, State]:
        new, result = envs.step(state, to_env((words % choices) if choices else (words[:, None] / 2**31 - 1.0).float()))
        return new, {field.name: getattr(result, field.name) for field in fields(result)}

    return step


def advanced(envs: TensorEnvs, state: State, steps: range) -> State:
    for number in steps:
        state, _ = one_step(envs)(state, keys(envs.num_envs, step=number).words(7, 1)[:, 0])
    return state


def limited(env_id: str) -> TensorEnv:
    """Return an environment whose episodes end after at most 13 steps."""
    env = tensor_env_of(make_env_factory(env_id))
    env.max_episode_steps = 13
    return env


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_a_row_does_not_depend_on_how_many_there_are(env_id: str) -> None:
    few, many = (TensorEnvs(limited(env_id), rows, seed=1) for rows in (3, 37))
    found, expected = (advanced(envs, envs.start(), range(30)) for envs in (many, few))
    assert_identical({name: value[:3] for name, value in found.items()}, expected)


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_a_row_does_not_depend_on_how_many_members_there_are(env_id: str) -> None:
    members = [TensorEnvs(limited(env_id), 3, seed=seed) for seed in (1, 2)]
    alone = [envs.start() for envs in members]
    together = stack_states(alone)
    step, steps = torch.func.vmap(one_step(members[0]), randomness="error"), [one_step(envs) for envs in members]
    for number in range(20):
        words = [keys(3, episode=member, step=number).words(7, 1)[:, 0] for member in range(2)]
        together, results = step(together, torch.stack(words))
        for member in range(2):
            alone[member], result = steps[member](alone[member], words[member])
            assert_identical({name: value[member] for name, value in together.items()}, alone[member])
            assert_identical({name: value[member] for name, value in results.items()}, result)


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_a_state_that_was_saved_in_the_middle_of_episodes_continues_bit_for_bit(env_id: str, tmp_path: Path) -> None:
    # Its own seed does not matter to the other group: the state holds it.
    one, other = (DeviceCollector(TensorEnvs(limited(env_id), 4, seed=seed)) for seed in (2, 99))
    one.start()
    one.state = advanced(one.envs, one.state, range(17))
    assert (one.state["elapsed"] > 0).any()
    tensors, values = flatten(one.state_dict())
    write_tensors(tmp_path / "envs.safetensors", tensors)
    other.load_state_dict(unflatten(read_tensors(tmp_path / "envs.safetensors"), values))
    whole, resumed = (advanced(each.envs, each.state, range(17, 30)) for each in (one, other))
    assert_identical(resumed, whole)
    assert (whole["episode"] > 1).all()


@pytest.mark.compile
def test_compiled_steps_equal_eager_ones_to_a_millionth() -> None:
    groups = {env_id: TensorEnvs(limited(env_id), 50, seed=3) for env_id in OWN_IDS}
    begun = {env_id: advanced(envs, envs.start(), range(10)) for env_id, envs in groups.items()}

    def step_all(state: State, batch: State) -> tuple[State, State]:
        new: State = {}
        results: State = {}
        for env_id, envs in groups.items():
            own = {name: state[f"{env_id}/{name}"] for name in begun[env_id]}
            after, result = one_step(envs)(own, batch["words"])
            new |= {f"{env_id}/{name}": value for name, value in after.items() if value is not own[name]}
            results |= {f"{env_id}/{name}": value for name, value in result.items()}
        return new, results

    before = {f"{env_id}/{name}": value for env_id, own in begun.items() for name, value in own.items()}
    words = {"words": keys(50, step=10).words(7, 1)[:, 0]}
    found: dict[str, tuple[State, State]] = {}
    for mode in ("eager", "compile"):
        state = {name: value.clone() for name, value in before.items()}
        found[mode] = state, accelerate(step_all, mode, "environment step")(state, words)
    for ours, theirs in zip(found["compile"], found["eager"], strict=True):
        for name, value in theirs.items():
            if value.is_floating_point():
                torch.testing.assert_close(ours[name], value, rtol=1e-6, atol=1e-6)
            else:
                assert torch.equal(ours[name], value), name


# ------------------------------------------------------------------------------------ as a Gymnasium environment


@pytest.mark.parametrize("env_id", OWN_IDS)
def test_the_gymnasium_environment_repeats_its_episodes_and_restores_its_state(env_id: str) -> None:
    factory = make_env_factory(env_id)
    assert check_replay(factory, seed=1).repeats
    envs, other = make_envs(factory), make_envs(factory)
    obs, _ = envs.reset([0], [4])
    other.reset([0], [9])
    space = envs.action_space
    space.seed(0)
    actions = [np.array([space.sample()]) for _ in range(5)]
    for action in actions[:3]:
        envs.step(action)
    state = envs.get_state(0)
    assert state is not None
    other.set_state(0, state)
    for action in actions[3:]:
        one, two = envs.step(action), other.step(action)
        assert np.array_equal(one.obs, two.obs)
        assert one.obs.dtype == obs.dtype == space.dtype or one.obs.dtype == envs.observation_space.dtype


def test_the_time_limit_truncates() -> None:
    env = as_gym_env(Walk(goal=100))
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]


def test_settings_of_the_environment_reach_it() -> None:
    env = tensor_env_of(make_env_factory("tensor/Catch-v0", {"size": 24, "max_episode_steps": 3}))
    assert env.observation_space.shape == (24, 24, 1)
    assert env.max_episode_steps == 3


def stroll(steps: int | None = 4) -> TensorEnv:
    env = Walk(goal=100)
    env.max_episode_steps = steps
    return env


Walks: TypeAlias = Callable[..., Env]  # from the arguments of `gym.make`


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Walks]]:
    """Register a tensor environment, until the end of the test; return what builds it by `gym.make`."""

    monkeypatch.setattr("rl_training.envs.tensor_env._limited_by_class", set())

    def register(tensor_env: Callable[..., TensorEnv] | str, **settings: Any) -> Walks:
        register_tensor_env("mine/Walk-v0", tensor_env, **settings)
        return partial(gym.make, "mine/Walk-v0")

    yield register
    del gym.registry["mine/Walk-v0"]


def length(env: Env) -> int:
    """Count the steps of an episode that does not move."""
    env.reset(seed=0)
    return next(step for step in range(1, 20) if any(env.step(0)[2:4]))


@pytest.mark.parametrize(
    ("tensor_env", "settings", "expected"),
    [
        (Walk, {}, 5),
        (f"{__name__}:Walk", {}, 5),
        (stroll, {}, 4),
        (partial(stroll, 3), {}, 3),
        (f"{__name__}:stroll", {"env_kwargs": {"steps": 7}}, 7),
        (Walk, {"max_episode_steps": 2}, 2),
        (stroll, {"max_episode_steps": 8}, 8),
    ],
)
def test_gymnasium_applies_the_time_limit_that_the_environment_states(
    tensor_env: Callable[..., TensorEnv] | str,
    settings: dict[str, Any],
    expected: int,
    registered: Callable[..., Walks],
) -> None:
    make = registered(tensor_env, **settings)
    env = make()
    assert env.spec is not None
    (of_vector,) = gym.make_vec("mine/Walk-v0", num_envs=1).envs  # type: ignore[attr-defined]
    for one in (env, gym.make(env.spec), of_vector):
        assert (length(one), tensor_env_in(one).max_episode_steps) == (expected, expected)


@pytest.mark.parametrize(("limit", "expected"), [(3, 3), (9, 9), (-1, None)])
def test_the_argument_of_make_replaces_the_time_limit_of_the_class(
    limit: int, expected: int | None, registered: Callable[..., Walks]
) -> None:
    assert tensor_env_in(registered(Walk)(goal=100, max_episode_steps=limit)).max_episode_steps == expected


def test_each_environment_has_the_time_limit_of_its_arguments(registered: Callable[..., Walks]) -> None:
    make = registered(stroll)
    assert [length(make(steps=steps)) for steps in (3, 6)] == [3, 6]
    assert length(make(steps=3, max_episode_steps=2)) == 2
    assert tensor_env_in(make(steps=None)).max_episode_steps is None


def test_an_environment_with_another_time_limit_than_its_class_is_rejected(registered: Callable[..., Walks]) -> None:
    class Longer(Walk):
        def __init__(self) -> None:
            super().__init__()
            self.max_episode_steps = 7

    with pytest.raises(ConfigError, match=r"max_episode_steps of mine/Walk-v0 is 7, but its class has 5, .*; pass"):
        registered(Longer)()


def test_settings_of_a_file_cannot_name_code_to_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    env_kwargs = {"tensor_env": "os:mkdir", "path": str(target)}
    with pytest.raises(ConfigError, match=r"env_kwargs\.tensor_env must not be set: 'os:mkdir'"):
        make_env_factory("tensor/CartPole-v1", env_kwargs=env_kwargs)()
    assert not target.exists()


def test_a_misspelt_setting_is_refused_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match="tensor/Catch-v0 has no setting 'sise'; did you mean 'size'"):
        make_env_factory("tensor/Catch-v0", {"sise": 24})


def test_a_tensor_environment_behind_wrappers_is_refused() -> None:
    wrapped = make_env_factory("tensor/CartPole-v1", {}, ["gymnasium.wrappers:FlattenObservation"])
    with pytest.raises(ConfigError, match="without wrappers, but this one has FlattenObservation"):
        tensor_env_of(wrapped)
    with pytest.raises(ConfigError, match=r"needs a tensor environment .*, but this is CartPoleEnv"):
        tensor_env_of(make_env_factory("CartPole-v1"))


# ------------------------------------------------------------------------------------------------------- the test kit


@pytest.mark.parametrize(
    "env", [CartPole(), Pendulum(), Acrobot(), MountainCar(), MountainCarContinuous(), TensorCatch(), Walk()]
)
def test_the_kit_accepts_good_environments(env: TensorEnv) -> None:
    check_tensor_env(env, num_steps=12)


def breaks(name: str, function: Callable[..., Any], env: TensorEnv | None = None) -> TensorEnv:
    """Return a `Walk`, or `env`, of which one function is replaced; it is called with the original one first."""
    env = env or Walk()
    original = getattr(env, name)
    setattr(env, name, lambda *arguments: function(original, *arguments))
    return env


def step_of(change: Callable[[State, Tensor, Tensor], Any]) -> TensorEnv:
    return breaks("step", lambda step, state, actions, keys: change(*step(state, actions, keys)))


def resets_itself(step: Any, state: State, actions: Tensor, keys: Keys) -> Any:
    new, rewards, terminated = step(state, actions, keys)
    return reset_where(terminated, Walk().first(keys), new), rewards, terminated


def reset_where(ended: Tensor, first: State, after: State) -> State:
    return {name: torch.where(ended, first[name], value) for name, value in after.items()}


def resets_with(first: Callable[[Keys], State], env: TensorEnv | None = None) -> TensorEnv:
    """Return an environment (default: a `Walk`) whose `step` starts the next episode with `first`."""

    def step(original: Any, state: State, actions: Tensor, keys: Keys) -> Any:
        after, rewards, terminated = original(state, actions, keys)
        return reset_where(terminated, first(keys), after), rewards, terminated

    return breaks("step", step, env)


def next_episode(keys: Keys) -> Keys:
    return Keys(keys.seed, keys.env, keys.episode + 1, keys.step)


def calls_its_own_first() -> TensorEnv:
    env = Walk(goal=1_000)  # no episode terminates, and still it is found
    return resets_with(lambda keys: env.first(keys), env)


def keeps_a_part() -> TensorEnv:
    """Return a `Walk` that resets itself but for its luck."""
    return step_of(lambda s, r, t: (s | {"place": torch.where(t, 0, s["place"])}, r, t))


def start_of_mountain_car(keys: Keys) -> State:
    position = 0.2 * keys.uniform(7, 1)[:, 0] - 0.6
    return {"position": position, "speed": torch.zeros_like(position)}


def changes_in_place(step: Any, state: State, actions: Tensor, keys: Keys) -> Any:
    result = step(state, actions, keys)
    state["place"].add_(1)
    return result


class Meeting(Walk):
    """Start at any of five places, end at place 2: the observation of the end could be one of a start."""

    def first(self, keys: Keys) -> State:
        return {"place": keys.below(0, 5), "luck": keys.below(1, 3)}

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        place = (state["place"] + 2 * actions - 1).clamp(0, 4)
        return state | {"place": place, "luck": keys.below(1, 3)}, (place == 2).float(), place == 2


class Contexts(Walk):
    """Show another number in each step, drawn as that of a start; end by chance."""

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        ended = keys.below(2, 4) == 0
        return {"place": state["place"], "luck": keys.below(1, 3)}, actions.float(), ended


class Counting(Walk):
    """Show the place alone, as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Discrete(9)

    def observe(self, state: State) -> Tensor:
        return state["place"]


COUNT, GENERATOR = iter(range(10_000)), np.random.default_rng(0)
BAD: dict[str, tuple[Callable[[], TensorEnv], str]] = {
    "item": (lambda: step_of(lambda s, r, t: (s, r * r.sum().item(), t)), "waits for the value"),
    "if": (lambda: step_of(lambda s, r, t: (s, r + 1.0, t) if t.any() else (s, r, t)), "waits for the value"),
    "nonzero": (lambda: step_of(lambda s, r, t: (s, r * len(t.nonzero()), t)), "waits for the value"),
    "numpy": (lambda: step_of(lambda s, r, t: (s, torch.from_numpy(r.numpy()), t)), "waits for the value"),
    "device": (lambda: step_of(lambda s, r, t: (s, r + torch.zeros(len(r)), t)), "fixed device"),
    "state dtype": (lambda: step_of(lambda s, r, t: (s | {"place": s["place"].float()}, r, t)), "changes the names"),
    "state shape": (lambda: step_of(lambda s, r, t: (s | {"luck": s["luck"][:, None]}, r, t)), "changes the names"),
    "state names": (lambda: step_of(lambda s, r, t: (s | {"more": s["luck"]}, r, t)), "changes the names"),
    "reward dtype": (lambda: step_of(lambda s, r, t: (s, r.long(), t)), "rewards of shape .* and a float dtype"),
    "reward shape": (lambda: step_of(lambda s, r, t: (s, r[:, None], t)), r"rewards of shape \(rows,\)"),
    "terminated": (lambda: step_of(lambda s, r, t: (s, r, t.float())), "terminated of shape .* dtype bool"),
    "obs dtype": (lambda: breaks("observe", lambda observe, state: observe(state).double()), "space declares"),
    "obs shape": (lambda: breaks("observe", lambda observe, state: observe(state)[:, :1]), "space declares"),
    "obs range": (lambda: breaks("observe", lambda observe, state: observe(state) - 9.0), "outside of Box"),
    "torch generator": (lambda: step_of(lambda s, r, t: (s, r + torch.rand_like(r), t)), "draws from a generator"),
    "torch generator in first": (
        lambda: breaks("first", lambda first, keys: first(keys) | {"luck": torch.randint(3, keys.seed.shape)}),
        "draws from a generator",
    ),
    "torch generator in observe": (
        lambda: breaks("observe", lambda observe, state: observe(state) + torch.rand(2)),
        "draws from a generator",
    ),
    "generator of its own": (
        lambda: step_of(lambda s, r, t: (s, r + float(GENERATOR.random()), t)),
        "another result for the same",
    ),
    "numpy generator": (
        lambda: step_of(lambda s, r, t: (s, r + float(np.random.rand()), t)),
        "draws from a global generator",
    ),
    "python generator": (lambda: step_of(lambda s, r, t: (s, r + random.random(), t)), "draws from a global generator"),
    "hidden state": (
        lambda: step_of(lambda s, r, t: (s | {"luck": s["luck"] + next(COUNT)}, r, t)),
        "another result for the same",
    ),
    "in place": (lambda: breaks("step", changes_in_place), "changes the tensors of the state"),
    "in place in observe": (
        lambda: breaks("observe", lambda observe, state: observe(state | {"luck": state["luck"].add_(1)})),
        "changes the tensors of the state",
    ),
    "rows": (
        lambda: step_of(lambda s, r, t: (s | {"luck": s["luck"] + s["place"].sum()}, r, t)),
        "rows that depend on other rows",
    ),
    "rows of rewards": (
        lambda: step_of(lambda s, r, t: (s, r - s["place"].sum(), t)),
        "rows that depend on other rows",
    ),
    "rows of observations": (
        lambda: breaks("observe", lambda observe, state: observe(state) + state["place"].max()),
        "rows that depend on other rows",
    ),
    "rows of first": (
        lambda: breaks("first", lambda first, keys: first(keys) | {"luck": torch.full_like(keys.env, len(keys.env))}),
        "rows that depend on other rows",
    ),
    "final observation": (lambda: breaks("step", resets_itself), "the final observation is lost"),
    "first of the next episode": (
        lambda: resets_with(lambda keys: Walk().first(next_episode(keys))),
        "the final observation is lost",
    ),
    "start on another lane": (
        lambda: resets_with(lambda keys: {"place": torch.zeros_like(keys.seed), "luck": keys.below(5, 3)}),
        "the final observation is lost",
    ),
    "reset of a part": (keeps_a_part, "the final observation is lost"),
    "start of a pole": (
        lambda: resets_with(lambda keys: CartPole().first(next_episode(keys)), CartPole()),
        "the final observation is lost",
    ),
    "start of a ball": (
        lambda: resets_with(lambda keys: TensorCatch().first(next_episode(keys)), TensorCatch()),
        "the final observation is lost",
    ),
    "start of a number": (
        lambda: resets_with(lambda keys: Counting().first(keys), Counting()),
        "the final observation is lost",
    ),
    "calls first": (calls_its_own_first, "calls `first` inside of `step`"),
}


@pytest.mark.parametrize("fault", BAD)
def test_the_kit_refuses_a_bad_environment_with_the_reason(fault: str) -> None:
    build, reason = BAD[fault]
    with pytest.raises(EnvError, match=rf"the tensor environment \w+ .*{reason}"):
        check_tensor_env(build(), num_steps=12)


def test_the_kit_finds_the_end_of_a_task_that_hardly_ever_ends_by_chance() -> None:
    env = resets_with(start_of_mountain_car, tensor_env_of(make_env_factory("tensor/MountainCar-v0")))
    with pytest.raises(EnvError, match="the final observation is lost"):
        check_tensor_env(env, num_steps=20)


@pytest.mark.parametrize(("env", "warns"), [(Pendulum(), True), (Walk(), False)])
def test_the_kit_reports_that_it_saw_no_episode_end(
    env: TensorEnv, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    check_tensor_env(env, num_steps=12)
    assert ("keeps the final observation was not tested: 0 steps of random play ended" in caplog.text) == warns


def test_the_kit_leaves_the_environment_as_it_was() -> None:
    env, changed = Walk(), breaks("first", lambda first, keys: first(keys))
    before = dict(vars(env)), dict(vars(changed))
    for one in (env, changed):
        check_tensor_env(one, num_steps=12)
    assert (vars(env), vars(changed)) == before


@pytest.mark.parametrize("build", [Meeting, Contexts, Counting])
def test_the_kit_accepts_ends_that_resemble_a_start(build: Callable[[], TensorEnv]) -> None:
    check_tensor_env(build(), num_steps=12)


@pytest.mark.parametrize(
    "space",
    [Discrete(3, start=-1), MultiBinary(4), MultiDiscrete([2, 5], start=[1, -2]), Box(-2.0, 3.0, (2,), np.float32)],
)
def test_the_kit_plays_actions_of_the_space(space: gym.Space[Any]) -> None:
    drawn: list[Tensor] = []

    def step(original: Any, state: State, actions: Tensor, keys: Keys) -> Any:
        if type(actions) is Tensor and actions.device.type == "cpu":
            drawn.append(actions)
        return original(state, torch.ones_like(keys.seed), keys)

    env = breaks("step", step)
    env.action_space = space
    check_tensor_env(env, num_steps=12)
    played = torch.cat(drawn).numpy()
    assert all(space.contains(action) for action in played)
    low, high = action_bounds(space)
    if isinstance(space, Box):
        assert played.min() < -1.8
        assert played.max() > 2.8
    else:
        assert np.array_equal(played.min(0), np.broadcast_to(low, space.shape or ()))
        assert np.array_equal(played.max(0), np.broadcast_to(high, space.shape or ()))


def test_the_kit_names_what_is_missing() -> None:
    class Nothing:
        max_episode_steps = None

    with pytest.raises(EnvError, match="Nothing has no observation_space, action_space, first, step, observe"):
        check_tensor_env(Nothing())  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ training through them


@pytest.mark.parametrize(
    ("algo", "env_id"),
    [("dqn", "tensor/CartPole-v1"), ("sac", "tensor/Pendulum-v1"), ("dqn", "tensor/Catch-v0")],
)
def test_an_ordinary_algorithm_trains_and_evaluates(algo: str, env_id: str, tmp_path: Path) -> None:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.trainer import RunOptions, train

    config = TrainConfig(
        algo=algo,
        env_id=env_id,
        total_timesteps=24,
        num_envs=2,
        output_dir=tmp_path,
        acceleration="eager",
        eval_episodes=1,
        max_episode_steps=9,
        tensorboard=False,
        algo_kwargs={"learning_starts": 10, "batch_size": 4, "buffer_capacity": 100},
    )
    result = train(config, RunOptions(show_progress=False))
    assert result.step == 24
    assert result.eval_episodes[0].length <= 9
