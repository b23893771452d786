"""Whole training runs of two versions of the library, in turn: whether a change has made them slower.

    python -m benchmarks versions --before ../old/src

`--before` names the `src` folder of the other version. Both run the same settings on one core, in alternating order.
The figure is the median of the steps per second in the logs, without the first third of the run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.command_line import UsageError, add_out, check_names, result_folder
from benchmarks.machine import describe_run
from benchmarks.peers import ROOT
from benchmarks.results import Session, named

LOG_POINTS = 20


class Case(NamedTuple):
    """One training run; its name is `algo-device-mode`."""

    algo: str
    env_id: str
    device: str
    mode: str
    steps: int
    algo_kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.algo}-{self.device}-{self.mode}"


EVERY_STEP = {"learning_starts": 500, "train_frequency": 1}
CASES = {
    case.name: case
    for case in (
        Case("dqn", "CartPole-v1", "cpu", "compile", 12_000, EVERY_STEP),
        Case("ppo", "CartPole-v1", "cpu", "compile", 60_000, {}),
        Case("sac", "Pendulum-v1", "cpu", "compile", 3_000, EVERY_STEP),
        Case("dqn", "CartPole-v1", "cpu", "eager", 5_000, EVERY_STEP),
        Case("sac", "Pendulum-v1", "cpu", "eager", 2_500, EVERY_STEP),
        Case("dqn", "CartPole-v1", "cuda", "cuda_graph", 15_000, EVERY_STEP),
        Case("sac", "Pendulum-v1", "cuda", "cuda_graph", 8_000, EVERY_STEP),
        Case("ppo", "CartPole-v1", "cuda", "cuda_graph", 60_000, {}),
        Case("iql", "Pendulum-v1", "cuda", "cuda_graph", 8_000, {"dataset_kind": "random", "dataset_size": 5_000}),
        Case("qr_dqn", "CartPole-v1", "cuda", "cuda_graph", 8_000, EVERY_STEP),
    )
}

# What each version runs: names that both have.
PROGRAM = """
import json, sys
from rl_training import TrainConfig
from rl_training.api.algorithms import managed_class
settings = json.loads(sys.argv[1])
result = managed_class(settings["algo"])(TrainConfig(**settings), show_progress=False).learn()
print(result.run_dir)
"""


def steps_per_second(case: Case, source: Path, cache: Path) -> float:
    """Train once with the library in `source`, on one core, and return the median speed in its log."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "algo": case.algo,
            "env_id": case.env_id,
            "total_timesteps": case.steps,
            "device": case.device,
            "acceleration": case.mode,
            "threads": 1,
            "tensorboard": False,
            "eval_episodes": 1,
            "log_interval": case.steps // LOG_POINTS,
            "output_dir": folder,
            "algo_kwargs": case.algo_kwargs,
        }
        paths = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "RL_TRAINING_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PROGRAM, json.dumps(settings)]
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise RuntimeError(f"{case.name} with {source} failed:\n{answer.stderr[-2_000:]}")
        log = Path(answer.stdout.splitlines()[-1]) / "metrics.jsonl"
        speeds = [json.loads(line)["steps_per_s"] for line in log.read_text(encoding="utf-8").splitlines()]
        return float(median(speeds[len(speeds) // 3 :]))


def summarize_versions(lines: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the median speed of both versions and their ratio, by case."""
    summary = {}
    for name in dict.fromkeys(line["case"] for line in lines):
        before, after = (
            median(line["steps_per_s"] for line in named(lines, case=name, version=version))
            for version in ("before", "after")
        )
        summary[name] = {"before": before, "after": after, "ratio": after / before}
    return summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", type=Path, required=True, help="the src folder of the other version")
    parser.add_argument("--cases", nargs="*", help=f"of {', '.join(CASES)}; those of the CPU if not given")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each version (default: 3)")
    add_out(parser)


def run(args: argparse.Namespace) -> int:
    sources = {"before": args.before.resolve(), "after": ROOT / "src"}
    if not (sources["before"] / "rl_training").is_dir():
        raise UsageError(f"--before must be a folder that holds rl_training, got {args.before}")
    names = check_names(args.cases, list(CASES), "case")
    cases = [CASES[name] for name in names if args.cases or CASES[name].device == "cpu"]
    is_cuda = any(case.device == "cuda" for case in cases)
    session = Session(result_folder(args) / f"versions{'_cuda' if is_cuda else ''}.jsonl", describe_run())
    with tempfile.TemporaryDirectory() as caches:
        for case in cases:
            for number in range(args.rounds):
                order = ("before", "after") if number % 2 == 0 else ("after", "before")
                for version in order:
                    speed = steps_per_second(case, sources[version], Path(caches) / version)
                    session.add({"case": case.name, "version": version, "round": number, "steps_per_s": speed})
            figures = summarize_versions(session.lines)[case.name]
            print(f"{case.name}: {figures['before']:,.0f} before, {figures['after']:,.0f} after", flush=True)
    return 0
