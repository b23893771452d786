"""Environments of other packages: what a run with one of them says, and whether its resume is exact.

`packages.py` starts this module once per case, in the virtual environment that has the packages:
`python -m benchmarks.package_case NAME` prints one JSON object as its last line.
"""

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.exactness import Case, differences, run_broken, run_unbroken
from rl_training import RunOptions, TrainConfig, train
from rl_training.errors import UserError
from rl_training.runtime.evaluation import mean_return

STOPS = (50, 90)  # env steps at which a run is stopped and resumed
LEARNING_STEPS = 20_000

SETTINGS: dict[str, Any] = {
    "total_timesteps": 120,
    "log_interval": 40,
    "eval_interval": 0,
    "eval_episodes": 1,
    "checkpoint_interval": 0,
}
REPLAY = {"learning_starts": 40}
IMAGES = {"buffer_capacity": 100, "batch_size": 4, "train_frequency": 10}


@dataclass(frozen=True, kw_only=True)
class PackageCase:
    """One environment: the settings that a user tries first, and those that the message about it names."""

    package: str
    env_id: str
    algo: str
    first: Mapping[str, Any] = field(default_factory=dict)
    remedy: Mapping[str, Any] | None = None  # added to `first`, if that is refused
    algo_kwargs: Mapping[str, Any] = field(default_factory=dict)
    env_factory: Any = None


class Crafter(gym.Env[Any, Any]):
    """Crafter has the interface of gym before 0.26; this is the adapter that its user writes."""

    def __init__(self) -> None:
        self._env = crafter_as_it_is()
        self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(17)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._env._seed, self._env._episode = seed, 0
        return self._env.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, ended, _ = self._env.step(int(action))
        alive = self._env._player.health > 0
        return obs, float(reward), ended and not alive, ended and alive, {}


def crafter_as_it_is() -> Any:
    return importlib.import_module("crafter").Env(length=60)


NO_TEXT = {"class": "gymnasium.wrappers:FilterObservation", "filter_keys": ["direction", "image"]}
ONLY_IMAGE = "minigrid.wrappers:ImgObsWrapper"
SUM_REWARDS = {"wrappers": ["mo_gymnasium.wrappers:LinearReward"]}
SHORT = {"env_kwargs": {"max_episode_steps": 40}}
RAW_PONG = {"preprocess": False, "max_episode_steps": 40}
STACK = {"class": "gymnasium.wrappers:FrameStackObservation", "stack_size": 4}

CASES: dict[str, PackageCase] = {
    "minigrid": PackageCase(
        package="minigrid",
        env_id="minigrid:MiniGrid-Empty-5x5-v0",
        algo="ppo",
        remedy={"wrappers": [NO_TEXT]},
    ),
    "minigrid-doors": PackageCase(
        package="minigrid",
        env_id="minigrid:MiniGrid-DoorKey-5x5-v0",
        algo="dqn",
        first={"wrappers": [ONLY_IMAGE], "one_hot_obs": True},
    ),
    "fetch": PackageCase(
        package="gymnasium-robotics", env_id="gymnasium_robotics:FetchReach-v4", algo="sac", first=SHORT
    ),
    "maze": PackageCase(
        package="gymnasium-robotics", env_id="gymnasium_robotics:PointMaze_UMaze-v3", algo="td3", first=SHORT
    ),
    "parking": PackageCase(package="highway-env", env_id="highway_env:parking-v0", algo="sac", first=SHORT),
    "deep-sea": PackageCase(
        package="mo-gymnasium",
        env_id="mo_gymnasium:deep-sea-treasure-v0",
        algo="dqn",
        first=SHORT,
        remedy=SUM_REWARDS,
    ),
    "minecart": PackageCase(
        package="mo-gymnasium", env_id="mo_gymnasium:minecart-v0", algo="ppo", first=SHORT, remedy=SUM_REWARDS
    ),
    "crafter": PackageCase(
        package="crafter",
        env_id="Crafter",
        algo="dqn",
        algo_kwargs=IMAGES,
        env_factory=crafter_as_it_is,
        remedy={"env_factory": "benchmarks.package_case:Crafter"},
    ),
    "miniworld": PackageCase(
        package="miniworld", env_id="miniworld:MiniWorld-OneRoom-v0", algo="dqn", first=SHORT, algo_kwargs=IMAGES
    ),
    "dm-control": PackageCase(
        package="shimmy", env_id="shimmy:dm_control/cartpole-balance-v0", algo="sac", first=SHORT
    ),
    "popgym-tuple": PackageCase(package="popgym", env_id="popgym:popgym-ConcentrationEasy-v0", algo="ppo"),
    "popgym": PackageCase(package="popgym", env_id="popgym:popgym-RepeatPreviousEasy-v0", algo="ppo"),
    "flappy-bird": PackageCase(
        package="flappy-bird-gymnasium", env_id="flappy_bird_gymnasium:FlappyBird-v0", algo="dqn", first=SHORT
    ),
    "atari-ram": PackageCase(
        package="ale-py",
        env_id="ALE/Pong-v5",
        algo="dqn",
        first={"env_kwargs": {**RAW_PONG, "obs_type": "ram"}},
    ),
    "atari-colours": PackageCase(
        package="ale-py",
        env_id="ALE/Pong-v5",
        algo="dqn",
        first={"env_kwargs": RAW_PONG, "wrappers": [STACK]},
        algo_kwargs=IMAGES,
    ),
    "hopper-normalized": PackageCase(
        package="gymnasium",
        env_id="Hopper-v5",
        algo="ppo",
        first={"wrappers": ["gymnasium.wrappers:NormalizeObservation"]},
        remedy={"wrappers": [], "algo_kwargs": {"normalize": "obs"}},
    ),
    "blackjack": PackageCase(package="gymnasium", env_id="Blackjack-v1", algo="dqn"),
}


