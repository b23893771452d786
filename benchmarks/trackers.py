"""Trackers with their real packages, each in its own virtual environment: MLflow with a server, W&B offline, Trackio.

A run is trained with the tracker, killed past a checkpoint, resumed and forked; its connection is cut. In the end the
tracker must hold exactly the steps of the run folder. `--cost` measures the speed of training with and without it.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.machine import describe_run
from benchmarks.peers import ROOT, peer_python
from benchmarks.results import Session
from benchmarks.spread import spread

NAMES = ("mlflow", "wandb", "trackio")


def run_case(name: str, *words: str) -> dict[str, Any]:
    """Run one case in the environment of its tracker; its last line is the result."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    private = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "WANDB_SILENT": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [str(peer_python(name)), "-m", "benchmarks.tracker_case", name, *words]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **private}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"outcome": "failed", "message": (done.stderr or done.stdout)[-3000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="TRACKER", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--cost", type=int, default=0, metavar="N", help="measure the speed N times with and without")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    names = command_line.check_names(args.names, NAMES, "tracker")
    file = "tracking_cost.jsonl" if args.cost else "trackers.jsonl"
    session = Session(Path(command_line.result_folder(args)) / file, describe_run())
    for name in names:
        session.add({"tracker": name, **run_case(name, *([str(args.cost)] if args.cost else []))})
        line = session.lines[-1]
        print(
            name,
            _describe_cost(line) if "steps_per_s" in line else line["outcome"],
            line.get("message", ""),
            flush=True,
        )
    return 1 if any(line.get("outcome") == "failed" for line in session.lines) else 0


def _describe_cost(line: dict[str, Any]) -> str:
    speeds = line["steps_per_s"]
    ratios = [100 * (slow / fast - 1) for slow, fast in zip(speeds["with"], speeds["without"], strict=True)]
    shares = [100 * share for share in line["thread_share"]]
    return (
        f"{spread(speeds['without']):.0f} steps/s without, {spread(speeds['with']):.0f} with; "
        f"{spread(ratios):+.1f} %; CPU time of the sending thread {spread(shares):.2f} % of that of training"
    )
