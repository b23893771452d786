"""Atari games: what the agent sees is compared with a plain run of the emulator, frame by frame."""

import functools
import importlib.util
import pickle
import sys
from collections.abc import Callable
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
import pytest
from ale_py import Action, ALEInterface, LoggerMode, roms
from gymnasium.utils.seeding import np_random

from rl_training.envs.atari import AtariFrames
from rl_training.envs.factory import RegisteredEnv, make_env_factory, make_envs
from rl_training.envs.resumable import EpisodeRecipe, check_replay, restore_env
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, EnvError

PONG, BREAKOUT = "PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"
PONG_ACTIONS = [Action.NOOP, Action.FIRE, Action.RIGHT, Action.LEFT, Action.RIGHTFIRE, Action.LEFTFIRE]
NOOP, FIRE, RIGHT = 0, 1, 2


class PlainGame:
    """The emulator alone, without sticky actions; keeps what every single frame showed and paid."""

    def __init__(self, rom: str, *, colour: bool = False) -> None:
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self.ale = ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(str(roms.get_rom_path(rom)))
        self.ale.reset_game()
        self._read = self.ale.getScreenRGB if colour else self.ale.getScreenGrayscale
        self.screens, self.rewards = [self._read()], [0]

    def play(self, action: Action, frames: int) -> None:
        for _ in range(frames):
            self.rewards.append(self.ale.act(action))
            self.screens.append(self._read())

    def pooled(self, size: int = 84) -> np.ndarray:
        """The maximum of the last two frames, small."""
        return shrink(np.maximum(self.screens[-2], self.screens[-1]), size)


class Spy:
    """An emulator that notes its actions, and says that the game is over after the frames in `over_after`."""

    def __init__(self, ale: Any, over_after: tuple[int, ...] = ()) -> None:
        self._ale, self._over_after = ale, over_after
        self.acted: list[Action] = []
        self._over = False
        self.lives: Callable[[], int] = ale.lives

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ale, name)

    def act(self, action: Action) -> Any:
        self.acted.append(action)
        self._over = self._over or len(self.acted) in self._over_after
        return 0 if self._over else self._ale.act(action)

    def game_over(self, *, with_truncation: bool = True) -> bool:
        return self._over or bool(self._ale.game_over(with_truncation=with_truncation))

    def reset_game(self) -> None:
        self._over = False
        self._ale.reset_game()


def shrink(screen: np.ndarray, size: int = 84) -> np.ndarray:
    return cv2.resize(screen, (size, size), interpolation=cv2.INTER_AREA)


@functools.cache
def make_once(env_id: str, **env_kwargs: Any) -> Any:
    return RegisteredEnv(env_id, env_kwargs)()


def make(env_id: str, **env_kwargs: Any) -> Any:
    """Make an env, or take that of another test, less its spy: loading a cartridge takes as long as 200 steps."""
    env = make_once(env_id, **env_kwargs)
    frames_wrapper(env)._ale = env.unwrapped.ale
    return env


def frames_wrapper(env: Any) -> Any:
    while not isinstance(env, AtariFrames):
        env = env.env
    return env


def spy_on(env: Any, over_after: tuple[int, ...] = ()) -> Spy:
    spy = Spy(env.unwrapped.ale, over_after)
    frames_wrapper(env)._ale = spy
    return spy


def episode_frames(env: Any) -> int:
    return int(env.unwrapped.ale.getEpisodeFrameNumber())


def num_noops(seed: int, noop_max: int = 30) -> int:
    return int(np_random(seed)[0].integers(1, noop_max + 1))


# ------------------------------------------------------------------------------------------- frames and their stack


@pytest.mark.parametrize("env_kwargs", [{}, {"screen_size": 40}, {"grayscale": False}])
def test_observations_are_those_of_a_plain_run_with_the_skip_applied_once(env_kwargs: dict[str, Any]) -> None:
    env = make(PONG, **env_kwargs)
    size, colour = env_kwargs.get("screen_size", 84), "grayscale" in env_kwargs
    layers = 3 if colour else 1
    game = PlainGame("pong", colour=colour)
    obs, info = env.reset(seed=3)
    game.play(Action.NOOP, num_noops(3))
    game.play(Action.FIRE, 4)

    def newest(obs: np.ndarray) -> np.ndarray:
        return np.asarray(obs[-3:].transpose(1, 2, 0) if colour else obs[-1])

    assert (obs.shape, obs.dtype, info) == ((4 * layers, size, size), np.uint8, {})
    assert obs in env.observation_space
    np.testing.assert_array_equal(obs, np.tile(obs[-layers:], (4, 1, 1)))  # a reset fills the stack
    np.testing.assert_array_equal(newest(obs), game.pooled(size))
    for action in np.random.default_rng(0).integers(6, size=40):
        before = obs
        obs, reward, terminated, truncated, info = env.step(action)
        game.play(PONG_ACTIONS[action], 4)
        np.testing.assert_array_equal(newest(obs), game.pooled(size))
        np.testing.assert_array_equal(obs[:-layers], before[layers:])  # the oldest frame goes, the others move up
        assert (reward, terminated, truncated, info) == (sum(game.rewards[-4:]), False, False, {})
    assert episode_frames(env) == num_noops(3) + 4 + 40 * 4


