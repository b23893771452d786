"""Datasets for offline learning: our own SAC or CrossQ, trained with its shipped config, and recorded along the way.

    python -m benchmarks datasets pendulum halfcheetah hopper walker2d --device cuda --jobs 8
    python -m benchmarks datasets cartpole mountaincar hopper-crossq

The kinds are those of D4RL, but smaller: `random` actions; a `medium` policy, part of the way from random to the final
one; `medium-replay`, policies from the start up to medium; `expert`, the final policy; `medium-expert`, both. All
policies act with exploration, as in training. For imitation there is `expert-episode`: a single episode, played
greedily, by our PPO on CartPole, our DQN on MountainCar and our CrossQ on Hopper, there by the policy with the best
evaluation; its reset seed follows from the list of kinds. The same command continues an interrupted one, and datasets
are used again as long as their recipe is unchanged: `facts.json` holds the recipe and the results.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from benchmarks.launch import KEPT_RUNS
from benchmarks.machine import describe_machine, describe_source, now
from benchmarks.peers import ROOT
from benchmarks.results import write_json
from rl_training import load_config
from rl_training.results.statistics import normalized

DATASETS = KEPT_RUNS / "datasets"
KINDS = ("random", "medium", "medium-replay", "expert", "medium-expert")
EPISODE = "expert-episode"
# Possible numbers of policies in medium-replay; the largest for which there are checkpoints is taken. Each policy
# records an equal number of rows, and only whole episodes where all episodes have the same length.
MIXES = (10, 5, 4, 2, 1)


class DatasetError(RuntimeError):
    """A dataset could not be recorded."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the datasets of an environment are recorded.

    `interval`: environment steps between checkpoints, each evaluated over `eval_episodes`. `medium`: the position of
    the medium policy between the random return (0) and the expert's (1). `expert`: which policy is the expert, the
    final one or the one with the best evaluation. `expert_episodes`: greedy episodes of the expert, whose mean return
    is the normalised score 100. `rows`: transitions per dataset. `changes`: "key=value" strings for the config.
    `kinds`: the datasets to record; always includes random.
    """

    config: str
    interval: int
    eval_episodes: int
    expert_episodes: int
    medium: float = 0.4
    expert: Literal["final", "best"] = "final"
    rows: int = 100_000
    seed: int = 0
    changes: Sequence[str] = ()
    kinds: Sequence[str] = KINDS

    @property
    def env_id(self) -> str:
        env_id: str = load_config(self.config, self.changes).env_id
        return env_id

    def settings(self) -> list[str]:
        """Return the changes to the config, including those of the recipe itself."""
        watched = {
            "eval_interval": self.interval,
            "checkpoint_interval": self.interval,
            "keep_checkpoints": 1_000_000,  # all of them
            "eval_episodes": self.eval_episodes,
            "tensorboard": "false",
        }
        return [*(f"{name}={value}" for name, value in watched.items()), *self.changes]

    def identity(self) -> dict[str, Any]:
        """Return what determines the datasets, except for the library's code, its defaults and the machine."""
        config = load_config(self.config, self.settings())
        trained = config.model_dump(mode="json", include={"algo", "env_id", "total_timesteps", "algo_kwargs"})
        identity: dict[str, Any] = json.loads(json.dumps({**asdict(self), "config": trained}))
        del identity["kinds"]  # which kinds there are does not change any of them
        return identity


