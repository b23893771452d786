"""Environments in this process: who resets, what is checked, what the tiny ones are worth."""

import contextlib
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.utils.env_checker import check_env

from rl_training.core.spaces import observation_field
from rl_training.envs.factory import TINY_ENVS, RegisteredEnv, make_env_factory, make_envs, register_tiny_envs
from rl_training.envs.resumable import check_replay
from rl_training.envs.tiny import (
    Catch,
    Chain,
    ContinuousCatch,
    Identity,
    Lottery,
    Masked,
    Misbehaving,
    TinyDict,
    TinyImage,
    TwoArmedBandit,
)
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, EnvError, SpaceError

RIGHT = 1


class OneBuffer(gym.Env[np.ndarray, np.ndarray]):
    """Returns the same array each time, and pays for the difference to the action before."""

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self._obs = np.zeros(1, np.float32)
        self._last_action = np.zeros(1, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._obs[:] = 0
        return self._obs, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(action[0] - self._last_action[0])
        self._last_action = action
        self._obs += 1
        return self._obs, reward, False, False, {"kept": self._obs[0]}


class OldApi(gym.Env[np.ndarray, np.int64]):
    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(0, 1, (1,), np.float32), Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> Any:
        return np.zeros(1, np.float32), 0.0, False, {}


# ------------------------------------------------------------------------------------------------------- SyncEnvs


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros(1, np.float32), "env 0 must return 2 values from reset .*, but returned ndarray, at the reset of"),
        ((np.zeros(1, np.float32), None), "env 0 must return a dict as the info of reset, but returned None, at the"),
    ],
)
def test_a_reset_of_another_api_is_refused_by_name(result: Any, message: str) -> None:
    class Other(OldApi):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return result

    with SyncEnvs(Other) as envs, pytest.raises(EnvError, match=message):
        envs.reset([0], [0])


def test_reset_touches_only_the_named_envs() -> None:
    envs = SyncEnvs(Misbehaving, 3)
    envs.reset([0, 1, 2], [0, 0, 0])
    envs.step(np.zeros(3, np.int64))
    obs, infos = envs.reset([2, 0], [0, 0])
    np.testing.assert_array_equal(obs[:, 0], [0, 0])  # the steps of the episode
    assert infos == [{}, {}]
    result = envs.step(np.zeros(3, np.int64))
    np.testing.assert_array_equal(result.obs[:, 0], [1, 2, 1])


def test_the_last_step_of_an_episode_gives_its_true_successor() -> None:
    envs = SyncEnvs(lambda: Chain(num_states=3))
    envs.reset([0], [0])
    envs.step(np.array([RIGHT]))
    last = envs.step(np.array([RIGHT]))
    np.testing.assert_array_equal(last.obs, [[0, 0, 1]])
    assert (last.rewards[0], last.terminated[0], last.truncated[0]) == (1.0, True, False)


def test_result_has_the_declared_dtypes_and_shapes() -> None:
    envs = SyncEnvs(RegisteredEnv("Pendulum-v1"), 2)
    obs, _ = envs.reset([0, 1], [1, 2])
    result = envs.step(np.zeros((2, 1), np.float32))
    assert obs.dtype == result.obs.dtype == np.float32
    assert result.rewards.dtype == np.float64
    assert result.terminated.dtype == result.truncated.dtype == np.bool_
    assert (result.obs.shape, result.rewards.shape, len(result.infos)) == ((2, 3), (2,), 2)


def test_results_are_not_overwritten_by_an_env_that_reuses_its_array() -> None:
    envs = SyncEnvs(OneBuffer)
    first, _ = envs.reset([0], [0])
    second = envs.step(np.zeros((1, 1), np.float32)).obs
    envs.step(np.zeros((1, 1), np.float32))
    assert (first.item(), second.item()) == (0.0, 1.0)


def test_an_env_that_keeps_its_action_does_not_see_the_caller_reuse_the_array() -> None:
    envs = SyncEnvs(OneBuffer)
    envs.reset([0], [0])
    actions = np.full((1, 1), 0.25, np.float32)
    envs.step(actions)
    actions[:] = 0.75
    assert envs.step(actions).rewards[0] == 0.5


@pytest.mark.parametrize("steps_before", [0, 10])
def test_step_is_refused_before_the_reset_and_after_the_end(steps_before: int) -> None:
    envs = SyncEnvs(Misbehaving, 2)
    envs.reset([0], [0])
    for _ in range(steps_before):  # episodes are truncated after 10 steps
        envs.reset([1], [0])
        envs.step(np.zeros(2, np.int64))
    with pytest.raises(RuntimeError, match=r"must be reset before the next step") as error:
        envs.step(np.zeros(2, np.int64))
    assert not isinstance(error.value, EnvError)


