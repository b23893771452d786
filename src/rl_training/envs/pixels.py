"""Images as observations: the stack of small frames that Atari and rendered environments share, and the wrapper.

OpenCV resizes the images; it is imported when the first environment needs it.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from rl_training.core.frame_space import FrameStackSpace
from rl_training.envs.slot import Env
from rl_training.errors import ConfigError, EnvError

MIN_SIZE = 36  # the smallest image that the Nature network accepts


def check_integer(setting: str, value: object, minimum: int) -> None:
    if type(value) is not int or value < minimum:  # rejects bools, which are ints
        raise ConfigError(f"env_kwargs.{setting} must be an integer of at least {minimum}, got {value!r}")


def check_bool(setting: str, value: object) -> None:
    if type(value) is not bool:
        raise ConfigError(f"env_kwargs.{setting} must be true or false, got {value!r}")


class FrameStack:
    """The newest `num_frames` images of an episode, resized to `size` pixels a side; the newest is last.

    An observation is (num_frames * colours, size, size) uint8 with 1 or 3 colours; each is a new array.
    """

    def __init__(self, num_frames: int, size: int, *, grayscale: bool) -> None:
        import cv2

        # One thread per environment: OpenCV's threads do not survive the fork of a worker, and would use other cores.
        cv2.setNumThreads(0)
        self.cv2 = cv2
        colours = 1 if grayscale else 3
        layers = num_frames * colours
        if layers >= size:  # otherwise the encoder would read the layers as rows
            raise ConfigError(
                f"env_kwargs: frame_stack {num_frames} times {colours} colour(s) makes {layers} layers, which must be "
                f"fewer than the {size} pixels of a side"
            )
        self.space = FrameStackSpace(num_frames, (layers, size, size))
        self._frames: np.ndarray = np.zeros((num_frames, colours, size, size), np.uint8)

    def restart(self, image: np.ndarray) -> np.ndarray:
        """Fill the whole stack with the first image of an episode: (height, width) grey or (height, width, 3)."""
        self._frames[:] = self._shrink(image)
        return self._observation()

    def push(self, image: np.ndarray) -> np.ndarray:
        """Drop the oldest image and add this one."""
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = self._shrink(image)
        return self._observation()

    def _shrink(self, image: np.ndarray) -> np.ndarray:
        small = self.cv2.resize(image, self._frames.shape[2:], interpolation=self.cv2.INTER_AREA)
        return small if small.ndim == 2 else small.transpose(2, 0, 1)

    def _observation(self) -> np.ndarray:
        return np.array(self._frames.reshape(self.space.shape))


# --- What an env renders ---------------------------------------------------------------------------------------------


def render_image(env: Env) -> np.ndarray:
    """Return the picture that an env with `render_mode="rgb_array"` renders, (height, width, 3) uint8."""
    image = env.render()
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape[2:] != (3,):
        found = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise EnvError(f"must render (height, width, 3) uint8 images to be seen, but gave {found}")
    return image


@dataclass(frozen=True)
class PixelSettings:
    """The settings under `env_kwargs.pixels`."""

    size: int = 84
    grayscale: bool = True
    frame_stack: int = 4

    def __post_init__(self) -> None:
        check_integer("pixels.size", self.size, MIN_SIZE)
        check_bool("pixels.grayscale", self.grayscale)
        check_integer("pixels.frame_stack", self.frame_stack, 1)

    @classmethod
    def parse(cls, given: object) -> "PixelSettings | None":
        """Parse the value of `env_kwargs.pixels`; None: no pixels."""
        if type(given) is bool:
            return cls() if given else None
        known = [field.name for field in fields(cls)]
        if not isinstance(given, Mapping):
            raise ConfigError(f"env_kwargs.pixels must be true, false or settings ({', '.join(known)}), got {given!r}")
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
                raise ConfigError(f"env_kwargs.pixels: unknown setting {name!r}; {hint}")
        return cls(**given)


class PixelObservation(gym.Wrapper[np.ndarray, Any, Any, Any]):
    """Observe what `env` renders instead of what it returns; `env` must have `render_mode="rgb_array"`.

    The observation is (frame_stack, size, size) uint8 if grey, (3 * frame_stack, size, size) otherwise, oldest
    frame first. A reset fills the stack with its image.
    """

    def __init__(self, env: Env, settings: PixelSettings | None = None) -> None:
        super().__init__(env)
        if env.render_mode != "rgb_array":
            raise EnvError(f"must have render_mode 'rgb_array' to be observed as pixels, but has {env.render_mode!r}")
        settings = settings or PixelSettings()
        self._grayscale = settings.grayscale
        self._frames = FrameStack(settings.frame_stack, settings.size, grayscale=settings.grayscale)
        self.observation_space = self._frames.space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options=options)
        return self._frames.restart(self._render()), info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = self.env.step(action)
        return self._frames.push(self._render()), reward, terminated, truncated, info

    def _render(self) -> np.ndarray:
        image = render_image(self.env)
        if not self._grayscale:
            return image
        cv2 = self._frames.cv2
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))


def make_pixels(env_id: str | EnvSpec, env_kwargs: Mapping[str, Any], settings: PixelSettings) -> Env:
    """Build an environment by its id and observe it as pixels; `env_kwargs` go to `gym.make`."""
    render_mode = env_kwargs.get("render_mode", "rgb_array")
    if render_mode != "rgb_array":
        raise ConfigError(f"env_kwargs.render_mode must be 'rgb_array', or absent, with pixels, got {render_mode!r}")
    try:
        env = gym.make(env_id, **{**env_kwargs, "render_mode": render_mode})
    except TypeError as cause:
        if "unexpected keyword argument 'render_mode'" in str(cause):
            raise ConfigError(f"env_kwargs.pixels: {env_id} does not render (it has no render_mode)") from cause
        raise
    try:
        return PixelObservation(env, settings)
    except ModuleNotFoundError as cause:
        env.close()
        raise EnvError("env_kwargs.pixels needs OpenCV: pip install 'rl-training[pixels]'") from cause