RECIPES = {
    "pendulum": Recipe(config="sac/pendulum.yaml", interval=200, eval_episodes=20, expert_episodes=100),
    "halfcheetah": Recipe(config="sac/halfcheetah.yaml", interval=2_000, eval_episodes=3, expert_episodes=20),
    # Not SAC, whose final policy on Hopper was once a collapsed one (396 instead of 3,300). CrossQ's were good on all
    # seeds that were scored.
    "hopper": Recipe(
        config="crossq/mujoco.yaml",
        interval=5_000,
        eval_episodes=5,
        expert_episodes=20,
        changes=("env_id=Hopper-v5",),
    ),
    "walker2d": Recipe(
        config="crossq/mujoco.yaml",
        interval=5_000,
        eval_episodes=5,
        expert_episodes=20,
        changes=("env_id=Walker2d-v5",),
    ),
    "cartpole": Recipe(
        config="ppo/cartpole.yaml",
        interval=20_000,
        eval_episodes=5,
        expert_episodes=100,
        rows=10_000,
        kinds=("random", EPISODE),
    ),
    "mountaincar": Recipe(
        config="dqn/mountaincar.yaml",
        interval=20_000,
        eval_episodes=5,
        expert_episodes=100,
        rows=10_000,
        kinds=("random", EPISODE),
    ),
    "hopper-crossq": Recipe(
        config="crossq/mujoco.yaml",
        interval=5_000,
        eval_episodes=5,
        expert="best",  # with narrow critics, many checkpoints fall early, the final one among them
        expert_episodes=20,
        rows=10_000,
        changes=("env_id=Hopper-v5", "algo_kwargs.critic_hidden_sizes=[256, 256]"),  # 15 to 25 minutes on one core
        kinds=("random", EPISODE),
    ),
}


@dataclass(frozen=True)
class Policy:
    """A checkpoint of the training run, and the mean return of its greedy evaluation."""

    step: int
    mean_return: float
    path: str


def nearest_to_share(policies: Sequence[Policy], random_return: float, expert_return: float, share: float) -> Policy:
    """Return the first policy nearest to `share` of the way from the random return to the expert's."""
    wanted = random_return + share * (expert_return - random_return)
    return min(policies, key=lambda policy: abs(policy.mean_return - wanted))


def expert_among(policies: Sequence[Policy], which: Literal["final", "best"]) -> Policy:
    """Return the final policy, or the one with the best evaluation: of equal ones the last."""
    return policies[-1] if which == "final" else max(policies, key=lambda policy: (policy.mean_return, policy.step))


def spread_out(policies: Sequence[Policy]) -> list[Policy]:
    """Return as many policies as one of MIXES allows, evenly spaced, including the last one."""
    count = next(count for count in MIXES if count <= len(policies))
    return [policies[round((place + 1) * len(policies) / count) - 1] for place in range(count)]