def test_the_pool_is_the_maximum_and_neither_of_its_two_frames() -> None:
    env = make(PONG)
    game = PlainGame("pong")
    env.reset(seed=0)
    game.play(Action.NOOP, num_noops(0))
    game.play(Action.FIRE, 4)
    for _ in range(30):  # until the ball flies
        obs = env.step(RIGHT)[0]
        game.play(Action.RIGHT, 4)
    assert not np.array_equal(obs[-1], shrink(game.screens[-1]))
    assert not np.array_equal(obs[-1], shrink(game.screens[-2]))
    np.testing.assert_array_equal(obs[-1], game.pooled())


@pytest.mark.parametrize("env_id", [PONG, "ALE/Pong-v5"])
@pytest.mark.parametrize("frame_skip", [1, 2, 4])
def test_a_step_lasts_frame_skip_frames_under_both_kinds_of_id(env_id: str, frame_skip: int) -> None:
    env = make(env_id, frame_skip=frame_skip, noop_max=0, fire_reset=False)
    env.reset(seed=0)
    for _ in range(5):
        env.step(NOOP)
    assert episode_frames(env) == 5 * frame_skip


def test_a_single_frame_is_not_pooled_with_that_of_the_step_before() -> None:
    env = make(PONG, frame_skip=1, noop_max=0, fire_reset=False)
    game = PlainGame("pong")
    env.reset(seed=0)
    for _ in range(100):
        obs = env.step(RIGHT)[0]
        game.play(Action.RIGHT, 1)
        np.testing.assert_array_equal(obs[-1], shrink(game.screens[-1]))


def test_each_observation_is_an_array_of_its_own() -> None:
    env = make(PONG)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    second = env.step(RIGHT)[0]
    np.testing.assert_array_equal(first, kept)
    newest = second[-1].copy()
    second[:] = 0  # a caller may do with it what it likes
    np.testing.assert_array_equal(env.step(RIGHT)[0][-2], newest)


# -------------------------------------------------------------------------------------------------------- the reset


def test_no_ops_are_drawn_from_one_to_noop_max_by_the_seed() -> None:
    env = make(PONG, noop_max=3, fire_reset=False)
    counts = []
    for seed in range(20):
        env.reset(seed=seed)
        counts.append(episode_frames(env))
    assert counts == [num_noops(seed, 3) for seed in range(20)]
    assert set(counts) == {1, 2, 3}
    never = make(PONG, noop_max=0, fire_reset=False)
    never.reset(seed=0)
    assert episode_frames(never) == 0


def test_a_reset_without_a_seed_goes_on_in_the_same_stream() -> None:
    env = make(PONG, fire_reset=False)
    env.reset(seed=5)
    rng = np_random(5)[0]
    drawn = [int(rng.integers(1, 31)) for _ in range(4)]
    counts = [episode_frames(env)]
    for _ in range(3):
        env.reset()
        counts.append(episode_frames(env))
    assert counts == drawn


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "presses"),
    [
        (BREAKOUT, {}, 4),
        (BREAKOUT, {"fire_reset": False}, 0),
        ("FreewayNoFrameskip-v4", {}, 0),  # it has no FIRE
        ("FreewayNoFrameskip-v4", {"full_action_space": True}, 4),
    ],
)
def test_fire_is_pressed_at_the_reset_where_the_action_exists(
    env_id: str, env_kwargs: dict[str, Any], presses: int
) -> None:
    env = make(env_id, **env_kwargs)
    spy = spy_on(env)
    env.reset(seed=1)
    assert spy.acted == [Action.NOOP] * num_noops(1) + [Action.FIRE] * presses


