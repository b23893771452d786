"""Integer observations are scaled by what random episodes show, and a run keeps what was decided."""

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete

from rl_training import PPO
from rl_training.core.integer_obs import PIXEL_MAX
from rl_training.envs.seen_values import EPISODES, STEPS_PER_EPISODE, largest_values
from rl_training.envs.tiny import TinyImage
from rl_training.errors import EnvError
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.models.encoders import ImageInput
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from tampering import edit_manifest

SMALL = {"hidden_sizes": [8], "num_steps": 16, "minibatch_size": 16, "update_epochs": 1}


class Grid(gym.Env[np.ndarray, np.int64]):
    """A grid of categories that declares the range of pixels; the last step of an episode shows `last`."""

    def __init__(self, largest: int = 10, last: int = 0) -> None:
        self.observation_space = Box(0, 255, (5, 5, 2), np.uint8)
        self.action_space = Discrete(2)
        self._largest, self._last, self.num_steps = largest, last, 0

    def _obs(self, extra: int = 0) -> np.ndarray:
        obs = self.np_random.integers(self._largest + 1, size=(5, 5, 2), dtype=np.uint8)
        obs[0, 0, 0] = max(self._largest, extra)
        return obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        ended = self.num_steps == 8
        return self._obs(self._last if ended else 0), 1.0, ended, False, {}


def agent(tmp_path: Path, env: Any = Grid, steps: int = 32, **settings: Any) -> Any:
    return PPO.for_env(
        env, steps, output_dir=tmp_path, algo_kwargs=SMALL, show_progress=False, eval_episodes=1, **settings
    )


def scale_of(agent: Any) -> float:
    (image_input,) = (part for part in agent._algorithm._network.module.modules() if isinstance(part, ImageInput))
    return image_input._scale


def test_the_largest_value_of_whole_episodes_is_found() -> None:
    assert largest_values(Grid) == {"": 10}
    assert largest_values(lambda: Grid(last=20)) == {"": 20}


def test_the_check_ends_at_the_first_image_with_pixels() -> None:
    env = TinyImage()
    assert largest_values(lambda: env) == {"": 255}
    assert env._num_steps == 0


def test_the_check_is_bounded() -> None:
    class Endless(Grid):
        steps = itertools.count()

        def step(self, action: Any) -> Any:
            next(self.steps)
            self.num_steps = 0
            return super().step(action)

    largest_values(Endless)
    assert next(Endless.steps) == EPISODES * STEPS_PER_EPISODE


def test_parts_are_told_apart_and_vectors_are_not_tried() -> None:
    class Parts(gym.ObservationWrapper[Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__(Grid())
            pixels = Box(0, 255, (3, 3), np.uint8)
            self.observation_space = spaces.Dict({"grid": self.env.observation_space, "pixels": pixels})

        def observation(self, observation: Any) -> Any:
            return {"grid": observation, "pixels": np.full((3, 3), 200, np.uint8)}

    assert largest_values(Parts) == {"grid": 10, "pixels": 200}
    assert largest_values(lambda: gym.make("CartPole-v1")) == {}


def test_an_environment_that_fails_is_named() -> None:
    class Fails(Grid):
        def step(self, action: Any) -> Any:
            raise OSError("no screen")

    with pytest.raises(EnvError, match=r"the check of the values of observations failed: it raised OSError: no screen"):
        largest_values(Fails)


def test_a_run_decides_once_says_it_and_keeps_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rl_training")
    trained = agent(tmp_path)
    result = trained.learn()
    assert "integer observations are divided by 10 (obs_max)" in caplog.text
    checkpoint = open_checkpoint(result.checkpoint)
    assert checkpoint.config.obs_max == 10
    assert json.loads((result.run_dir / "metadata.json").read_text())["starts"][0]["obs_max"] == 10

    loaded = PPO.load(result.checkpoint, env_factory=lambda: Grid(largest=3))  # not decided again
    obs = Grid().reset(seed=3)[0]
    assert loaded.predict(obs) == trained.predict(obs)
    assert scale_of(loaded) == pytest.approx(0.1)


def test_one_hot_observations_train_and_load(tmp_path: Path) -> None:
    result = agent(tmp_path, one_hot_obs=True).learn()
    loaded = PPO.load(result.checkpoint, env_factory=Grid)
    assert loaded.predict(Grid().reset(seed=3)[0]) in (0, 1)


def test_a_given_value_is_not_tried(tmp_path: Path) -> None:
    result = agent(tmp_path, obs_max=20).learn()
    assert open_checkpoint(result.checkpoint).config.obs_max == 20


def test_checkpoints_without_the_setting_divided_by_255(tmp_path: Path) -> None:
    result = agent(tmp_path).learn()
    edit_manifest(result.checkpoint, lambda manifest: manifest["config"].pop("obs_max"), own=True)
    assert open_checkpoint(result.checkpoint).config.obs_max == PIXEL_MAX
    resumed = PPO.load(result.checkpoint, env_factory=Grid, show_progress=False)
    resumed.learn(48)
    assert scale_of(resumed) == pytest.approx(1 / 255)


def test_predict_takes_what_the_environment_returns_also_in_a_callback(tmp_path: Path) -> None:
    actions = []

    class Predicts(Callback):
        def on_end(self, run: Run) -> None:
            actions.append(run.predict(np.full((5, 5, 2), 200, np.uint8)))  # a value that was not seen

    agent(tmp_path, one_hot_obs=True, callbacks=[Predicts()]).learn()
    assert actions[0] in (0, 1)