def test_actions_of_the_wrong_shape_or_kind_are_refused() -> None:
    envs = SyncEnvs(RegisteredEnv("CartPole-v1"), 2)
    envs.reset([0, 1], [0, 0])
    with pytest.raises(ValueError, match=r"actions must have shape \(2,\), got \(2, 1\)"):
        envs.step(np.zeros((2, 1), np.int64))
    with pytest.raises(TypeError, match="same_kind"):
        envs.step(np.zeros(2, np.float32))
    assert envs.step(np.zeros(2, np.int32)).rewards.tolist() == [1.0, 1.0]


def test_integer_observations_are_arrays_too() -> None:
    envs = SyncEnvs(RegisteredEnv("FrozenLake-v1", {"is_slippery": False}), 2)
    obs, _ = envs.reset([0, 1], [0, 0])
    result = envs.step(np.array([2, 1]))  # right, down on a 4x4 map
    assert obs.tolist() == [0, 0]
    assert result.obs.tolist() == [1, 4]


def test_an_exception_names_env_seed_episode_and_step_and_leaves_its_traceback(tmp_path: Path) -> None:
    crash_dir = tmp_path / "crash"
    envs = SyncEnvs(lambda: Misbehaving("raise", step=2, episode=1), 2, crash_dir=crash_dir)
    envs.reset([0, 1], [5, 6], [7, 8])
    envs.reset([1], [66], [9])
    envs.step(np.zeros(2, np.int64))
    with pytest.raises(
        EnvError, match=r"^env 1 raised ValueError: misbehaving on purpose at step 2 of episode 9 \(seed 66\); see"
    ) as error:
        envs.step(np.zeros(2, np.int64))
    assert isinstance(error.value.__cause__, ValueError)
    report = (crash_dir / "env_1.txt").read_text()
    assert "at step 2 of episode 9 (seed 66)" in report
    assert "_maybe_fault" in report
    assert not (crash_dir / "env_0.txt").exists()


def test_an_exception_in_reset_counts_the_episodes_itself() -> None:
    envs = SyncEnvs(lambda: Misbehaving("raise", step=0, episode=1))
    envs.reset([0], [5])
    with pytest.raises(EnvError, match=r"^env 0 raised ValueError: .* at the reset of episode 1 \(seed 6\)$"):
        envs.reset([0], [6])


@pytest.mark.parametrize(
    ("fault", "step", "message"),
    [
        ("shape", 0, r"shape \(1,\), but its observation space Box\(.*\) declares shape \(3,\) at the reset"),
        ("shape", 2, r"shape \(1,\), but its observation space Box\(.*\) declares shape \(3,\) at step 2"),
        ("dtype", 0, r"dtype int64, but its observation space Box\(.*\) declares float32 at the reset"),
        ("dtype", 2, r"dtype int64, but its observation space Box\(.*\) declares float32 at step 2"),
    ],
)
def test_observations_that_the_space_does_not_declare_are_refused(fault: Any, step: int, message: str) -> None:
    envs = SyncEnvs(lambda: Misbehaving(fault, step=step))
    with pytest.raises(EnvError, match=f"^env 0 returned an observation of {message}"):  # noqa: PT012
        envs.reset([0], [0])
        for _ in range(2):
            envs.step(np.zeros(1, np.int64))


class Returning(gym.Env[Any, Any]):
    """Returns `obs` at the reset and at the first step, with these other values; what follows is `then`."""

    def __init__(self, space: gym.Space[Any], obs: Any, *step: Any, then: Any = None) -> None:
        self.observation_space, self.action_space = space, Discrete(2)
        self._obs, self._then, self._step, self._num_steps = obs, then, step or (1.0, False, False), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._obs, {}

    def step(self, action: Any) -> Any:
        self._num_steps += 1
        return (self._obs if self._num_steps == 1 or self._then is None else self._then), *self._step, {}