def test_a_game_that_ends_in_the_no_ops_starts_again_and_gets_the_others() -> None:
    seed = next(seed for seed in range(100) if num_noops(seed) == 5)
    env = make(PONG)
    spy = spy_on(env, over_after=(2,))
    obs, _ = env.reset(seed=seed)
    assert spy.acted == [Action.NOOP] * 5 + [Action.FIRE] * 4
    game = PlainGame("pong")
    game.play(Action.NOOP, 3)
    game.play(Action.FIRE, 4)
    np.testing.assert_array_equal(obs[-1], game.pooled())
    assert not env.step(NOOP)[2]


def test_a_game_that_fire_ends_starts_again_without_it() -> None:
    env = make(PONG, noop_max=0)
    spy_on(env, over_after=(3,))
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs[-1], shrink(PlainGame("pong").screens[0]))
    assert episode_frames(env) == 0
    assert not env.step(NOOP)[2]


# --------------------------------------------------------------------------------------- lives, ends, sticky actions


def play_breakout(env: Any) -> tuple[list[int], list[int], int]:
    """Only press FIRE, so that ball after ball is lost: lives after each step, steps with life_lost, last step."""
    env.reset(seed=0)
    lives, lost = [env.unwrapped.ale.lives()], []
    for step in range(1, 1000):
        _, _, terminated, truncated, info = env.step(FIRE)
        lives.append(env.unwrapped.ale.lives())
        assert info in ({}, {"life_lost": True})
        if info:
            lost.append(step)
        assert not truncated
        if terminated:
            return lives, lost, step
    raise AssertionError("Breakout did not end")


def test_a_lost_life_is_reported_at_its_step_and_the_episode_goes_on() -> None:
    lives, lost, last = play_breakout(make(BREAKOUT, life_loss_terminates=True))
    fewer = [step for step in range(1, len(lives)) if lives[step] < lives[step - 1]]
    assert lives[0] == 5
    assert lives[-1] == 0
    assert fewer == [*lost, last]  # the fifth ball ends the game: that is the termination
    assert len(lost) == 4


def test_lost_lives_are_not_reported_unless_asked_for() -> None:
    lives, lost, _ = play_breakout(make(BREAKOUT))
    assert (lives[0], lives[-1], lost) == (5, 0, [])


def test_lives_are_counted_from_the_reset_on() -> None:
    env = make(BREAKOUT, life_loss_terminates=True)
    spy = spy_on(env)
    spy.lives = iter([3, 2, 2, 4, 4, 3, 5, 5]).__next__  # 3 at the first reset, 4 at the second, 5 at the third
    env.reset(seed=0)
    assert [env.step(NOOP)[4] for _ in range(2)] == [{"life_lost": True}, {}]
    env.reset(seed=0)
    assert [env.step(NOOP)[4] for _ in range(2)] == [{}, {"life_lost": True}]
    env.reset(seed=0)
    assert env.step(NOOP)[4] == {}


def test_rewards_are_raw_and_summed_over_the_skipped_frames() -> None:
    env = make("AsterixNoFrameskip-v4")
    env.reset(seed=0)
    game = PlainGame("asterix")
    game.play(Action.NOOP, num_noops(0))
    rewards = []
    for action in np.random.default_rng(0).integers(9, size=300):
        _, reward, terminated, _, _ = env.step(action)
        game.play(game.ale.getMinimalActionSet()[action], 4)
        rewards.append(reward)
        assert reward == sum(game.rewards[-4:])
        if terminated:
            break
    assert max(rewards) >= 50  # Asterix pays 50 and more
    assert type(rewards[0]) is float


def test_the_time_limit_truncates_and_counts_steps() -> None:
    env = make(PONG, max_episode_steps=5)
    env.reset(seed=0)
    flags = [env.step(NOOP)[2:4] for _ in range(5)]
    assert flags == [(False, False)] * 4 + [(False, True)]
    env.reset(seed=0)
    assert env.step(NOOP)[2:4] == (False, False)


@pytest.mark.parametrize(("frame_skip", "steps"), [(4, 27_000), (2, 54_000)])
def test_episodes_are_cut_at_half_an_hour_of_play(frame_skip: int, steps: int) -> None:
    env = make("ALE/Pong-v5", frame_skip=frame_skip)
    assert env.spec.max_episode_steps == steps
    assert env.unwrapped.ale.getInt("max_num_frames_per_episode") == 0  # else the no-ops would count too


