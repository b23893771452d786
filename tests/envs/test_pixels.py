"""Rendered pictures as observations: their colours, their stack, and what is refused."""

import sys
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformReward

from rl_training.core.frame_space import FrameStackSpace
from rl_training.envs import resumable
from rl_training.envs.factory import RegisteredEnv, make_env_factory, make_envs
from rl_training.envs.pixels import PixelObservation, PixelSettings
from rl_training.envs.resumable import EpisodeRecipe, check_replay, restore_env
from rl_training.envs.slot import check_env
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, EnvError

CARTPOLE = RegisteredEnv("CartPole-v1", {"pixels": {"size": 48, "frame_stack": 2}})


class Lamp(gym.Env[np.ndarray, np.int64]):
    """Renders one colour, redder by 10 with each step; `broken` is what it renders instead."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, broken: Any = None) -> None:
        self.observation_space, self.action_space = Box(0, 1, (1,), np.float32), Discrete(2)
        self.render_mode, self._broken = render_mode, broken
        self._num_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return np.zeros(1, np.float32), {"from": "reset"}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        return np.zeros(1, np.float32), 0.5, self._num_steps == 5, False, {"from": "step"}

    def render(self) -> Any:
        if self._broken is not None:
            return self._broken
        picture = np.zeros((100, 120, 3), np.uint8)
        picture[:, :] = (100 + 10 * self._num_steps, 50, 200)
        return picture


@pytest.fixture(autouse=True)
def _lamp(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gym.envs.registration.EnvSpec("Lamp-v0", entry_point=lambda **kwargs: Lamp(**kwargs))
    monkeypatch.setitem(gym.registry, "Lamp-v0", spec)


def make(pixels: Any = True, **env_kwargs: Any) -> Any:
    return RegisteredEnv("Lamp-v0", {"pixels": pixels, **env_kwargs})()


# ------------------------------------------------------------------------------------------------------ the pictures


def test_grey_frames_are_stacked_oldest_first() -> None:
    env = make({"frame_stack": 3})
    obs, info = env.reset(seed=0)
    # 0.299 * 100 + 0.587 * 50 + 0.114 * 200 = 82.05; ten more red makes 2.99 more.
    np.testing.assert_array_equal(obs, np.full((3, 84, 84), 82))
    assert (obs.dtype, info) == (np.uint8, {"from": "reset"})
    for _ in range(3):
        obs, reward, terminated, truncated, info = env.step(0)
    assert obs[:, 0, 0].tolist() == [85, 88, 91]
    assert obs in env.observation_space
    assert (reward, terminated, truncated, info) == (0.5, False, False, {"from": "step"})
    obs, _ = env.reset(seed=0)
    assert obs[:, 0, 0].tolist() == [82, 82, 82]


def test_colours_are_layers_of_their_own() -> None:
    env = make({"grayscale": False, "frame_stack": 2, "size": 40})
    env.reset(seed=0)
    obs = env.step(0)[0]
    assert obs.shape == env.observation_space.shape == (6, 40, 40)
    assert obs[:, 7, 7].tolist() == [100, 50, 200, 110, 50, 200]


def test_settings_default_to_four_grey_frames_of_84_pixels() -> None:
    assert make().observation_space == FrameStackSpace(4, (4, 84, 84))
    assert PixelSettings.parse(False) is None
    assert RegisteredEnv("Lamp-v0", {"pixels": False})().observation_space.shape == (1,)


def test_the_space_declares_the_number_of_stacked_frames_and_their_size() -> None:
    grey, colour = make({"frame_stack": 3}), make({"frame_stack": 2, "grayscale": False, "size": 40})
    assert grey.observation_space == FrameStackSpace(3, (3, 84, 84))
    assert colour.observation_space == FrameStackSpace(2, (6, 40, 40))
    assert colour.observation_space.frame_shape == (3, 40, 40)
    assert (grey.observation_space.low.max(), grey.observation_space.high.min()) == (0, 255)


@pytest.mark.parametrize("backend", ["local_sync", pytest.param("local_async", marks=pytest.mark.process)])
def test_a_group_has_the_space_of_its_envs(backend: Any) -> None:
    envs = make_envs(CARTPOLE, 2, backend=backend)
    envs.close()
    assert envs.observation_space == FrameStackSpace(2, (2, 48, 48))


class Grey(gym.ObservationWrapper[np.ndarray, Any, Any]):
    """Observes one grey picture of `shape`, all of its number of steps; `high` as in the space."""

    def __init__(self, env: Any, shape: tuple[int, ...] = (40, 40), low: int = 0, high: int = 255) -> None:
        super().__init__(env)
        self.observation_space = Box(low, high, shape, np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        assert isinstance(self.unwrapped, Lamp)
        return np.full(self.observation_space.shape or (), self.unwrapped._num_steps, np.uint8)


class Brighter(gym.ObservationWrapper[np.ndarray, Any, Any]):
    """Another space around a stack, although of the same shape."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = Box(0, 255, env.observation_space.shape, np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        return np.asarray(observation + 1)