class DatasetFolder:
    """The folder of one environment: its datasets, their facts, and the training run behind them."""

    def __init__(self, name: str) -> None:
        self.name, self.recipe, self.path = name, RECIPES[name], DATASETS / name
        self._lock = threading.Lock()  # protects facts.json

    def file(self, kind: str) -> Path:
        return self.path / f"{kind}.npz"

    def facts(self) -> dict[str, Any]:
        """Return the recorded facts; an empty dict if they belong to another recipe."""
        file = self.path / "facts.json"
        facts: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        return facts if facts.get("recipe") == self.recipe.identity() else {}

    def missing(self, kinds: Sequence[str] | None = None) -> list[str]:
        """Return the kinds that are not recorded yet, of the given ones or of all in the recipe."""
        facts = self.facts()
        kinds = self.recipe.kinds if kinds is None else kinds
        return [kind for kind in kinds if kind not in facts.get("datasets", {}) or not self.file(kind).is_file()]

    def start(self) -> None:
        """Start with an empty folder, unless the folder belongs to the same recipe."""
        if not self.facts():
            shutil.rmtree(self.path, ignore_errors=True)
            write_json(self.path / "facts.json", {"recipe": self.recipe.identity(), "datasets": {}})

    def note(self, **facts: Any) -> None:
        """Add facts. Those in `datasets` are merged with the facts of other datasets."""
        with self._lock:
            known = self.facts()
            datasets = {**known["datasets"], **facts.pop("datasets", {})}
            write_json(self.path / "facts.json", {**known, **facts, "datasets": datasets})

    def train(self, device: str) -> None:
        """Train the policies, or continue to, and record random actions; note the return of each policy."""
        recipe, facts = self.recipe, self.facts()
        if "random" in self.missing():
            self.record("random", [])
        if "training" in facts:
            return
        runs = self.path / "training"
        for run in sorted(runs.glob("*/config.yaml")):
            if any((run.parent / "checkpoints").glob("step_*")):
                if not (run.parent / "result.json").is_file():
                    call("resume", str(run.parent), "--quiet")
                break
        else:
            shutil.rmtree(runs, ignore_errors=True)
            changes = [part for change in recipe.settings() for part in ("--set", change)]
            place = ["--output-dir", str(runs), "--seed", str(recipe.seed), "--device", device]
            call("train", "--config", recipe.config, *place, *changes, "--quiet")
        (run,) = (path.parent for path in runs.glob("*/result.json"))
        policies = evaluated_checkpoints(run)
        played = ("--episodes", str(recipe.expert_episodes), "--json", "--quiet")
        expert_path = self.path / expert_among(policies, recipe.expert).path
        expert = json.loads(call("evaluate", str(expert_path), *played, on_cpu=True))
        random_return = self.facts()["datasets"]["random"]["mean_return"]
        medium = nearest_to_share(policies, random_return, expert["mean"], recipe.medium)
        self.note(
            training={
                "date": now(),
                "device": device,
                "machine": describe_machine(),
                "source": describe_source(),
                "run": str(run.relative_to(self.path)),
                "wall_s": json.loads((run / "result.json").read_text())["wall_s"],
                "policies": [asdict(policy) for policy in policies],
                "medium_step": medium.step,
                "expert_return": expert["mean"],
            },
            random_return=random_return,
            expert_return=expert["mean"],
        )

    def players(self, kind: str) -> list[Policy]:
        """Return the policies that record a dataset, each an equal part of it, in order."""
        training = self.facts()["training"]
        policies = [Policy(**policy) for policy in training["policies"]]
        (medium,) = (policy for policy in policies if policy.step == training["medium_step"])
        expert = expert_among(policies, self.recipe.expert)
        return {
            "medium": [medium],
            "medium-replay": spread_out([policy for policy in policies if policy.step <= medium.step]),
            "expert": [expert],
            EPISODE: [expert],
            "medium-expert": [medium, expert],
        }[kind]

    def record(self, kind: str, players: Sequence[Policy]) -> None:
        """Record a dataset with the given policies, or with random actions, and note its contents."""
        file, seed = self.file(kind), 1 + self.recipe.seed + (*KINDS, EPISODE).index(kind)
        file.unlink(missing_ok=True)  # left by a command that was killed before it noted the facts
        who = [part for policy in players for part in ("--run", str(self.path / policy.path))]
        if not players:
            who += ["--random", "--env", self.recipe.env_id]
        elif kind != EPISODE:
            who += ["--explore"]
        size = ("--episodes", "1") if kind == EPISODE else ("--steps", str(self.recipe.rows))
        # Small networks, one observation at a time: faster on a CPU.
        call("record", *who, *size, "--seed", str(seed), "--out", str(file), "--quiet", on_cpu=True)
        facts = {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "date": now(),
            "source": describe_source(),
            "seed": seed,
            "players": [{"step": policy.step, "mean_return": policy.mean_return} for policy in players],
            **describe_episodes(file),
        }
        self.note(datasets={kind: facts})
        print(f"  {self.name}/{kind}: {facts['rows']} rows, mean return {facts['mean_return']:.1f}", flush=True)


def evaluated_checkpoints(run: Path) -> list[Policy]:
    """Return the evaluated checkpoints of a run in order; paths are relative to the folder of the environment."""
    returns: dict[int, list[float]] = {}
    for line in (run / "eval.jsonl").read_text().splitlines():
        played = json.loads(line)
        returns.setdefault(played["step"], []).append(played["return"])
    found = {int(path.name.removeprefix("step_")): path for path in (run / "checkpoints").glob("step_*")}
    return [
        Policy(step, fmean(returns[step]), str(found[step].relative_to(run.parent.parent)))
        for step in sorted(found.keys() & returns.keys())
    ]