def test_a_limit_of_the_emulator_truncates_as_well() -> None:
    env = make(PONG, max_num_frames_per_episode=40, noop_max=0, fire_reset=False)
    env.reset(seed=0)
    flags = [env.step(NOOP)[2:4] for _ in range(10)]
    assert flags == [(False, False)] * 9 + [(False, True)]


def stuck_share(env: Any) -> float:
    """Of the frames that are asked for another action than the frame before had, the share that repeat it."""
    spy = spy_on(env)
    env.reset(seed=0)
    del spy.acted[:-1]
    asked = []
    for step in range(200):
        asked += [PONG_ACTIONS[2 + step % 2]] * 4  # right, left, right, ...
        env.step(2 + step % 2)
    frames = list(zip(asked, spy.acted[1:], spy.acted[:-1], strict=True))
    repeated = [done == before for wanted, done, before in frames if wanted != before]
    return sum(repeated) / len(repeated)


def test_v5_actions_stick_with_a_quarter_and_v4_ones_never_do() -> None:
    # About 270 such frames, 400 with a half: standard deviations below 0.03.
    assert stuck_share(make("ALE/Pong-v5")) == pytest.approx(0.25, abs=0.08)
    assert stuck_share(make("ALE/Pong-v5", repeat_action_probability=0.5)) == pytest.approx(0.5, abs=0.08)
    assert stuck_share(make("ALE/Pong-v5", repeat_action_probability=0.0)) == 0.0
    assert stuck_share(make(PONG)) == 0.0


def test_the_emulators_own_skip_and_sticky_actions_are_off() -> None:
    env = make("ALE/Pong-v5")
    assert env.unwrapped._frameskip == 1
    assert env.unwrapped.ale.getFloat("repeat_action_probability") == 0.0


# ----------------------------------------------------------------------------------------------- replay and workers


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [
        (PONG, {}),
        ("ALE/Breakout-v5", {"life_loss_terminates": True}),
        ("QbertNoFrameskip-v4", {"difficulty": 1}),  # a restored state alone does not bring this one back
    ],
)
def test_the_seed_and_the_actions_repeat_an_episode_bit_for_bit(env_id: str, env_kwargs: dict[str, Any]) -> None:
    assert check_replay(RegisteredEnv(env_id, env_kwargs), seed=1)


def test_a_reset_clears_the_memory_of_the_game() -> None:
    env = make("AssaultNoFrameskip-v4", noop_max=0)  # it keeps some bytes from game to game otherwise
    env.reset(seed=2)
    fresh = env.unwrapped.ale.getRAM()
    for action in np.random.default_rng(0).integers(7, size=50):
        env.step(action)
    env.reset(seed=2)
    np.testing.assert_array_equal(env.unwrapped.ale.getRAM(), fresh)


def test_the_last_action_of_an_episode_does_not_stick_to_the_next() -> None:
    env = make("ALE/Pong-v5", repeat_action_probability=0.9)
    env.reset(seed=0)
    for _ in range(50):
        env.step(RIGHT)
    spy = spy_on(env)
    for seed in range(5):
        env.reset(seed=seed)
    assert set(spy.acted) <= {Action.NOOP, Action.FIRE}


def test_another_seed_gives_another_episode_with_sticky_actions() -> None:
    env = make("ALE/Pong-v5", noop_max=0)
    last = []
    for seed in (0, 1):
        env.reset(seed=seed)
        last.append([env.step(2 + step % 2)[0] for step in range(50)][-1])
    assert not np.array_equal(*last)


def test_an_open_episode_is_restored_in_a_fresh_env() -> None:
    factory = RegisteredEnv("ALE/Breakout-v5")
    actions = np.random.default_rng(0).integers(4, size=60)
    with SyncEnvs(factory) as envs, SyncEnvs(factory) as fresh:
        envs.reset([0], [7])
        for action in actions:
            result = envs.step(np.array([action]))
        assert restore_env(fresh, 0, EpisodeRecipe(7, actions), result.obs[0])
        again, there = envs.step(np.array([2])), fresh.step(np.array([2]))
        np.testing.assert_array_equal(again.obs, there.obs)
        assert not restore_env(fresh, 0, EpisodeRecipe(8, actions), result.obs[0])