@pytest.mark.process
def test_a_stack_of_gymnasiums_own_wrapper_is_recognised() -> None:
    def make_stack() -> Any:
        return TimeLimit(
            TransformReward(FrameStackObservation(Grey(Lamp(), high=9), 3), lambda reward: 2 * float(reward)), 4
        )

    env = make_stack()
    assert check_env(env) is env
    assert env.observation_space == FrameStackSpace(3, (3, 40, 40), high=9)
    sync, workers = make_envs(make_stack), make_envs(make_stack, backend="local_async")
    for envs in (sync, workers):
        assert envs.observation_space == env.observation_space
        assert envs.reset([0], [0])[0][0, :, 0, 0].tolist() == [0, 0, 0]
        assert [envs.step(np.array([0])).obs[0, :, 0, 0].tolist() for _ in range(2)] == [[0, 0, 1], [0, 1, 2]]
        envs.close()


@pytest.mark.parametrize(
    "env",
    [
        FrameStackObservation(Grey(Lamp(), (40, 40, 1)), 3),  # four axes are no image
        FrameStackObservation(Grey(Lamp(), low=1), 3),
        FrameStackObservation(Lamp(), 3),  # of one number, and a float
        Brighter(FrameStackObservation(Grey(Lamp()), 3)),  # what is around it may change what it stacked
        Grey(Lamp(), (3, 40, 40)),
    ],
)
def test_what_is_no_stack_of_pictures_keeps_its_space(env: Any) -> None:
    space = env.observation_space
    assert check_env(env).observation_space is space
    assert type(space) is Box


def test_pictures_are_shrunk_by_area() -> None:
    env = CARTPOLE()
    obs, _ = env.reset(seed=0)
    grey = cv2.cvtColor(np.asarray(env.render()), cv2.COLOR_RGB2GRAY)
    np.testing.assert_array_equal(obs[-1], cv2.resize(grey, (48, 48), interpolation=cv2.INTER_AREA))
    assert len(np.unique(obs)) > 10


def test_each_observation_is_an_array_of_its_own() -> None:
    env = make()
    first, _ = env.reset(seed=0)
    second = env.step(0)[0]
    assert first[-1, 0, 0] == 82
    second[:] = 0
    assert env.step(0)[0][:, 0, 0].tolist() == [82, 82, 85, 88]


def test_any_env_can_be_wrapped_from_python() -> None:
    env = PixelObservation(gym.make("CartPole-v1", render_mode="rgb_array"))
    assert env.reset(seed=0)[0].shape == (4, 84, 84)


# ----------------------------------------------------------------------------------------------- replay and workers


def test_the_seed_and_the_actions_repeat_an_episode_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable, "PAST_STEPS", 30)  # pictures take time
    monkeypatch.setattr(resumable, "TRIAL_STEPS", 5)
    assert check_replay(CARTPOLE, seed=0)


