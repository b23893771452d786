"""How long the first run on a machine waits for the compiler: short runs with an empty cache, then with a full one.

    python -m benchmarks compile_times --before ../old/src

`--before` names the `src` folder of another version, which runs in turn with this one. The difference between the cold
and the warm run is what compiling costs. Processor time includes the compiler's processes; it depends less on other
load than wall time, but a machine with two cores spends some of it side by side.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.command_line import UsageError, add_out, check_names, result_folder
from benchmarks.machine import describe_run
from benchmarks.peers import ROOT
from benchmarks.results import Session, named
from benchmarks.versions import PROGRAM

CASES: dict[str, dict[str, Any]] = {
    "dqn": {"env_id": "CartPole-v1", "algo_kwargs": {"learning_starts": 200, "hidden_sizes": [128, 128], "n_step": 3}},
    "ppo": {"env_id": "CartPole-v1", "num_envs": 8, "algo_kwargs": {"num_steps": 32, "minibatch_size": 256}},
    "sac": {"env_id": "Pendulum-v1", "algo_kwargs": {"learning_starts": 200}},
}
STEPS = 256


def time_run(algo: str, source: Path, folder: Path) -> dict[str, float]:
    """Train a few steps with the library in `source`; caches and temporary files are in `folder`."""
    settings = {
        "algo": algo,
        "total_timesteps": STEPS,
        "device": "cpu",
        "acceleration": "compile",
        "tensorboard": False,
        "eval_episodes": 1,
        "output_dir": str(folder / "runs"),
        **CASES[algo],
    }
    environment = {
        **{name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"},
        "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]),
        "RL_TRAINING_CACHE": str(folder / "cache"),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    start, before = time.perf_counter(), _child_cpu()
    command = [sys.executable, "-c", PROGRAM, json.dumps(settings)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{algo} with {source} failed:\n{answer.stderr[-2_000:]}")
    return {"wall_s": round(time.perf_counter() - start, 2), "cpu_s": round(_child_cpu() - before, 2)}


def _child_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def summarize_compile_times(lines: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the medians of what compiling adds to a run, by case and version."""
    summary = {}
    for case, version in dict.fromkeys((line["case"], line["version"]) for line in lines):
        those = named(lines, case=case, version=version)
        summary[f"{case}, {version}"] = {
            unit: median(line["cold"][unit] - line["warm"][unit] for line in those) for unit in ("wall_s", "cpu_s")
        }
    return summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", type=Path, help="the src folder of another version")
    parser.add_argument("--cases", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each version (default: 3)")
    add_out(parser)


def run(args: argparse.Namespace) -> int:
    sources = {"after": ROOT / "src"} | ({"before": args.before.resolve()} if args.before else {})
    if args.before and not (args.before / "rl_training").is_dir():
        raise UsageError(f"--before must be a folder that holds rl_training, got {args.before}")
    session = Session(result_folder(args) / "compile_times.jsonl", describe_run())
    for number in range(args.rounds):
        for case in check_names(args.cases, list(CASES), "case"):
            for version, source in sources.items():
                with tempfile.TemporaryDirectory() as folder:
                    times = {kind: time_run(case, source, Path(folder)) for kind in ("cold", "warm")}
                session.add({"case": case, "version": version, "round": number, **times})
                print(f"  {case}, {version}: {times}", flush=True)
    for name, figures in summarize_compile_times(session.lines).items():
        print(f"{name}: compiling adds {figures['wall_s']:.1f} s, {figures['cpu_s']:.1f} s of processor time")
    return 0