def describe_episodes(file: Path) -> dict[str, Any]:
    """Describe the episodes of a dataset. The last episode of each policy may be cut short."""
    from rl_training.datasets.files import read_transitions  # imports torch, which other benchmarks do not need
    from rl_training.datasets.transition_dataset import TransitionDataset

    dataset = TransitionDataset.from_transitions(read_transitions(file))
    returns = dataset.episode_returns()
    terminated = int(dataset.terminated.sum())
    return {
        "rows": len(dataset),
        "episodes": len(returns),
        "terminated": terminated,
        "truncated": len(returns) - terminated,
        "mean_return": float(returns.mean()),
        "min_return": float(returns.min()),
        "max_return": float(returns.max()),
        "mean_length": len(dataset) / len(returns),
    }


def all_kinds(names: Sequence[str]) -> list[str]:
    return [f"{name}/{kind}" for name in names for kind in RECIPES[name].kinds]


def call(*arguments: str, on_cpu: bool = False) -> str:
    """Run `rl-training` with the arguments in its own process; return its output."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""} if on_cpu else None
    command = [sys.executable, "-m", "rl_training", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, cwd=ROOT)
    if done.returncode != 0:
        raise DatasetError(f"rl-training {' '.join(arguments)} failed:\n{(done.stderr or done.stdout)[-3000:]}")
    return done.stdout


def make_datasets(datasets: Sequence[str], *, device: str, jobs: int) -> None:
    """Record the missing datasets of a list such as ["pendulum/medium"]; training runs and recordings run in parallel.

    `jobs`: processes at a time.
    """
    kinds: dict[str, list[str]] = {}
    for dataset in datasets:
        name, _, kind = dataset.partition("/")
        kinds.setdefault(name, []).append(kind)
    wanted = {folder: kinds[folder.name] for folder in map(DatasetFolder, kinds) if folder.missing(kinds[folder.name])}
    for folder in wanted:
        print(f"datasets {folder.name}: {', '.join(folder.missing(wanted[folder]))} in {folder.path}", flush=True)
        folder.start()
    pool = ThreadPoolExecutor(jobs)
    try:
        training = {pool.submit(folder.train, device): folder for folder in wanted}
        recording = []
        for future in as_completed(training):
            future.result()
            folder = training[future]
            recording += [
                pool.submit(folder.record, kind, folder.players(kind)) for kind in folder.missing(wanted[folder])
            ]
        for done in as_completed(recording):
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def dataset_facts(name: str) -> dict[str, Any]:
    """Return the facts of a dataset, such as pendulum/medium-replay, and the path of its file."""
    folder_name, _, kind = name.partition("/")
    folder = DatasetFolder(folder_name)
    facts = folder.facts()
    return {
        "name": name,
        "path": os.path.relpath(folder.file(kind), ROOT),
        **facts["datasets"][kind],
        "random_return": facts["random_return"],
        "expert_return": facts["expert_return"],
    }


def normalised(mean_return: float, facts: Mapping[str, Any]) -> float:
    """Normalise a return: 0 is the mean return of random actions, 100 that of the expert."""
    return 100.0 * normalized(mean_return, facts["random_return"], facts["expert_return"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="ENV", help=f"of {', '.join(RECIPES)} (default: all)")
    parser.add_argument("--device", default="cpu", help="where the policies train (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    unknown = [name for name in args.names if name not in RECIPES]
    if unknown:
        raise DatasetError(f"unknown environment {unknown[0]!r}; known: {', '.join(RECIPES)}")
    make_datasets(all_kinds(args.names or list(RECIPES)), device=args.device, jobs=args.jobs)
    return 0