@pytest.mark.process
def test_workers_give_what_one_process_gives() -> None:
    factory = RegisteredEnv("ALE/Breakout-v5", {"life_loss_terminates": True})
    sync, workers = make_envs(factory, 2), make_envs(factory, 2, backend="local_async")
    try:
        first, second = sync.reset([0, 1], [3, 4]), workers.reset([0, 1], [3, 4])
        np.testing.assert_array_equal(first[0], second[0])
        for actions in np.random.default_rng(0).integers(4, size=(60, 2)):
            ours, theirs = sync.step(actions), workers.step(actions)
            np.testing.assert_array_equal(ours.obs, theirs.obs)
            np.testing.assert_array_equal(ours.rewards, theirs.rewards)
            assert ours.infos == theirs.infos
    finally:
        sync.close()
        workers.close()


# ------------------------------------------------------------------------------------------------- settings, errors


def test_preprocessing_can_be_switched_off() -> None:
    env = make_env_factory("ALE/Pong-v5", {"preprocess": False, "obs_type": "ram"})()
    assert env.observation_space.shape == (128,)
    env.reset(seed=0)
    env.step(NOOP)
    assert episode_frames(env) == 4  # its own skip


def test_an_id_with_its_module_and_a_pickled_factory_are_preprocessed_too() -> None:
    factory = pickle.loads(pickle.dumps(make_env_factory("ale_py:ALE/Pong-v5")))
    assert factory().observation_space.shape == (4, 84, 84)


def test_stepping_before_the_reset_is_refused() -> None:
    with pytest.raises(gym.error.ResetNeeded):
        RegisteredEnv(PONG)().step(NOOP)


@pytest.mark.parametrize(
    ("env_kwargs", "message"),
    [
        ({"frame_skip": 0}, "env_kwargs.frame_skip must be an integer of at least 1, got 0"),
        ({"frame_skip": True}, "env_kwargs.frame_skip must be an integer of at least 1, got True"),
        ({"noop_max": -1}, "env_kwargs.noop_max must be an integer of at least 0, got -1"),
        ({"screen_size": 35}, "env_kwargs.screen_size must be an integer of at least 36, got 35"),
        ({"screen_size": 84.0}, "env_kwargs.screen_size must be an integer of at least 36, got 84.0"),
        ({"frame_stack": 0}, "env_kwargs.frame_stack must be an integer of at least 1, got 0"),
        (
            {"frame_stack": 12, "grayscale": False, "screen_size": 36},
            "makes 36 layers, which must be fewer than the 36",
        ),
        ({"grayscale": 1}, "env_kwargs.grayscale must be true or false, got 1"),
        ({"fire_reset": "no"}, "env_kwargs.fire_reset must be true or false, got 'no'"),
        ({"life_loss_terminates": 0}, "env_kwargs.life_loss_terminates must be true or false, got 0"),
        ({"preprocess": "off"}, "env_kwargs.preprocess must be true or false, got 'off'"),
        ({"preprocess": False, "noop_max": 3}, "env_kwargs: noop_max cannot be set with preprocess: false"),
        ({"frameskip": 4}, "env_kwargs.frameskip cannot be set: frames are skipped once, by frame_skip"),
        ({"obs_type": "ram"}, "env_kwargs.obs_type cannot be set: see grayscale; or set preprocess: false"),
        ({"pixels": True}, "env_kwargs.pixels: Atari games are pixels already"),
        ({"max_episode_steps": 0}, "env_kwargs.max_episode_steps must be an integer of at least 1, got 0"),
        ({"repeat_action_probability": 1.5}, "env_kwargs.repeat_action_probability must be in [0, 1), got 1.5"),
        ({"frame_skp": 4}, "env_kwargs: ALE/Pong-v5 has no setting 'frame_skp'; did you mean 'frame_skip'?"),
        ({"life_loss": True}, "'life_loss'; did you mean 'life_loss_terminates'?"),
        ({"qqq": 1}, "has no setting 'qqq'; it has game, mode, difficulty,"),
        ({"qqq": 1}, "noop_max, frame_skip, screen_size, grayscale, frame_stack, life_loss_terminates, fire_reset"),
    ],
)
def test_bad_settings_are_named(env_kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_env_factory("ALE/Pong-v5", env_kwargs)
    assert message in str(error.value)


def test_an_explicit_frameskip_of_one_is_accepted() -> None:
    assert make("ALE/Pong-v5", frameskip=1).observation_space.shape == (4, 84, 84)


@pytest.mark.parametrize("module", ["ale_py", "cv2"])
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert importlib.util.find_spec(module) is None
    with pytest.raises(EnvError) as error:
        make_env_factory("ALE/Pong-v5")
    assert "pip install 'rl-training[atari]'" in str(error.value)