def examine(name: str) -> dict[str, Any]:
    """Train in the environment as a user would, follow the message if it is refused, and resume the run."""
    case = CASES[name]
    found: dict[str, Any] = {"package": case.package, "env_id": case.env_id, "algo": case.algo, "outcome": "works"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            return {**found, **_run(_runnable(name, {}), Path(folder) / "first")}
        except UserError as refusal:
            found |= {"outcome": "refused", "message": str(refusal)}
        if case.remedy is None:
            return found
        remedy = _run(_runnable(name, case.remedy), Path(folder) / "remedy")
        return {**found, "outcome": "works with the remedy", "remedy": dict(case.remedy), **remedy}


def _runnable(name: str, changes: Mapping[str, Any]) -> Case:
    case = CASES[name]
    own_algo_kwargs: dict[str, Any] = {"normalize": "returns"} if case.algo == "ppo" else REPLAY
    values = {**SETTINGS, **case.first, **changes, "algo": case.algo, "env_id": case.env_id}
    algo_kwargs = {**own_algo_kwargs, **case.algo_kwargs, **values.pop("algo_kwargs", {})}
    factory = None if "env_factory" in changes else case.env_factory
    return Case(name=name, settings=values, algo_kwargs=algo_kwargs, env_factory=factory)


def _run(case: Case, folder: Path) -> dict[str, Any]:
    start = time.perf_counter()
    unbroken = run_unbroken(case, folder)
    seconds = round(time.perf_counter() - start, 1)
    started = json.loads((unbroken / "metadata.json").read_text())["starts"][0]
    broken = run_broken(case, folder, STOPS)
    different = differences(broken, unbroken)
    return {
        "obs_max": started["obs_max"],
        "versions": started["env_packages"],
        "resume_said": started["resume"],  # at the start
        "resume_said_later": json.loads((broken / "metadata.json").read_text())["starts"][-1]["resume"],
        "resume_exact": not different,
        "differences": different[:3],
        "seconds": seconds,
    }


def learn(seed: int) -> dict[str, Any]:
    """Train PPO in MiniGrid, whose observations declare 0..255 and show 0..10."""
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo="ppo",
            env_id="minigrid:MiniGrid-Empty-5x5-v0",
            wrappers=[ONLY_IMAGE],
            total_timesteps=LEARNING_STEPS,
            num_envs=8,
            seed=seed,
            device="cpu",
            acceleration="eager",
            output_dir=Path(folder),
            eval_episodes=20,
            algo_kwargs={"num_steps": 128, "minibatch_size": 256, "ent_coef": 0.01, "learning_rate": 1e-3},
        )
        start = time.perf_counter()
        result = train(config, RunOptions(show_progress=False))
        seconds = round(time.perf_counter() - start, 1)
        started = json.loads((result.run_dir / "metadata.json").read_text())["starts"][0]
    return {
        "package": "minigrid",
        "env_id": config.env_id,
        "algo": "ppo",
        "outcome": "learns",
        "seed": seed,
        "steps": LEARNING_STEPS,
        "return": round(mean_return(result.eval_episodes), 3),
        "obs_max": started["obs_max"],
        "versions": started["env_packages"],
        "seconds": seconds,
    }


if __name__ == "__main__":
    _, wanted, *rest = sys.argv
    print(json.dumps(learn(int(rest[0])) if wanted == "learn" else examine(wanted)))
