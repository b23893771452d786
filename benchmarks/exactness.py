"""Exact resume: stop runs at chosen and random steps, resume them, and compare everything with an uninterrupted run.

`tests/test_exact_resume.py` uses the same functions for a few stops; `python -m benchmarks exactness` makes many.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from benchmarks import command_line
from benchmarks.machine import describe_run
from benchmarks.measurements import summarize_exactness
from benchmarks.results import Session
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import read_pointer
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.run_dir import LOGS, read_result
from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.loops import OFFLINE_UPDATES_AT_ONCE
from rl_training.runtime.run import Run
from rl_training.runtime.setup import resolve
from rl_training.runtime.trainer import RunOptions, TrainResult, resume, train

# These depend on the clock; the length of metrics.jsonl depends on the digits of its wall times.
WALL_TIMES = ("wall_s", "steps_per_s")
WALL_VALUES = {"log_positions|metrics"}

# The intervals divide neither each other nor the stops; the ring buffer of 400 rows wraps around.
SETTINGS: dict[str, Any] = {
    "algo": "dqn",
    "env_id": "CartPole-v1",
    "total_timesteps": 1_000,
    "device": "cpu",
    "acceleration": "eager",
    "log_interval": 70,
    "eval_interval": 230,
    "eval_episodes": 2,
    "checkpoint_interval": 130,
    "keep_checkpoints": 2,
    "tensorboard": False,
}
SMALL_ACTOR_CRITIC = {"buffer_capacity": 300, "batch_size": 16, "learning_starts": 100, "hidden_sizes": [24]}
SMALL_MODELS = {
    "num_ensembles": 3,
    "num_elites": 2,
    "model_hidden_sizes": [16],
    "model_batch_size": 32,
    "model_max_epochs": 3,
    "rollout_refresh_interval": 70,
    "rollout_batch_size": 50,
}
SMALL_PPO = {"num_steps": 24, "minibatch_size": 12, "update_epochs": 2, "hidden_sizes": [24], "normalize": "both"}
SMALL_OFFLINE = {"dataset_kind": "random", "dataset_size": 500, "batch_size": 16, "hidden_sizes": [24], "held_out": 0.2}
ALGO_KWARGS: dict[str, dict[str, Any]] = {
    "sac": {**SMALL_ACTOR_CRITIC, "gradient_updates_per_step": 0.7, "learning_rate_schedule": "linear"},
    "td3": {**SMALL_ACTOR_CRITIC, "policy_delay": 3, "n_step": 3},
    "redq": {
        **SMALL_ACTOR_CRITIC,
        "num_critics": 4,
        "gradient_updates_per_step": 3,
        "policy_delay": 5,  # so the actor's updates fall on different positions within a call
        "prioritized": True,
    },
    "mbpo": {
        **SMALL_ACTOR_CRITIC,
        **SMALL_MODELS,
        "gradient_updates_per_step": 2,
        "model_train_frequency": 120,
        "rollout_horizon": 1,
        "rollout_horizon_end": 3,
        "rollout_horizon_steps": [150, 400],
    },
    "dqn": {
        "buffer_capacity": 400,
        "batch_size": 16,
        "learning_starts": 150,
        "train_frequency": 4,
        "target_update_interval": 37,
        "hidden_sizes": [24],
        "exploration_fraction": 0.5,
    },
    "ppo": {**SMALL_PPO, "clip_schedule": "linear"},
    "gail": {
        **SMALL_PPO,
        "expert_dataset_kind": "random",
        "expert_dataset_size": 100,
        "discriminator_updates": 3,
        "discriminator_batch_size": 16,
        "discriminator_hidden_sizes": [16],
        "gradient_penalty": 1.0,
        "normalize_discriminator": True,
    },
    "iql": {**SMALL_OFFLINE, "normalize_observations": True, "reward_scale": "return"},
    "bc": SMALL_OFFLINE,
    "mopo": {**SMALL_OFFLINE, **SMALL_MODELS, "model_train_frequency": 110, "rollout_horizon": 3},
    "dreamer": {
        "buffer_capacity": 200,
        "batch_size": 4,
        "learning_starts": 100,
        "sequence_length": 5,
        "train_ratio": 7.0,
        "imagination_horizon": 3,
        "deter_size": 8,
        "num_blocks": 2,
        "num_latents": 3,
        "num_classes": 4,
        "hidden_size": 8,
        "cnn_depth": 2,
        "num_bins": 11,
        "warmup_updates": 2,
    },
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of run whose exactness is checked."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    algo_kwargs: dict[str, Any] = field(default_factory=dict)
    env_factory: EnvFactory | None = None

    def config(self, folder: Path, **changes: Any) -> TrainConfig:
        values = {**SETTINGS, **self.settings, "output_dir": folder}
        values["algo_kwargs"] = {**ALGO_KWARGS.get(values["algo"], {}), **self.algo_kwargs}
        return TrainConfig(**{**values, **changes})

    def options(self, *callbacks: Callback) -> RunOptions:
        return RunOptions(env_factory=self.env_factory, callbacks=callbacks, show_progress=False)


class Wandering(gym.Env[np.ndarray, np.int64]):
    """An environment whose generator no reset seeds: only its own state, which it exposes, restores it."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(-np.inf, np.inf, (2,), np.float32), Discrete(2)
        self._numbers = np.random.default_rng(0)
        self._place, self._num_steps = 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._place, self._num_steps = 0.0, 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._place += (2 * int(action) - 1) * self._numbers.random()
        self._num_steps += 1
        return self._observe(), -abs(self._place), abs(self._place) > 3, self._num_steps >= 40, {}

    def get_state(self) -> dict[str, np.ndarray]:
        words = self._numbers.bit_generator.state["state"]
        generator = [(words[name] >> (32 * i)) & 0xFFFFFFFF for name in ("state", "inc") for i in range(4)]
        return {
            "generator": np.array(generator, np.uint64),
            "place": np.array(self._place),
            "num_steps": np.array(self._num_steps),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        halves = state["generator"].reshape(2, 4)
        words = [sum(int(word) << (32 * i) for i, word in enumerate(half)) for half in halves]
        words_of_state = {"state": {"state": words[0], "inc": words[1]}}
        self._numbers.bit_generator.state = {**self._numbers.bit_generator.state, **words_of_state}
        self._place, self._num_steps = float(state["place"]), int(state["num_steps"])
        return self._observe()

    def _observe(self) -> np.ndarray:
        return np.array([self._place, self._num_steps], np.float32)


COMBINATIONS = [
    Case(name=f"{backend}_{num_envs}", settings={"execution_backend": backend, "num_envs": num_envs})
    for backend in ("local_sync", "local_async")
    for num_envs in (1, 3)
]
COMBINATIONS += [
    Case(
        name=f"vector_3_{mode}",
        settings={
            "execution_backend": "vector",
            "num_envs": 3,
            "env_kwargs": {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": mode}},
        },
    )
    for mode in ("Disabled", "SameStep")
]
IMAGE = Case(
    name="image",
    settings={"env_id": "rl_training/TinyImage-v0", "num_envs": 2, "total_timesteps": 500, "eval_interval": 115},
    algo_kwargs={"buffer_capacity": 150},
)
MINATAR = Case(
    name="minatar",
    settings={"env_id": "MinAtar/Asterix-v1", "num_envs": 2, "total_timesteps": 800, "eval_interval": 115},
    algo_kwargs={"buffer_capacity": 150},
)
STATE = Case(
    name="own_state",
    settings={"env_id": "Wandering", "num_envs": 2, "execution_backend": "local_async"},
    env_factory=Wandering,
)
COMPILED = Case(name="compiled", settings={"acceleration": "compile"}, algo_kwargs={"batch_size": 32})
PPO_COMBINATIONS = [
    Case(
        name=f"ppo_{backend}_{num_envs}",
        settings={
            "algo": "ppo",
            "env_id": "Pendulum-v1",
            "env_kwargs": {"max_episode_steps": 55},
            "execution_backend": backend,
            "num_envs": num_envs,
        },
    )
    for backend in ("local_sync", "local_async")
    for num_envs in (1, 4)
]
PPO_MASKS = Case(
    name="ppo_masks",
    settings={
        "algo": "ppo",
        "env_id": "rl_training/Masked-v0",
        "env_kwargs": {"multi": True, "mask_in_obs": True},
        "num_envs": 2,
        "execution_backend": "local_async",
        "total_timesteps": 500,
    },
    algo_kwargs={"sampled_evaluation": True, "target_kl": 0.003, "learning_rate": 3e-3},
)
PPO_DICT = Case(
    name="ppo_dict",
    settings={"algo": "ppo", "env_id": "rl_training/TinyDict-v0", "num_envs": 2, "total_timesteps": 500},
    algo_kwargs={"normalize": "returns", "recompute_advantages": True},
)
ACTOR_CRITICS = [
    Case(
        name=algo,
        settings={
            "algo": algo,
            "env_id": "Pendulum-v1",
            "env_kwargs": {"max_episode_steps": 55},
            "num_envs": 2,
            "total_timesteps": 600,
        },
    )
    for algo in ("sac", "td3", "redq", "mbpo")
]
OFFLINE = [
    Case(
        name=algo,
        settings={
            "algo": algo,
            "env_id": "Pendulum-v1",
            "total_timesteps": 400,
            "log_interval": 67,  # update calls end at the intervals: none is a multiple of the usual ten
            "eval_interval": 153,
            "checkpoint_interval": 89,
        },
    )
    for algo in ("iql", "bc", "mopo")
]
GAIL = Case(name="gail", settings={"algo": "gail", "num_envs": 2, "total_timesteps": 500})
DREAMER = Case(
    name="dreamer",
    settings={"algo": "dreamer", "env_id": "rl_training/Catch-v0", "num_envs": 2, "total_timesteps": 400},
)
DQN_VARIANTS = [IMAGE, MINATAR, STATE, COMPILED]
PPO_VARIANTS = [*PPO_COMBINATIONS, PPO_MASKS, PPO_DICT]
VARIANTS = [*DQN_VARIANTS, *PPO_VARIANTS, *ACTOR_CRITICS, *OFFLINE, GAIL, DREAMER]


class StopAt(Callback):
    """End the run after `step` environment steps: by its own stop, or by a signal to the process."""

    def __init__(self, step: int, signal_number: int | None = None) -> None:
        self._step, self._signal = step, signal_number

    def on_step(self, run: Run) -> None:
        if run.step >= self._step and not run.stop_reason:
            if self._signal is None:
                run.stop_reason = f"stopped at {run.step}"
            else:
                os.kill(os.getpid(), self._signal)


def run_unbroken(case: Case, folder: Path, **changes: Any) -> Path:
    return train(case.config(folder, **changes), case.options(), run_dir=folder / f"{case.name}_unbroken").run_dir


def run_broken(case: Case, folder: Path, stops: Sequence[int], signal_number: int | None = None) -> Path:
    """Train with a stop and a resume at each of `stops` (env steps, rising)."""
    run_dir = folder / f"{case.name}_broken_{'_'.join(map(str, stops))}"
    result: TrainResult | None = None
    for stop in stops:
        options = case.options(StopAt(stop, signal_number))
        wanted = stop if result is None else max(stop, result.step + 1)
        result = train(case.config(folder), options, run_dir=run_dir) if result is None else resume(run_dir, options)
        assert result.step - wanted < steps_at_once(case.config(folder)), f"stopped at {result.step}, not at {wanted}"
        assert result.interrupted == (signal_number is not None)
        assert find_checkpoint(run_dir).name == f"step_{result.step:09d}"
    return resume(run_dir, case.options()).run_dir


def steps_at_once(config: TrainConfig) -> int:
    """Return the largest number of steps between two possible stops."""
    return OFFLINE_UPDATES_AT_ONCE if config.spec.loop == "offline" else config.num_envs


def telling_stops(case: Case, unbroken: Path) -> list[int]:
    """Return the steps where errors are most likely: around the start of learning, episodes, intervals and the end."""
    config = resolve(case.config(unbroken.parent))
    if config.spec.loop == "offline":
        intervals = (config.log_interval, config.eval_interval, config.checkpoint_interval)
        last = config.total_timesteps - OFFLINE_UPDATES_AT_ONCE
        return sorted({1, *intervals, *(interval + 1 for interval in intervals), last})
    rollout = int(config.algo_kwargs.get("num_steps", 0)) * config.num_envs  # 0 where there are none
    starts = rollout or int(config.algo_kwargs["learning_starts"])
    ends = sorted({record["step"] for record in read_json_lines(unbroken / "episodes.jsonl")})
    after_episode = next(end for end in ends if end > starts + 50)
    mid_episode = next(step for step in range(after_episode + 30, config.total_timesteps) if step not in ends)
    last = len(range(0, config.total_timesteps, config.num_envs)) * config.num_envs
    interval = config.checkpoint_interval * (2 + mid_episode // config.checkpoint_interval)
    rollout_ends = {2 * rollout, 3 * rollout + config.num_envs} if rollout else set()  # at one, and right after another
    return sorted({starts // 2, after_episode, mid_episode, interval, last - config.num_envs, *rollout_ends})


def random_stops(case: Case, unbroken: Path, count: int, seed: int) -> list[int]:
    """Return `telling_stops` plus random steps, `count` in total."""
    config = case.config(unbroken.parent)
    stops = telling_stops(case, unbroken)[:count]
    possible = range(config.num_envs, config.total_timesteps - steps_at_once(config))
    others = [step for step in possible if step not in stops]
    return sorted([*stops, *random.Random(seed).sample(others, count - len(stops))])


def differences(run: Path, unbroken: Path) -> list[str]:
    """List all differences between two finished runs, except wall times: checkpoint, pointers, logs, result."""
    return [*_checkpoint_differences(run, unbroken), *_log_differences(run, unbroken)]


def _checkpoint_differences(run: Path, unbroken: Path) -> Iterator[str]:
    for pointer in ("latest", "best"):
        names = [read_pointer(path / "checkpoints", pointer) for path in (run, unbroken)]
        if names[0] != names[1]:
            yield f"{pointer}: {names[0]}, unbroken {names[1]}"
    ours, theirs = (open_checkpoint(find_checkpoint(path)) for path in (run, unbroken))
    for name in ours.manifest["counters"].keys() | theirs.manifest["counters"].keys():
        values = [checkpoint.manifest["counters"].get(name) for checkpoint in (ours, theirs)]
        if name not in WALL_TIMES and values[0] != values[1]:
            yield f"counter {name}: {values[0]}, unbroken {values[1]}"
    for part in (POLICY, TRAINING, MEMORY):
        mine, others = dict(leaves(ours.load(part))), dict(leaves(theirs.load(part)))
        if mine.keys() != others.keys():
            yield f"{part}: entries {sorted(mine.keys() ^ others.keys())} are in only one of them"
        for name in mine.keys() & others.keys():
            if name not in WALL_VALUES and not same(mine[name], others[name]):
                yield f"{part}: {name} differs"


def leaves(state: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every array and value of a nested state with its path."""
    for name, value in state.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}|")
        else:
            yield f"{prefix}{name}", value


def same(one: Any, other: Any) -> bool:
    """Compare arrays bit by bit, so that NaN equals itself; compare numbers and strings by value."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and one.numpy().tobytes() == other.numpy().tobytes()
    return type(one) is type(other) and one == other


def _log_differences(run: Path, unbroken: Path) -> Iterator[str]:
    for log in LOGS:
        ours, theirs = (timeless(read_json_lines(path / f"{log}.jsonl")) for path in (run, unbroken))
        if ours != theirs:
            first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), "the end")
            yield f"{log}.jsonl: {len(ours)} records, unbroken {len(theirs)}; first difference at {first}"
    results = [read_result(path) or {} for path in (run, unbroken)]
    if timeless(results[:1]) != timeless(results[1:]):
        yield f"result.json: {results[0]}, unbroken {results[1]}"


def timeless(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name not in WALL_TIMES} for record in records]


# --- The command -----------------------------------------------------------------------------------------------------


def run_exactness(*, stops: int, seed: int, out: Path) -> bool:
    """Interrupt every kind of run at `stops` steps, one by one and all in one run. Return whether all were exact."""
    torch.set_num_threads(1)
    versions = {name: metadata.version(name) for name in ("rl-training", "torch", "gymnasium", "numpy")}
    session = Session(out, {**describe_run(), "versions": versions, "seed": seed})
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("RL_TRAINING_CACHE", f"{folder}/cache")
        for case in [*COMBINATIONS, *VARIANTS]:
            _add(session, _examine(case, Path(folder), stops, seed))
        _add(session, _examine_evaluation(Path(folder)))
        _add(session, _examine_signals(Path(folder), seed))
    summary = summarize_exactness(session.lines)
    print(f"{summary['resumes']} resumes, {summary['differences']} differences; {out}")
    return bool(summary["differences"] == 0)


def _add(session: Session, report: dict[str, Any]) -> None:
    session.add(report)
    found = report["differences"]
    print(f"{report['case']}: {report['resumes']} resumes, {len(found)} differences", *found, sep="\n  ", flush=True)


def _examine(case: Case, folder: Path, count: int, seed: int) -> dict[str, Any]:
    start = time.perf_counter()
    unbroken = run_unbroken(case, folder)
    stops = random_stops(case, unbroken, count, seed)
    found = []
    for chosen in [*([stop] for stop in stops), stops]:
        broken = run_broken(case, folder, chosen)
        found += [f"stops {chosen}: {difference}" for difference in differences(broken, unbroken)]
    return _report(case.name, stops, 2 * len(stops), found, start)


def _examine_evaluation(folder: Path) -> dict[str, Any]:
    """Check that more frequent evaluation does not change training."""
    start, case = time.perf_counter(), COMBINATIONS[0]
    seldom = run_unbroken(case, folder / "seldom", eval_interval=0)
    often = run_unbroken(case, folder / "often", eval_interval=23)
    return _report("evaluated more often", [], 0, training_differences(often, seldom), start)


def training_differences(run: Path, other: Path) -> list[str]:
    """List the differences between two runs, except those that evaluations cause."""
    of_evaluation = ("best", "latest", "counter best_step", "training: best_return", "training: log_positions|eval")
    return [text for text in differences(run, other) if not text.startswith((*of_evaluation, "eval.jsonl"))]


def _examine_signals(folder: Path, seed: int) -> dict[str, Any]:
    """Stop runs with real SIGTERM and SIGINT signals."""
    start = time.perf_counter()
    found, stops = [], []
    for case in COMBINATIONS[::3]:
        unbroken = folder / f"{case.name}_unbroken"
        chosen = random_stops(case, unbroken, 6, seed + 1)
        for number, some in ((signal.SIGTERM, chosen[::2]), (signal.SIGINT, chosen[1::2])):
            broken = run_broken(case, folder / number.name, some, number)
            found += [f"{number.name} at {some}: {difference}" for difference in differences(broken, unbroken)]
            stops += some
    return _report("signals", stops, len(stops), found, start)


def _report(name: str, stops: list[int], resumes: int, found: list[str], start: float) -> dict[str, Any]:
    seconds = round(time.perf_counter() - start, 1)
    return {"case": name, "stops": stops, "resumes": resumes, "differences": found, "seconds": seconds}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stops", type=int, default=12, help="per kind of run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random stops (default: %(default)s)")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    out = command_line.result_folder(args) / "exactness.jsonl"
    return 0 if run_exactness(stops=args.stops, seed=args.seed, out=out) else 1
