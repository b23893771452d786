"""EnvPool: the same environments as Gymnasium's, ended envs are reset before the next step, what is refused."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from builders import make_config
from rl_training.core.frame_space import FrameStackSpace
from rl_training.envs.envpool_envs import CLASSIC_CONTROL, DIFFERENT, MUJOCO_V4, MUJOCO_V5, EnvPoolEnvs, find_task
from rl_training.envs.factory import RegisteredEnv, make_env_factory, make_envs
from rl_training.envs.slot import ReplayDivergedError
from rl_training.envs.vector import StepResult
from rl_training.errors import ConfigError, EnvError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import RunOptions, resume, train

pytest.importorskip("envpool", reason="pip install 'rl-training[envpool]'")

pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date")  # v4 of MuJoCo's, CartPole-v0

QUIET = RunOptions(show_progress=False)


def make_pool(env_id: str = "CartPole-v1", num_envs: int = 1, **env_kwargs: Any) -> EnvPoolEnvs:
    return EnvPoolEnvs(RegisteredEnv(env_id, env_kwargs), num_envs)


def begin(envs: EnvPoolEnvs, seed: int = 0) -> np.ndarray:
    return envs.reset(range(envs.num_envs), [seed] * envs.num_envs)[0]


def play(envs: EnvPoolEnvs, num_steps: int, seed: int = 0) -> list[np.ndarray]:
    """Take random actions, reset what ends, and give all observations and rewards."""
    rng = np.random.default_rng(1)
    seen = [begin(envs, seed)]
    for _ in range(num_steps):
        result = envs.step(rng.integers(2, size=envs.num_envs))
        seen += [result.obs, result.rewards, result.terminated, result.truncated]
        seen.append(envs.reset(result.ended, [seed] * len(result.ended))[0])
    return seen


# -------------------------------------------------------------------------------- the same environment as Gymnasium's


def put_acrobot(env: Any, obs: np.ndarray) -> None:
    env.state = np.array([np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2]), obs[4], obs[5]])


def put_classic(env: Any, obs: np.ndarray) -> None:
    env.state = obs.astype(np.float64)


def put_mujoco(env: Any, obs: np.ndarray) -> None:
    env.set_state(obs[: env.model.nq], obs[env.model.nq :][: env.model.nv])


WITH_POSITIONS = {"exclude_current_positions_from_observation": False}


@pytest.mark.parametrize(
    ("env_id", "put_state", "env_kwargs", "steps", "tolerance"),
    [
        # A start state is known to the precision of its observation, float32; Acrobot enlarges an error quickly.
        ("CartPole-v1", put_classic, {}, 500, 1e-5),
        ("MountainCar-v0", put_classic, {}, 200, 1e-5),
        ("MountainCarContinuous-v0", put_classic, {}, 200, 1e-5),
        ("Acrobot-v1", put_acrobot, {}, 50, 1e-3),
        # In float64; rewards are float32 in EnvPool.
        ("HalfCheetah-v5", put_mujoco, WITH_POSITIONS, 50, 1e-6),
        ("Hopper-v4", put_mujoco, {**WITH_POSITIONS, "ctrl_cost_weight": 0.5}, 50, 1e-6),
        ("InvertedPendulum-v5", put_mujoco, {"frame_skip": 3}, 50, 1e-6),
    ],
)
def test_transitions_are_those_of_gymnasium_from_the_same_state(
    env_id: str, put_state: Callable[[Any, np.ndarray], None], env_kwargs: dict[str, Any], steps: int, tolerance: float
) -> None:
    env = gym.make(env_id, **env_kwargs)
    env.action_space.seed(0)
    with make_pool(env_id, **env_kwargs) as envs:
        assert (envs.observation_space, envs.action_space) == (env.observation_space, env.action_space)
        for episode in range(3):
            obs, _ = envs.reset([0], [episode])
            env.reset(seed=0)
            put_state(env.unwrapped, obs[0])
            for _ in range(steps):
                action = env.action_space.sample()
                ours, (next_obs, reward, *flags, _) = envs.step(np.asarray(action)[None]), env.step(action)
                np.testing.assert_allclose(ours.obs[0], next_obs, rtol=tolerance, atol=tolerance)
                assert ours.rewards[0] == pytest.approx(reward, rel=1e-6, abs=1e-6)
                assert [ours.terminated[0], ours.truncated[0]] == flags
                if any(flags):
                    break


def steps_and_flags(step: Callable[[], tuple[Any, Any]]) -> tuple[int, bool, bool]:
    """Call `step` until the episode ends; give its length and how it ended."""
    for number in itertools.count(1):
        terminated, truncated = step()
        if terminated or truncated:
            return number, bool(terminated), bool(truncated)
    raise AssertionError


@pytest.mark.parametrize("steps_to_limit", [-1, 0, 1])
def test_time_limits_and_terminations_are_distinguished_also_at_the_same_step(steps_to_limit: int) -> None:
    def flags_of(result: StepResult) -> tuple[Any, Any]:
        return result.terminated[0], result.truncated[0]

    with make_pool() as envs:
        first = begin(envs)
        falls_at, *_ = steps_and_flags(lambda: flags_of(envs.step(np.array([1]))))
    limit = falls_at + steps_to_limit
    env = gym.make("CartPole-v1", max_episode_steps=limit)
    env.reset(seed=0)
    put_classic(env.unwrapped, first[0])
    with make_pool(max_episode_steps=limit) as envs:
        np.testing.assert_array_equal(begin(envs), first)
        found = steps_and_flags(lambda: flags_of(envs.step(np.array([1]))))
    assert found == steps_and_flags(lambda: env.step(np.int64(1))[2:4])
    assert found == (min(falls_at, limit), steps_to_limit >= 0, steps_to_limit <= 0)


@pytest.mark.parametrize("env_id", [*CLASSIC_CONTROL, *MUJOCO_V5, *MUJOCO_V4])
def test_every_id_on_the_list_has_the_spaces_of_gymnasium(env_id: str) -> None:
    envs = EnvPoolEnvs(make_env_factory(env_id))  # type: ignore[arg-type]
    obs = begin(envs)
    result = envs.step(np.stack([envs.action_space.sample()]))
    assert obs.shape == result.obs.shape == (1, *envs.observation_space.shape)  # type: ignore[misc]
    assert obs.dtype == result.obs.dtype == envs.observation_space.dtype
    assert (result.rewards.dtype, result.terminated.dtype, result.truncated.dtype) == (
        np.dtype(np.float64),
        np.dtype(np.bool_),
        np.dtype(np.bool_),
    )
    envs.close()


# ----------------------------------------------------------------------------------------------------------- Atari


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "rewards", "lives_lost"),
    [
        ("PongNoFrameskip-v4", {"frame_stack": 2, "screen_size": 64}, {0, -1}, 0),
        ("BreakoutNoFrameskip-v4", {"life_loss_terminates": True}, {0, 1}, 4),  # of five: the last ends the game
        (
            "ALE/SpaceInvaders-v5",
            {"repeat_action_probability": 0.0, "grayscale": False, "frame_skip": 3, "full_action_space": True},
            {0, 5, 10, 15},
            0,
        ),
    ],
)
def test_games_are_those_of_our_own_preprocessing(
    env_id: str, env_kwargs: dict[str, Any], rewards: set[float], lives_lost: int
) -> None:
    # One no-op and no FIRE: both are at the same point of the game.
    pytest.importorskip("ale_py", reason="pip install 'rl-training[atari]'")
    factory = RegisteredEnv(env_id, {**env_kwargs, "noop_max": 1, "fire_reset": False})
    env = factory()
    rng = np.random.default_rng(0)
    found, num_lost = set(), 0
    with EnvPoolEnvs(factory) as envs:
        assert (envs.observation_space, envs.action_space) == (env.observation_space, env.action_space)
        np.testing.assert_array_equal(begin(envs)[0], env.reset(seed=0)[0])
        for _ in range(300):
            action = rng.integers(env.action_space.n)  # type: ignore[attr-defined]
            result, (obs, reward, terminated, truncated, info) = envs.step(np.array([action])), env.step(action)
            assert (result.rewards[0], result.terminated[0], result.truncated[0]) == (reward, terminated, truncated)
            assert result.infos == [info]
            found.add(result.rewards[0])
            num_lost += "life_lost" in info
            if terminated:
                break  # EnvPool stops at once and shows another last picture
            np.testing.assert_array_equal(result.obs[0], obs)
    assert found == rewards
    assert num_lost == lives_lost


def test_lives_are_counted_again_after_a_reset() -> None:
    pytest.importorskip("ale_py", reason="pip install 'rl-training[atari]'")
    with make_pool("BreakoutNoFrameskip-v4", 2, life_loss_terminates=True) as envs:
        begin(envs)
        envs.step(np.zeros(2, np.int64))
        envs._lives[:] = 7  # as if both had won two
        envs.reset([1], [0])
        assert envs.step(np.zeros(2, np.int64)).infos == [{"life_lost": True}, {}]


@pytest.mark.parametrize(("env_id", "is_sticky"), [("PongNoFrameskip-v4", False), ("ALE/Pong-v5", True)])
def test_the_id_decides_about_sticky_actions(env_id: str, is_sticky: bool) -> None:
    pytest.importorskip("ale_py", reason="pip install 'rl-training[atari]'")
    rng = np.random.default_rng(0)
    with make_pool(env_id, 2, noop_max=1) as envs:
        begin(envs)
        for _ in range(40):
            obs = envs.step(rng.integers(6, size=1).repeat(2)).obs
    assert (obs[0] != obs[1]).any() == is_sticky


def test_an_action_sticks_as_often_as_in_our_own_games() -> None:
    # The first frame of a step to the right decides: what has once been done is repeated.
    pytest.importorskip("ale_py", reason="pip install 'rl-training[atari]'")
    num_envs, seen = 16, []
    with make_pool("ALE/Pong-v5", num_envs, noop_max=1, fire_reset=False) as envs:
        for _ in range(10):
            begin(envs)
            envs.step(np.full(num_envs, 2))
            seen += [obs.tobytes() for obs in envs.step(np.full(num_envs, 2)).obs]
    share = max(map(seen.count, seen)) / len(seen)
    assert share == pytest.approx(0.75, abs=0.1)  # three standard deviations of 160 draws

    def probability(env_id: str, **env_kwargs: Any) -> Any:
        return find_task(env_id, env_kwargs).options["repeat_action_probability"]

    assert (probability("ALE/Pong-v5"), probability("PongNoFrameskip-v4")) == (0.25, 0.0)
    assert probability("ALE/Pong-v5", repeat_action_probability=0.6) == 0.6


@pytest.mark.parametrize(
    ("env_kwargs", "space"),
    [
        ({}, FrameStackSpace(4, (4, 84, 84))),
        ({"grayscale": False, "frame_stack": 2, "screen_size": 48}, FrameStackSpace(2, (6, 48, 48))),
    ],
)
def test_the_space_of_a_game_declares_its_frames(env_kwargs: dict[str, Any], space: FrameStackSpace) -> None:
    pytest.importorskip("ale_py", reason="pip install 'rl-training[atari]'")
    with make_pool("ALE/Pong-v5", **env_kwargs) as envs:
        assert envs.observation_space == space
        before = begin(envs)[0]
        assert before in space
        after = envs.step(np.array([2])).obs[0]
        layers = space.frame_shape[0]
        np.testing.assert_array_equal(after[:-layers], before[layers:])  # what a memory of frames relies on


# ------------------------------------------------------------------------------------------------- seeds and resets


def test_the_first_seed_decides_every_start_state() -> None:
    with make_pool(num_envs=3) as one, make_pool(num_envs=3) as same, make_pool(num_envs=3) as other:
        first = play(one, 100, seed=5)
        for ours, theirs in zip(first, play(same, 100, seed=5), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert not np.isin(first[0], play(other, 1, seed=6)[0]).any()
        assert len(np.unique(first[0], axis=0)) == 3  # every env its own


def test_env_0_is_the_same_however_many_there_are() -> None:
    with make_pool(num_envs=1) as one, make_pool(num_envs=4) as four:
        np.testing.assert_array_equal(begin(one, 3)[0], begin(four, 3)[0])


def test_no_step_is_spent_on_a_reset() -> None:
    num_envs, num_steps, limit = 3, 300, 12
    lengths, open_lengths = [], np.zeros(num_envs, int)
    rng = np.random.default_rng(0)
    with make_pool(num_envs=num_envs, max_episode_steps=limit) as envs:
        begin(envs)
        for _ in range(num_steps):
            result = envs.step(rng.integers(2, size=num_envs))
            assert (result.rewards == 1.0).all()  # EnvPool's own step into a reset pays 0
            open_lengths += 1
            np.testing.assert_array_equal(result.truncated, open_lengths == limit)
            assert result.ended == np.flatnonzero(result.terminated | result.truncated).tolist()
            assert (np.abs(result.obs[result.terminated][:, [0, 2]]) > [2.4, 0.209]).any(axis=1).all()  # out of bounds
            lengths += open_lengths[result.ended].tolist()
            open_lengths[result.ended] = 0
            obs, infos = envs.reset(result.ended, [0] * len(result.ended))
            assert (np.abs(obs) <= 0.05).all()  # where CartPole starts
            assert infos == [{} for _ in result.ended]
    assert sum(lengths) + open_lengths.sum() == num_envs * num_steps
    assert max(lengths) == limit
    assert min(lengths) < limit


def test_reset_touches_only_the_named_envs_and_keeps_their_order() -> None:
    with make_pool("MountainCar-v0", num_envs=3) as envs:
        begin(envs)
        before = envs.step(np.array([2, 2, 2])).obs
        obs, _ = envs.reset([2, 0], [0, 0])
        np.testing.assert_array_equal(obs[:, 1], [0, 0])  # speeds
        after = envs.step(np.array([1, 1, 1])).obs
        np.testing.assert_allclose(after[[2, 0], 0], obs[:, 0], atol=1e-2)
        assert after[1, 0] == pytest.approx(before[1, 0] + after[1, 1], abs=1e-6)


def test_results_are_never_overwritten() -> None:
    with make_pool(num_envs=2) as envs:
        arrays = [(array, array.copy()) for array in play(envs, 300)]
        play(envs, 300)
        for array, copy in arrays:
            np.testing.assert_array_equal(array, copy)


# ---------------------------------------------------------------------------------------------------------- misuse


def test_wrong_calls_are_refused_and_change_nothing() -> None:
    with make_pool(num_envs=2) as envs:
        with pytest.raises(RuntimeError, match=r"envs \[0, 1\] must be reset before the next step"):
            envs.step(np.zeros(2, np.int64))
        assert envs.reset([], [])[0].shape == (0, 4)
        for wrong in ([0, 0], [2], [-1]):
            with pytest.raises(ValueError, match=r"indices must be different envs below 2, got \["):
                envs.reset(wrong, [0] * len(wrong))
        begin(envs)
        with pytest.raises(ValueError, match=r"actions must have shape \(2,\), got \(2, 1\)"):
            envs.step(np.zeros((2, 1), np.int64))
        with pytest.raises(TypeError, match="same_kind"):
            envs.step(np.zeros(2, np.float32))
        assert envs.step(np.zeros(2, np.int32)).rewards.tolist() == [1.0, 1.0]
        with pytest.raises(ReplayDivergedError, match="env 1 cannot be replayed"):
            envs.replay(1, 0, np.zeros(3, np.int64))
        with pytest.raises(EnvError, match="env 1 has no get_state and set_state"):
            envs.set_state(1, {})
        assert envs.get_state(0) is None
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        make_pool(num_envs=0)


def test_a_step_after_an_end_is_refused() -> None:
    with make_pool(num_envs=2, max_episode_steps=3) as envs:
        begin(envs)
        for _ in range(2):
            envs.step(np.array([0, 1]))
        envs.reset([0], [0])
        assert envs.step(np.array([0, 1])).ended == [1]
        with pytest.raises(RuntimeError, match=r"envs \[1\] must be reset before the next step"):
            envs.step(np.array([0, 1]))


def test_closing_ends_the_threads_and_steps_are_refused_afterwards() -> None:
    def num_threads() -> int:
        return len(list(Path("/proc/self/task").iterdir())) if Path("/proc/self/task").is_dir() else 0

    before = num_threads()
    envs = make_pool(num_envs=2)
    begin(envs)
    assert num_threads() > before or not before
    envs.close()
    envs.close()
    assert num_threads() == before
    for call in (lambda: envs.step(np.zeros(2, np.int64)), lambda: begin(envs), lambda: envs.get_state(0)):
        with pytest.raises(RuntimeError, match="the environments are closed"):
            call()


def test_an_interrupted_step_ends_the_group() -> None:
    # Its answer would otherwise be taken for that of the next call.
    with make_pool() as envs:
        begin(envs)
        pool = envs._pool

        class Interrupted:
            _send, close = pool._send, pool.close

            def _recv(self) -> None:
                pool._recv()
                raise KeyboardInterrupt

        envs._pool = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.zeros(1, np.int64))
        with pytest.raises(RuntimeError, match="the environments are closed"):
            begin(envs)


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "message"),
    [
        ("LunarLander-v3", {}, "it has no env_id 'LunarLander-v3'; it has CartPole-v0, CartPole-v1, "),
        ("module:CartPole-v1", {}, "it has no env_id 'module:CartPole-v1'"),
        ("CartPole-v1", {"pixels": True}, "of CartPole-v1 it does not support pixels; it supports max_episode_steps"),
        ("ALE/Pong-v5", {"preprocess": False}, "it does not support preprocess; it supports max_episode_steps, n"),
        ("ALE/Pong-v5", {"mode": 1, "difficulty": 1}, "it does not support mode, difficulty; it supports"),
        ("ALE/Pong-v5", {"noop_max": 0}, "for ALE/Pong-v5 env_kwargs.noop_max must be at least 1, got 0"),
        ("ALE/TicTacToe3D-v5", {}, "it has no game for env_id 'ALE/TicTacToe3D-v5'"),
        ("PongDeterministic-v4", {}, "and Atari's ALE/<Game>-v5 and <Game>NoFrameskip-v4"),
        ("rl_training/TinyDict-v0", {}, "it has no env_id 'rl_training/TinyDict-v0'"),
        ("Pendulum-v1", {}, "its Pendulum-v1 is another environment than Gymnasium's: its angle changes by the speed"),
        ("CartPole-v1", {"sutton_barto_reward": True}, "it does not support sutton_barto_reward; it supports max_"),
        (
            "Ant-v5",
            {"healthy_z_range": (0, 1)},
            "it does not support healthy_z_range; it supports max_episode_steps, c",
        ),
    ],
)
def test_what_envpool_does_not_have_is_refused_by_name(env_id: str, env_kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_envs(RegisteredEnv(env_id, env_kwargs), backend="envpool")
    assert str(error.value).startswith("execution_backend envpool cannot be used: ")
    assert message in str(error.value)
    assert str(error.value).endswith("; use local_sync or local_async")


def test_a_refused_run_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it has no env_id 'rl_training/Chain-v0'"):
        train(make_config(tmp_path / "runs", execution_backend="envpool"), QUIET)
    own = RunOptions(env_factory=lambda: gym.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="it cannot step environments built by your own function <lambda>"):
        train(make_config(tmp_path / "runs", execution_backend="envpool"), own)
    assert not (tmp_path / "runs").exists()


def test_other_spaces_than_gymnasiums_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gym.registry, "CartPole-v1", gym.registry["MountainCar-v0"])
    with pytest.raises(ConfigError, match=r"its CartPole-v1 has observations .*\[4\].* but Gymnasium's Box\(.*\(2,\)"):
        make_pool("CartPole-v1")


def test_missing_packages_are_named_with_their_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'rl-training\[envpool\]' \(Python 3.11 or newer\)"):
        make_pool()


def test_ids_that_differ_are_not_on_the_list() -> None:
    assert not set(DIFFERENT) & {*CLASSIC_CONTROL, *MUJOCO_V5, *MUJOCO_V4}
    assert find_task("CartPole-v1", {"max_episode_steps": 3}).options == {}


def test_an_episode_may_have_no_limit() -> None:
    with make_pool("MountainCar-v0", max_episode_steps=-1) as envs:
        begin(envs)
        assert not any(envs.step(np.array([0])).ended for _ in range(250))  # Gymnasium's limit is 200


# ------------------------------------------------------------------------------------------------------------ runs


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run) -> None:
        if run.step >= self.step:
            run.stop_reason = "test"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def resume_note(run_dir: Path) -> str:
    note = json.loads((run_dir / "metadata.json").read_text())["starts"][-1]["resume"]
    assert isinstance(note, str)
    return note


@pytest.mark.learning
def test_dqn_trains_and_its_counter_is_the_number_of_transitions(tmp_path: Path) -> None:
    config = make_config(tmp_path, env_id="CartPole-v1", execution_backend="envpool", num_envs=4, total_timesteps=400)
    result = train(config, QUIET)
    assert result.step == 400
    episodes = lines(result.run_dir / "episodes.jsonl")
    assert len(episodes) > 4
    assert all(episode["return"] == episode["length"] for episode in episodes)  # 1 per step
    for env in range(4):
        of_env = [episode for episode in episodes if episode["env"] == env]
        assert [episode["episode"] for episode in of_env] == list(range(len(of_env)))
        assert np.cumsum([episode["length"] for episode in of_env]).tolist() == [e["step"] // 4 for e in of_env]
    assert resume_note(result.run_dir).startswith("at an episode boundary")


@pytest.mark.learning
def test_a_stopped_run_goes_on_with_new_episodes_and_other_start_states(tmp_path: Path) -> None:
    starts: list[np.ndarray] = []

    class NoteStarts(Callback):
        def on_start(self, run: Run) -> None:
            starts.append(run.collector.state_dict()["obs"].copy())

    config = make_config(tmp_path, env_id="CartPole-v1", execution_backend="envpool", num_envs=2, total_timesteps=400)
    first = train(config, RunOptions(show_progress=False, callbacks=[NoteStarts(), StopAt(200)]))
    assert first.step == 200
    options = RunOptions(show_progress=False, callbacks=[NoteStarts()])
    copies = [resume(first.run_dir, options, output_dir=tmp_path / name) for name in ("one", "two")]
    assert [copy.step for copy in copies] == [400, 400]
    assert resume_note(copies[0].run_dir).startswith("resumed at an episode boundary in envs 0, 1")
    numbers = [e["episode"] for e in lines(copies[0].run_dir / "episodes.jsonl") if e["env"] == 0]
    assert len(numbers) == numbers[-1]  # the episode that the stop cut off has no line
    np.testing.assert_array_equal(starts[1], starts[2])  # the same checkpoint, the same states
    assert not np.isin(starts[1], starts[0]).any()
    assert (copies[0].run_dir / "episodes.jsonl").read_text() == (copies[1].run_dir / "episodes.jsonl").read_text()