def test_an_open_episode_is_restored_in_a_fresh_env() -> None:
    actions = np.array([0, 1, 1, 0, 1])
    with SyncEnvs(CARTPOLE) as envs, SyncEnvs(CARTPOLE) as fresh:
        envs.reset([0], [7])
        for action in actions:
            result = envs.step(np.array([action]))
        assert restore_env(fresh, 0, EpisodeRecipe(7, actions), result.obs[0])
        assert not restore_env(fresh, 0, EpisodeRecipe(7, actions[::-1]), result.obs[0])


@pytest.mark.process
def test_workers_give_what_one_process_gives() -> None:
    sync, workers = make_envs(CARTPOLE, 2), make_envs(CARTPOLE, 2, backend="local_async")
    try:
        np.testing.assert_array_equal(sync.reset([0, 1], [3, 4])[0], workers.reset([0, 1], [3, 4])[0])
        for action in (0, 1, 1, 0, 1):
            ours, theirs = sync.step(np.full(2, action)), workers.step(np.full(2, action))
            np.testing.assert_array_equal(ours.obs, theirs.obs)
    finally:
        sync.close()
        workers.close()


# ------------------------------------------------------------------------------------------------- settings, errors


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (3, "env_kwargs.pixels must be true, false or settings (size, grayscale, frame_stack), got 3"),
        (None, "env_kwargs.pixels must be true, false or settings (size, grayscale, frame_stack), got None"),
        ({"siz": 64}, "env_kwargs.pixels: unknown setting 'siz'; did you mean 'size'?"),
        ({"qqq": 64}, "env_kwargs.pixels: unknown setting 'qqq'; it has size, grayscale, frame_stack"),
        ({"size": 35}, "env_kwargs.pixels.size must be an integer of at least 36, got 35"),
        ({"size": "84"}, "env_kwargs.pixels.size must be an integer of at least 36, got '84'"),
        ({"frame_stack": 0}, "env_kwargs.pixels.frame_stack must be an integer of at least 1, got 0"),
        ({"grayscale": "yes"}, "env_kwargs.pixels.grayscale must be true or false, got 'yes'"),
        ({"frame_stack": 28, "grayscale": False}, "makes 84 layers, which must be fewer than the 84 pixels of a side"),
    ],
)
def test_bad_settings_are_named(pixels: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_env_factory("Lamp-v0", {"pixels": pixels})
    assert message in str(error.value)


def test_another_render_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env_kwargs.render_mode must be 'rgb_array', or absent, .* got 'human'"):
        make(render_mode="human")


def test_a_misspelt_pixels_is_recognised() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1 has no setting 'pixel'; did you mean 'pixels'"):
        make_env_factory("CartPole-v1", {"pixel": True})


@pytest.mark.filterwarnings("ignore:.*render_mode='rgb_array' that is not in the possible")
def test_an_env_without_a_render_mode_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"env_kwargs.pixels: rl_training/Chain-v0 does not render"):
        make_env_factory("rl_training/Chain-v0", {"pixels": True})
    with pytest.raises(EnvError, match="must have render_mode 'rgb_array' to be observed as pixels, but has None"):
        PixelObservation(gym.make("CartPole-v1"))


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        ("text", "str"),
        (np.zeros((8, 8), np.uint8), r"uint8 \(8, 8\)"),
        (np.zeros((8, 8, 3)), r"float64 \(8, 8, 3\)"),
        (np.zeros((8, 8, 4), np.uint8), r"uint8 \(8, 8, 4\)"),
    ],
)
def test_images_of_another_kind_are_refused(broken: Any, found: str) -> None:
    message = rf"'Lamp-v0': the environment must render \(height, width, 3\) uint8 images .* but gave {found}"
    with pytest.raises(EnvError, match=message):
        make_env_factory("Lamp-v0", {"pixels": True, "broken": broken})


def test_missing_opencv_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(EnvError, match=r"env_kwargs.pixels needs OpenCV: pip install 'rl-training\[pixels\]'"):
        make_env_factory("Lamp-v0", {"pixels": True})
