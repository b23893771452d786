"""Atari games as in Mnih et al. (2015): no-ops and FIRE at the reset, skipped and pooled frames, stacked frames.

Two common protocols differ in the id: `ALE/<Game>-v5` repeats the previous action with probability 0.25 each frame
("sticky actions", Machado et al. 2018), `<Game>NoFrameskip-v4` never does. Everything else is the same for both.

The emulator is driven directly. ALE's own environment reads a colour picture every frame, four times as often as
needed, and loads the cartridge again at each seeded reset, which takes as long as about a hundred steps.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from rl_training.envs.pixels import MIN_SIZE, FrameStack, check_bool, check_integer
from rl_training.envs.slot import Env
from rl_training.errors import ConfigError

ATARI_ID = re.compile(r"^ALE/|(NoFrameskip|Deterministic)-v\d+$")  # what the ids of all games have
FRAMES_PER_SECOND = 60  # of the console
MAX_EPISODE_FRAMES = 108_000  # half an hour of play: 27,000 steps of four frames


@dataclass(frozen=True)
class AtariSettings:
    """The settings in `env_kwargs` that the preprocessing reads; all others go to `gym.make`."""

    noop_max: int = 30
    frame_skip: int = 4
    screen_size: int = 84
    grayscale: bool = True
    frame_stack: int = 4
    life_loss_terminates: bool = False
    fire_reset: bool = True

    def __post_init__(self) -> None:
        minimum = {"noop_max": 0, "frame_skip": 1, "screen_size": MIN_SIZE, "frame_stack": 1}
        for name, value in asdict(self).items():
            if name in minimum:
                check_integer(name, value, minimum[name])
            else:
                check_bool(name, value)


SETTINGS = ("preprocess", *(field.name for field in fields(AtariSettings)))

# Settings of `gym.make` that the preprocessing sets itself -> what to do instead.
RESERVED = {
    "frameskip": "frames are skipped once, by frame_skip",
    "obs_type": "see grayscale",
    "sound_obs": "only pictures are observed",
    "continuous": "it supports only discrete actions",
}


class AtariFrames(gym.Wrapper[np.ndarray, Any, Any, Any]):
    """Play a new ALE `env` that has no frame skip and no sticky actions of its own: this class applies both.

    Observation: (frame_stack, size, size) uint8 if grey, else (3 * frame_stack, size, size), oldest frame first.
    Rewards are raw sums over the skipped frames; rewards of the no-ops and FIRE at the reset are dropped. `info` is
    empty. With `life_loss_terminates` it has `life_lost` where a life was lost; the episode continues. `reset(seed)`
    and the same actions repeat an episode.
    """

    def __init__(self, env: Env, settings: AtariSettings, *, sticky: float) -> None:
        from ale_py import Action

        super().__init__(env)
        game: Any = env
        self._ale = game.ale
        self._settings, self._sticky = settings, sticky
        self._actions = [Action.__members__[meaning] for meaning in game.get_action_meanings()]
        self._noop = Action.NOOP
        self._fire = Action.FIRE if settings.fire_reset and Action.FIRE in self._actions else None
        self._last_action = self._noop  # of the previous frame
        self._lives = 0
        # The memory of a game survives `reset_game`; in a third of the games that changes the next episode.
        self._power_on_state = self._ale.cloneState()

        height, width = self._ale.getScreenDims()
        shape = (height, width) if settings.grayscale else (height, width, 3)
        self._read_screen = self._ale.getScreenGrayscale if settings.grayscale else self._ale.getScreenRGB
        self._screen, self._screen_before = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
        self._frames = FrameStack(settings.frame_stack, settings.screen_size, grayscale=settings.grayscale)
        self.observation_space = self._frames.space
        # One picture per step, at the speed of the console.
        self.metadata = {**env.metadata, "render_fps": FRAMES_PER_SECOND / settings.frame_skip}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        gym.Env.reset(self.env, seed=seed)  # only seeds np_random
        self._start_game()
        if self._settings.noop_max > 0:
            for _ in range(int(self.np_random.integers(1, self._settings.noop_max + 1))):
                self._ale.act(self._noop)
                self._restart_if_over()
        self._read_screen(self._screen)
        if self._fire is not None:
            self._advance(self._fire)
            if self._restart_if_over():  # then without FIRE
                self._read_screen(self._screen)
        self._lives = self._ale.lives()
        return self._frames.restart(self._screen), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = self._advance(self._actions[action])
        terminated, truncated = self._ale.game_over(with_truncation=False), self._ale.game_truncated()
        lives_before, self._lives = self._lives, self._ale.lives()
        # Some games continue for a few frames without a life left: their end is the termination.
        life_lost = self._settings.life_loss_terminates and 0 < self._lives < lives_before
        return self._frames.push(self._screen), reward, terminated, truncated, {"life_lost": True} if life_lost else {}

    def _advance(self, action: Any) -> float:
        """Send `action` to the emulator for `frame_skip` frames; `_screen` is then the maximum of the last two.

        Once the game is over, the emulator stays at its last screen.
        """
        frame_skip, reward = self._settings.frame_skip, 0
        stuck = self.np_random.random(frame_skip) < self._sticky if self._sticky > 0 else None
        for frame in range(frame_skip):
            if stuck is None or not stuck[frame]:
                self._last_action = action
            reward += self._ale.act(self._last_action)
            if frame == frame_skip - 2:
                self._read_screen(self._screen_before)
        self._read_screen(self._screen)
        np.maximum(self._screen, self._screen_before, out=self._screen)  # with one frame, the other stays black
        return float(reward)

    def _start_game(self) -> None:
        self._ale.restoreState(self._power_on_state)
        self._ale.reset_game()
        self._last_action = self._noop

    def _restart_if_over(self) -> bool:
        over = bool(self._ale.game_over())
        if over:
            self._start_game()
        return over


def make_atari(env_id: str, env_kwargs: Mapping[str, Any]) -> Env:
    """Build a game by its id, preprocessed unless `env_kwargs` hold `preprocess: false`."""
    kwargs = dict(env_kwargs)
    given = {name: kwargs.pop(name) for name in SETTINGS if name in kwargs}
    preprocess = given.pop("preprocess", True)
    check_bool("preprocess", preprocess)
    if kwargs.pop("pixels", False):
        raise ConfigError("env_kwargs.pixels: Atari games are pixels already; see screen_size, grayscale, frame_stack")
    if not preprocess and given:
        raise ConfigError(f"env_kwargs: {', '.join(given)} cannot be set with preprocess: false, which turns it off")
    settings = AtariSettings(**given)

    from ale_py import ALEInterface, LoggerMode

    ALEInterface.setLoggerMode(LoggerMode.Error)  # otherwise the first game prints a banner
    if not preprocess:
        return gym.make(env_id, **kwargs)
    for name, remedy in RESERVED.items():
        if name in kwargs and (name, kwargs[name]) != ("frameskip", 1):
            raise ConfigError(f"env_kwargs.{name} cannot be set: {remedy}; or set preprocess: false")
    max_episode_steps = kwargs.pop("max_episode_steps", MAX_EPISODE_FRAMES // settings.frame_skip)
    check_integer("max_episode_steps", max_episode_steps, 1)
    spec = gym.registry.get(env_id.rpartition(":")[2])
    sticky = kwargs.get("repeat_action_probability", spec.kwargs["repeat_action_probability"] if spec else 0.0)
    if not isinstance(sticky, int | float) or not 0.0 <= sticky < 1.0:
        raise ConfigError(f"env_kwargs.repeat_action_probability must be in [0, 1), got {sticky!r}")
    # This limit counts steps; ALE's own would also count the frames of the no-ops.
    kwargs = {"max_num_frames_per_episode": 0, **kwargs, "frameskip": 1, "repeat_action_probability": 0.0}
    game = gym.make(env_id, **kwargs).unwrapped
    return TimeLimit(OrderEnforcing(AtariFrames(game, settings, sticky=sticky)), max_episode_steps)