FLOATS = Box(-1.0, 1.0, (2,), np.float32)
BYTES = Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize(
    ("space", "good", "bad", "message"),
    [
        (
            BYTES,
            [1, 2],
            [1, 300],
            r"an observation with the value 300, but uint8 holds 0 to 255 \(its observation spac",
        ),
        (BYTES, [1, 2], np.array([-1, 0], np.int8), "an observation with the value -1, but uint8 holds 0 to 255"),
        # Images of integers are stored as uint8, whatever their own dtype.
        (
            Box(0, 255, (3, 3, 1), np.int64),
            np.zeros((3, 3, 1), np.int64),
            np.full((3, 3, 1), 256),
            "an observation with the value 256, but uint8 holds 0 to 255",
        ),
        (Discrete(3), 2, 3, r"the observation 3, which is none of its observation space Discrete\(3\),"),
        (Discrete(3, start=5), np.int64(5), np.array(4), "the observation 4, which is none of its observation space"),
        (Discrete(3), 2, 1.0, "an observation of dtype float64"),
        (FLOATS, [0.0, 2.0], [1e300, 0.0], r"an observation with the value 1e\+300, which is too large for float32"),
        (
            Box(-1.0, 1.0, (2,), np.float64),
            [0.0, 1.0],
            np.array([0.0, -1e39]),
            r".* with the value -1e\+39, which is too large for float32",
        ),
        (FLOATS, [0.0, 1.0], ["0", "1"], "an observation of dtype <U1"),
        (FLOATS, [0.0, 1.0], [None, 1.0], "an observation of dtype object"),
        (FLOATS, [0.0, 1.0], [np.inf, 1.0], r"the observation \[inf  1.\] with values that are not finite"),
    ],
)
@pytest.mark.parametrize("at", ["the reset", "step 2"])
@pytest.mark.filterwarnings("ignore:overflow")  # of the quick check; the exact one follows
def test_observations_that_cannot_be_stored_as_they_are_are_refused(
    space: gym.Space[Any], good: Any, bad: Any, message: str, at: str
) -> None:
    envs = SyncEnvs(lambda: Returning(space, bad) if at == "the reset" else Returning(space, good, then=bad))
    with pytest.raises(EnvError, match=rf"^env 0 returned {message}.* at {at} of episode 7 \(seed 0\)"):  # noqa: PT012
        envs.reset([0], [0], [7])
        for _ in range(2):
            envs.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("space", "obs", "stored"),
    [
        (FLOATS, np.array([0.5, 0.25]), [0.5, 0.25]),  # float64
        (FLOATS, [1.0001, -3e38], [np.float32(1.0001), np.float32(-3e38)]),  # outside of the declared bounds
        (BYTES, np.array([0, 255]), [0, 255]),  # int64
        (Box(0, 10, (2,), np.uint8), np.array([11, 0], np.uint8), [11, 0]),
        (Discrete(3), np.array(2, np.int8), 2),
        (MultiBinary(2), np.array([1, 0], np.int64), [1, 0]),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_observations_that_lose_nothing_are_accepted(space: gym.Space[Any], obs: Any, stored: Any) -> None:
    envs = SyncEnvs(lambda: Returning(space, obs))
    first, _ = envs.reset([0], [0])
    result = envs.step(np.zeros(1, np.int64))
    assert first[0].tolist() == result.obs[0].tolist() == stored


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (("1.0", False, False), "the reward '1.0', which is not a number,"),
        ((None, False, False), "the reward None, which is not a number,"),
        ((np.ones(2), False, False), r"a reward of 2 numbers, array\(\[1., 1.\]\); algorithms learn"),
        ((1e300, False, False), r"the reward 1e\+300, which is too large for float32,"),
        ((-np.inf, False, False), "the reward -inf, which is not finite,"),
        ((1.0, None, False), "None as terminated, which must be true or false,"),
        ((1.0, "False", False), "'False' as terminated, which must be true or false,"),
        ((1.0, False, np.nan), "nan as truncated, which must be true or false,"),
        ((1.0, False, np.array([True, False])), r"array\(\[ True, False\]\) as truncated, which must be"),
    ],
)
def test_rewards_and_flags_of_another_kind_are_refused(step: tuple[Any, ...], message: str) -> None:
    envs = SyncEnvs(lambda: Returning(FLOATS, [0.0, 1.0], *step))
    envs.reset([0], [4])
    with pytest.raises(EnvError, match=rf"^env 0 returned {message}.* at step 1 of episode 0 \(seed 4\)"):
        envs.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("step", "values"),
    [
        ((2, 0, 1), (2.0, False, True)),
        ((np.float32(0.5), np.bool_(True), np.int64(0)), (0.5, True, False)),
        ((np.array(0.5), np.array(False), np.array([True])), (0.5, False, True)),
        ((True, False, 1.0), (1.0, False, True)),
    ],
)
def test_numbers_of_any_type_are_rewards_and_flags(step: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    envs = SyncEnvs(lambda: Returning(FLOATS, [0.0, 1.0], *step))
    envs.reset([0], [0])
    result = envs.step(np.zeros(1, np.int64))
    assert (result.rewards[0], result.terminated[0], result.truncated[0]) == values
    assert result.ended == [0]


class Exiting(Misbehaving):
    """Calls `sys.exit(0)` in one of its methods."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method
        self._exit_in("__init__")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._exit_in("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self._exit_in("step")
        return super().step(action)

    def _exit_in(self, method: str) -> None:
        if method == self._method:
            sys.exit(0)


@pytest.mark.parametrize("backend", ["local_sync", pytest.param("local_async", marks=pytest.mark.process)])
@pytest.mark.parametrize(
    ("method", "where"),
    [("__init__", "before its first"), ("reset", "at the reset of"), ("step", "at step 1 of")],
)
def test_an_env_that_calls_exit_is_an_error(method: str, where: str, backend: Any) -> None:
    with pytest.raises(EnvError, match=rf"^env 0 raised SystemExit: 0 {where} episode"):  # noqa: PT012
        envs = make_envs(lambda: Exiting(method), 1, backend=backend)
        envs.reset([0], [0])
        envs.step(np.zeros(1, np.int64))


def test_ctrl_c_inside_an_env_is_not_blamed_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Any, action: Any) -> Any:
        raise KeyboardInterrupt

    envs = SyncEnvs(Misbehaving)
    envs.reset([0], [0])
    monkeypatch.setattr(Misbehaving, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        envs.step(np.zeros(1, np.int64))


def test_messages_about_what_a_function_made_end_with_their_sentence() -> None:
    with pytest.raises(EnvError, match=r"it came from a factory that returned int 3, not a gymnasium\.Env$"):
        check_replay(lambda: 3, 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(EnvError, match=r"or set execution_backend: vector and let it take num_envs$"):
        check_replay(lambda: gym.make_vec("CartPole-v1"), 0)  # type: ignore[arg-type, return-value]


def test_a_factory_of_something_else_is_refused() -> None:
    with pytest.raises(EnvError, match=r"returned the vector environment .*; it must return a single environment"):
        SyncEnvs(lambda: gym.make_vec("CartPole-v1", num_envs=2))  # type: ignore[arg-type, return-value]
    with pytest.raises(EnvError, match=r"returned int 3, not a gymnasium.Env"):
        SyncEnvs(lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(EnvError, match="env 0 raised ZeroDivisionError: division by zero before its first episode"):
        SyncEnvs(lambda: 1 / 0)  # type: ignore[arg-type, return-value]


def test_envs_of_different_kinds_do_not_make_a_group() -> None:
    sizes = iter([3, 4])
    with pytest.raises(EnvError, match=r"env 1 has the spaces .*\(4,\).* but the group has .*\(3,\)"):
        SyncEnvs(lambda: Chain(next(sizes)), 2)


def test_spaces_that_are_not_one_array_are_refused() -> None:
    class Talks(Misbehaving):
        observation_space = gym.spaces.Text(5)  # type: ignore[assignment]

        def __init__(self) -> None:
            pass

    with pytest.raises(SpaceError, match=r"must be one array of numbers, but it is Text.*TransformObservation"):
        SyncEnvs(Talks)


def test_closing_closes_every_env_once_and_steps_are_refused_afterwards() -> None:
    closed = []

    class Closing(Misbehaving):
        def close(self) -> None:
            closed.append(self)

    with SyncEnvs(Closing, 2) as envs:
        envs.reset([0, 1], [0, 0])
    envs.close()
    assert len(closed) == 2
    with pytest.raises(RuntimeError, match="the environments are closed"):
        envs.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("error", [RuntimeError("the window is gone"), SystemExit(0)])
def test_an_error_in_close_is_a_warning(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    class Breaking(Misbehaving):
        def close(self) -> None:
            raise error

    SyncEnvs(Breaking, 2).close()
    assert caplog.messages == [f"env.close() raised {type(error).__name__}: {error}"] * 2


# -------------------------------------------------------------------------------------------------------- factory


def test_made_envs_carry_no_checker_and_know_the_time_limit() -> None:
    env = make_env_factory("CartPole-v1", {"max_episode_steps": 7})()
    assert "PassiveEnvChecker" not in str(env)
    assert env.spec is not None
    assert env.spec.max_episode_steps == 7


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "kind", "message"),
    [
        ("CartPol-v1", {}, ConfigError, "env_id: unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("Chain-v0", {}, ConfigError, "env_id: unknown environment 'Chain-v0'; did you mean 'rl_training/Chain-v0'?"),
        ("MountainCar-v9", {}, ConfigError, "did you mean 'MountainCar-v0'?"),
        ("zzz/Nothing-v0", {}, ConfigError, "env_id: unknown environment 'zzz/Nothing-v0'"),
        ("a b", {}, ConfigError, "env_id: unknown environment 'a b'"),
        ("zzz/Own-v0", {}, ConfigError, "'module:zzz/Own-v0' first imports the module that registers it"),
        ("CartPol-v1", {}, ConfigError, "'module:CartPol-v1' first imports the module that registers it"),
        ("json:Mine-v0", {}, ConfigError, "env_id: the module 'json' was imported, but registers no 'Mine-v0'"),
        ("json:CartPol-v1", {}, ConfigError, "registers no 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("no_such_module:X-v0", {}, EnvError, "No module named 'no_such_module'"),
        ("no_such_module:X-v0", {}, EnvError, f"(current folder: {Path.cwd()})"),
        (
            "rl_training/Chain-v0",
            {"num_state": 3},
            ConfigError,
            "env_kwargs: rl_training/Chain-v0 has no setting 'num_state'; did you mean 'num_states'?",
        ),
        (
            "rl_training/Chain-v0",
            {"num_states": 1},
            EnvError,
            "env_id 'rl_training/Chain-v0' with env_kwargs {'num_states': 1} could not be built: "
            "ValueError: num_states must be at least 2, got 1",
        ),
        (
            "rl_training/Misbehaving-v0",
            {"fault": "shape", "step": 1},
            EnvError,
            "env_id 'rl_training/Misbehaving-v0': the environment returned an observation of shape (1,)",
        ),
    ],
)
def test_what_cannot_be_made_is_said_by_the_name_of_the_setting(
    env_id: str, env_kwargs: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as error:
        make_env_factory(env_id, env_kwargs)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [("LunarLander-v3", "Box2D", "box2d"), ("Hopper-v5", "mujoco", "mujoco"), ("ALE/Pong-v5", "ale_py", "atari")],
)
def test_a_missing_extra_is_named_with_its_pip_command(
    monkeypatch: pytest.MonkeyPatch, env_id: str, module: str, extra: str
) -> None:
    def fail(self: RegisteredEnv) -> Any:
        raise gym.error.DependencyNotInstalled(f"{module} is not installed")

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(RegisteredEnv, "__call__", fail)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find_spec(name))
    with pytest.raises(EnvError) as error:
        make_env_factory(env_id)
    assert f"pip install 'rl-training[{extra}]'" in str(error.value)


def test_an_id_may_name_the_module_that_registers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium\ngymnasium.register('MyChain-v0', entry_point='rl_training.envs.tiny:Chain')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = make_env_factory("my_envs:MyChain-v0", {"num_states": 4})()
    assert env.observation_space.shape == (4,)
    del gym.registry["MyChain-v0"]


def test_an_env_of_the_old_api_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gym.envs.registration.EnvSpec("Old-v0", entry_point=lambda **_: OldApi())
    monkeypatch.setitem(gym.registry, "Old-v0", spec)
    with pytest.raises(EnvError, match=r"'Old-v0': the environment must return 5 values from step .*returned 4 values"):
        make_env_factory("Old-v0")


def test_factories_can_be_handed_to_another_process_and_share_no_settings() -> None:
    means = [0.0, 1.0]
    factory = pickle.loads(pickle.dumps(make_env_factory("rl_training/TwoArmedBandit-v0", {"means": means})))
    env = factory()
    env.reset(seed=0)
    assert factory.env_kwargs["means"] is not means
    assert env.step(np.int64(1))[1] == pytest.approx(1.0, abs=0.5)


def test_tiny_envs_are_registered_once() -> None:
    specs = {env_id: gym.registry[env_id] for env_id in TINY_ENVS}
    register_tiny_envs()
    assert all(gym.registry[env_id] is spec for env_id, spec in specs.items())


def test_unknown_backends_are_refused() -> None:
    message = "execution_backend must be local_sync, local_async, envpool, ray or vector, got 'remote'"
    with pytest.raises(ConfigError, match=message):
        make_envs(Chain, 1, backend="remote")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        make_envs(Chain, 0, backend="local_sync")


# ----------------------------------------------------------------------------------------------------- tiny envs


def test_optimal_q_of_the_chain_is_the_fixed_point_of_its_own_steps() -> None:
    gamma, num_states = 0.9, 4
    optimal = Chain.optimal_q(gamma, num_states)
    # gamma ** 2, gamma, 1 to the right; to the left one step is lost, at the left end none.
    np.testing.assert_allclose(optimal[:, RIGHT], [0.81, 0.9, 1.0, 0.0])
    np.testing.assert_allclose(optimal[:, 0], [0.9 * 0.81, 0.9 * 0.81, 0.9 * 0.9, 0.0])
    env = Chain(num_states)
    for state in range(num_states - 1):
        for action in range(2):
            env.reset(seed=0)
            for _ in range(state):
                env.step(np.int64(RIGHT))
            obs, reward, terminated, _, _ = env.step(np.int64(action))
            target = reward + gamma * (not terminated) * optimal[obs.argmax()].max()
            assert optimal[state, action] == pytest.approx(target)


def test_identity_pays_for_the_same_action_and_is_truncated() -> None:
    env = Identity(size=3, length=4)
    obs, _ = env.reset(seed=0)
    total, truncated, steps = 0.0, False, 0
    while not truncated:
        obs, reward, terminated, truncated, _ = env.step(obs.argmax())
        total, steps = total + reward, steps + 1
        assert not terminated
    assert (total, steps) == (4.0, 4)
    wrong = (obs.argmax() + 1) % 3
    assert env.step(wrong)[1] == 0.0


def test_continuous_identity_pays_minus_the_squared_distance() -> None:
    env = Identity(size=2, continuous=True)
    obs, _ = env.reset(seed=0)
    obs, reward, *_ = env.step(obs)
    assert reward == 0.0
    assert env.step(obs + np.float32(0.5))[1] == pytest.approx(-0.5)  # 2 * 0.5 ** 2


def test_identity_of_two_symbols_pays_for_each() -> None:
    env = Identity(size=3, actions="multidiscrete")
    assert env.action_space == MultiDiscrete([3, 3])
    obs, _ = env.reset(seed=0)
    symbols = obs.reshape(2, 3).argmax(1)
    obs, reward, *_ = env.step(symbols)
    assert reward == 1.0
    symbols = obs.reshape(2, 3).argmax(1)
    obs, reward, *_ = env.step(np.array([symbols[0], (symbols[1] + 1) % 3]))
    assert reward == 0.5
    assert env.step((obs.reshape(2, 3).argmax(1) + 1) % 3)[1] == 0.0


def test_identity_of_bits_pays_for_each() -> None:
    env = Identity(size=4, actions="multibinary")
    assert env.action_space == MultiBinary(4)
    obs, _ = env.reset(seed=0)
    obs, reward, *_ = env.step(obs.astype(np.int8))
    assert reward == 1.0
    obs, reward, *_ = env.step(np.abs(obs - [1, 0, 0, 0]))
    assert reward == 0.75
    assert set(obs) <= {0.0, 1.0}


def test_identity_with_a_box_is_the_continuous_one() -> None:
    ones, others = Identity(actions="box"), Identity(continuous=True)
    assert (ones.action_space, ones.observation_space) == (others.action_space, others.observation_space)
    np.testing.assert_array_equal(ones.reset(seed=3)[0], others.reset(seed=3)[0])
    with pytest.raises(ValueError, match="actions must be one of discrete, box, multidiscrete, multibinary, got 'all'"):
        Identity(actions="all")  # type: ignore[arg-type]


def test_bandit_arms_pay_their_means() -> None:
    env = TwoArmedBandit(means=(0.2, 0.8), noise=0.1)
    env.reset(seed=0)
    pulls = [[env.step(np.int64(arm))[1] for _ in range(400)] for arm in range(2)]
    assert np.mean(pulls, axis=1) == pytest.approx([0.2, 0.8], abs=0.02)  # 4 standard errors: 4 * 0.1 / 20
    assert env.step(np.int64(0))[2:4] == (True, False)


def test_lottery_draws_twice_and_terminates() -> None:
    env = Lottery(prizes=(1.0, 4.0))
    first, _ = env.reset(seed=0)
    obs, reward, *ends, _ = env.step(np.int64(1))
    assert (first.tolist(), obs.tolist(), ends) == ([1.0, 0.0], [0.0, 1.0], [False, False])
    assert 0.0 <= reward < 4.0
    assert env.step(np.int64(0))[2:4] == (True, False)
    coins = Lottery(prizes=(1.0, 4.0), coins=True)
    coins.reset(seed=0)
    pays = [[coins.step(np.int64(action))[1] for _ in range(400)] for action in range(2)]
    assert [sorted(set(paid)) for paid in pays] == [[0.0, 1.0], [0.0, 4.0]]
    assert np.mean(pays, axis=1) == pytest.approx([0.5, 2.0], abs=0.4)  # 4 standard errors: 4 * 2 / 20


def test_catch_is_won_by_going_below_the_ball_and_lost_elsewhere() -> None:
    env = Catch()
    caught = []
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        assert obs.shape == (16, 16, 1)
        ball, paddle = (int(np.flatnonzero(row[::2, 0])[0]) for row in (obs[0], obs[-1]))
        assert (obs[:, :, 0] > 0).sum() == 2 * 4  # a ball and a paddle of 2x2 pixels
        target = ball if seed % 2 else (ball + 4) % 8
        for step in range(7):
            obs, reward, terminated, truncated, _ = env.step(np.int64(1 + np.sign(target - paddle)))
            paddle += int(np.sign(target - paddle))
            assert (obs[2 * (step + 1), :, 0] > 0).any()
            assert (terminated, truncated) == (step == 6, False)
            assert reward == (1.0 if terminated and seed % 2 else 0.0)
        caught.append(reward)
    assert caught == [0.0, 1.0] * 10


def test_numbers_steer_the_paddle_of_continuous_catch() -> None:
    for number, choice in [(-1.0, 0), (-0.4, 0), (-0.3, 1), (0.0, 1), (0.3, 1), (0.4, 2), (1.0, 2)]:
        env, other = ContinuousCatch(), Catch()
        env.reset(seed=1)
        other.reset(seed=1)
        moved, expected = env.step(np.array([number], np.float32)), other.step(np.int64(choice))
        np.testing.assert_array_equal(moved[0], expected[0])
    assert env.action_space.contains(np.zeros(1, np.float32))


def test_the_paddle_of_catch_stays_on_the_board_and_the_board_has_any_size() -> None:
    env = Catch(size=64)
    env.reset(seed=0)
    for action in [0] * 6:
        obs, *_ = env.step(np.int64(action))
    assert obs.shape == (64, 64, 1)
    assert np.flatnonzero(obs[-1, :, 0]).tolist() == list(range(8))
    with pytest.raises(ValueError, match="size must be a multiple of 8, got 20"):
        Catch(size=20)


def test_tiny_image_pays_for_the_bright_quadrant() -> None:
    env = TinyImage()
    obs, _ = env.reset(seed=0)
    seen = set()
    for _ in range(20):
        assert env.observation_space.contains(obs)
        brightness = obs.reshape(2, 6, 2, 6).mean(axis=(1, 3)).flatten()
        quadrant = int(brightness.argmax())
        seen.add(quadrant)
        obs, reward, *_ = env.step(np.int64(quadrant))
        assert reward == 1.0
    assert seen == {0, 1, 2, 3}


def test_tiny_dict_rewards_the_sum_of_its_parts_and_neither_part_is_enough() -> None:
    env = TinyDict(length=600)
    obs, _ = env.reset(seed=0)
    counts = np.zeros((3, 3))
    truncated, total = False, 0.0
    while not truncated:
        brightness = obs["image"].reshape(2, 4, 2, 4).mean(axis=(1, 3)).flatten()
        quadrant, place = int(brightness.argmax()), int(obs["vector"].argmax())
        counts[quadrant, place] += 1
        obs, reward, terminated, truncated, _ = env.step(np.int64((quadrant + place) % 3))
        total += reward
        assert not terminated
    assert total == 600.0
    # All nine pairs are as likely: 600 / 9 = 67 each, deviation 7.7. So either part leaves the three sums as likely.
    assert np.abs(counts - 600 / 9).max() < 5 * 7.7


def best_valid(obs: np.ndarray, mask: np.ndarray, choices: int = 1) -> np.ndarray:
    return np.asarray(np.where(mask, obs, -1.0).reshape(choices, -1).argmax(1))


def test_masked_pays_for_the_highest_valid_action() -> None:
    env = Masked(num_actions=4, length=200)
    obs, info = env.reset(seed=0)
    truncated, total, sizes, blind = False, 0.0, set(), 0
    while not truncated:
        sizes.add(int(info["action_mask"].sum()))
        (best,) = best_valid(obs, info["action_mask"])
        blind += best == obs.argmax()
        obs, reward, terminated, truncated, info = env.step(best)
        total += reward
        assert not terminated
        assert "invalid_action" not in info
    assert (total, sizes) == (200.0, {1, 2, 3})
    assert 0.4 < blind / 200 < 0.6  # the highest of all is valid with probability (1 + 2 + 3) / 3 / 4 = 1/2
    obs, info = env.reset(seed=1)
    while info["action_mask"].sum() < 2:
        obs, _, _, _, info = env.step(best_valid(obs, info["action_mask"])[0])
    (best,) = best_valid(obs, info["action_mask"])
    other = np.flatnonzero(info["action_mask"])[np.flatnonzero(info["action_mask"]) != best][0]
    assert env.step(other)[1:4] == (0.0, False, False)


@pytest.mark.parametrize("multi", [False, True])
def test_masked_ends_at_an_invalid_action(multi: bool) -> None:
    env = Masked(num_actions=3, multi=multi)
    obs, info = env.reset(seed=0)
    invalid = best_valid(obs, ~info["action_mask"], 2 if multi else 1)
    if multi:  # one of the two is enough
        invalid[0] = best_valid(obs, info["action_mask"], 2)[0]
    _, reward, terminated, _, info = env.step(invalid if multi else invalid[0])
    assert (reward, terminated, info["invalid_action"]) == (-1.0, True, True)


def test_masked_of_two_choices_pays_for_each() -> None:
    env = Masked(num_actions=3, multi=True)
    assert env.action_space == MultiDiscrete([3, 3])
    obs, info = env.reset(seed=0)
    rewards = []
    for _ in range(9):
        assert info["action_mask"].shape == obs.shape == (6,)
        obs, reward, _, _, info = env.step(best_valid(obs, info["action_mask"], 2))
        rewards.append(reward)
    assert rewards == [1.0] * 9


def test_masked_may_bring_its_mask_in_the_observation() -> None:
    inside, beside = Masked(mask_in_obs=True), Masked()
    (obs, info), (expected, masks) = inside.reset(seed=0), beside.reset(seed=0)
    for _ in range(5):
        np.testing.assert_array_equal(obs["observation"], expected)
        np.testing.assert_array_equal(obs["action_mask"].astype(bool), masks["action_mask"])
        assert "action_mask" not in info
        action = best_valid(expected, masks["action_mask"])[0]
        (obs, *_, info), (expected, *_, masks) = inside.step(action), beside.step(action)


def test_masked_returns_a_mask_without_valid_actions_on_request() -> None:
    assert not Masked(all_false=True).reset(seed=0)[1]["action_mask"].any()
    env = Masked(all_false_at=2)
    obs, info = env.reset(seed=0)
    valid = [info["action_mask"].any()]
    for _ in range(3):
        obs, _, _, _, info = env.step(best_valid(obs, info["action_mask"])[0])
        valid.append(info["action_mask"].any())
    assert valid == [True, True, False, True]


@pytest.mark.filterwarnings("ignore:.*Box observation space m.*imum value is.*infinity")
@pytest.mark.parametrize("name", sorted(TINY_ENVS))
def test_tiny_envs_keep_gymnasiums_rules(name: str) -> None:
    check_env(gym.make(name).unwrapped, skip_render_check=True)


@pytest.mark.parametrize(
    ("name", "env_kwargs"),
    [
        ("rl_training/Identity-v0", {"actions": "box"}),
        ("rl_training/Identity-v0", {"actions": "multidiscrete"}),
        ("rl_training/Identity-v0", {"actions": "multibinary"}),
        ("rl_training/Lottery-v0", {"coins": True}),
        ("rl_training/Masked-v0", {"mask_in_obs": True}),
        ("rl_training/Masked-v0", {"multi": True, "mask_in_obs": True}),
    ],
)
def test_their_variants_do_too(name: str, env_kwargs: dict[str, Any]) -> None:
    check_env(gym.make(name, **env_kwargs).unwrapped, skip_render_check=True)


class OtherByteOrder(Chain):
    """An environment whose arrays have the byte order of another machine."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0.0, 1.0, (5,), np.dtype(">f4"))

    def _observe(self) -> np.ndarray:
        return super()._observe().astype(">f4")


@pytest.mark.parametrize("backend", ["local_sync", "local_async"])
@pytest.mark.process
def test_arrays_of_another_byte_order_are_converted(backend: Literal["local_sync", "local_async"]) -> None:
    with contextlib.closing(make_envs(OtherByteOrder, 1, backend=backend)) as envs:
        obs, _ = envs.reset([0], [0])
        assert obs.dtype.isnative
        assert obs.tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0]]
        assert observation_field(envs.observation_space).dtype.isnative
