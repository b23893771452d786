"""MinAtar (Young and Tian 2019): five Atari games on a grid of 10x10 cells, as Gymnasium environments.

Registered when `rl_training.envs.factory` is imported: `MinAtar/<Game>-v0` has all six actions, as in the published
scores, `-v1` only those that do something in the game. The package `minatar` is imported with the first game. Its own
Gymnasium class is not used: there an action of one episode can carry over to the next, and the end of Freeway, a time
limit, is a termination.
"""

import colorsys
import importlib
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from rl_training.envs.pixels import check_bool
from rl_training.errors import ConfigError

# Name in the env id -> name in the package.
GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
# Env id -> the game, and whether it has only the minimal actions.
MINATAR_IDS = {f"MinAtar/{game}-v{int(minimal)}": (game, minimal) for game in GAMES for minimal in (False, True)}
# Only Freeway has a limit of its own, 2,500 steps; a good player might never end another game. Four times that limit
# cuts off no published score: the 50 bricks of the best scores in Breakout take about 1,000 steps.
MAX_EPISODE_STEPS = 10_000
CELL = 16  # pixels a side in a rendered picture


def register_minatar_envs() -> None:
    """Register the games with gymnasium, in place of the package's own if there are any; a second call does nothing."""
    for env_id, (game, minimal) in MINATAR_IDS.items():
        registered, entry_point = gym.registry.get(env_id), f"{__name__}:{MinAtar.__name__}"
        if registered is None or registered.entry_point != entry_point:
            gym.registry.pop(env_id, None)
            kwargs = {"game": game, "minimal_actions": minimal}
            gym.register(env_id, entry_point, max_episode_steps=MAX_EPISODE_STEPS, kwargs=kwargs)


class MinAtar(gym.Env[np.ndarray, np.int64]):
    """A game by its name. Observation: (10, 10, channels) bool, one channel per kind of object.

    `sticky_action_prob`: probability that a step repeats the previous action instead of the chosen one.
    `difficulty_ramping`: Asterix, Seaquest and SpaceInvaders get faster during a game. `reset(seed)` and the same
    actions repeat an episode: that of a new `minatar.Environment` with this seed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 (gymnasium declares it so)

    def __init__(
        self,
        game: str,
        *,
        minimal_actions: bool = False,
        sticky_action_prob: float = 0.1,
        difficulty_ramping: bool = True,
        render_mode: str | None = None,
    ) -> None:
        is_number = isinstance(sticky_action_prob, int | float) and not isinstance(sticky_action_prob, bool)
        if not is_number or not 0.0 <= sticky_action_prob < 1.0:
            raise ConfigError(f"env_kwargs.sticky_action_prob must be in [0, 1), got {sticky_action_prob!r}")
        check_bool("difficulty_ramping", difficulty_ramping)
        package = importlib.import_module("minatar")
        self._game: Any = package.Environment(GAMES[game], sticky_action_prob, difficulty_ramping)
        # One generator for both, seeded again at each reset: the package's `seed` builds one each time, in 100 us.
        self._random = self._game.env.random = self._game.random
        self._actions: list[int] = self._game.minimal_action_set() if minimal_actions else list(range(6))
        self._ends_by_time = game == "Freeway"
        self.action_space = Discrete(len(self._actions))
        # Flags, not numbers of 0 to 255: the encoder passes them to the network as 0 and 1.
        self.observation_space = Box(0, 1, tuple(self._game.state_shape()), np.bool_)
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._random.seed(seed)
        game = self._game
        game.last_action = 0  # its own reset keeps it
        game.reset()
        return game.state(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, ended = self._game.act(self._actions[action])
        # Freeway ends only when its time is up; no cell shows how much is left.
        if self._ends_by_time:
            return self._game.state(), float(reward), False, ended, {}
        return self._game.state(), float(reward), ended, False, {}

    def render(self) -> np.ndarray | None:
        """Return the cells in the colour of their last channel, 160 x 160 pixels."""
        if self.render_mode is None:
            return None
        state = self._game.state()
        channels = state.shape[2]
        hues = [colorsys.hsv_to_rgb(channel / channels, 0.8, 1.0) for channel in range(channels)]
        colours = np.array([(0.0, 0.0, 0.0), *hues]) * 255
        cells = (state * np.arange(1, channels + 1)).max(2)
        return np.repeat(np.repeat(colours[cells].astype(np.uint8), CELL, 0), CELL, 1)
