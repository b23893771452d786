"""`examples/end_to_end.py` in full: a sweep killed three times, a report with films, a study, an exported policy.

What it left is counted from the files: finished runs, scores, films, trials, and the pairs that onnxruntime repeats.
"""

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.machine import describe_run
from benchmarks.peers import ROOT
from benchmarks.results import Session
from rl_training.exporting.check import check_policy
from rl_training.results.runs import find_runs

OUTPUT = "output.txt"
SCORES = ("algo", "env_id", "seeds", "mean", "std", "iqm", "low", "high")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--small", action="store_true", help="tiny budgets: every step works, nothing is learned")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where everything is kept, so that the same command continues")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    session = Session(command_line.result_folder(args) / "end_to_end.jsonl", describe_run())
    with tempfile.TemporaryDirectory() as name:
        folder = (args.folder or Path(name)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        code = run_example(folder, ["--jobs", str(args.jobs), *(["--small"] if args.small else [])])
        seconds = time.monotonic() - start
        if code != 0:
            print(f"the example ended with exit code {code}; see {folder / OUTPUT}", file=sys.stderr)
            return 1
        session.add({"jobs": args.jobs, "wall_s": seconds, **found_in(folder)})  # the time of this call alone
    print(session.lines[-1], flush=True)
    return 0


def run_example(folder: Path, options: list[str]) -> int:
    """Run the example into a folder, with its output in a file there; return its exit code."""
    command = [sys.executable, str(ROOT / "examples" / "end_to_end.py"), "--out", str(folder), *options]
    with (folder / OUTPUT).open("ab") as output:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
    return done.returncode


def found_in(folder: Path) -> dict[str, Any]:
    """Return what the example left in its folder."""
    runs = find_runs(folder / "algorithms")
    report = (folder / "report.html").read_text(encoding="utf-8")
    best = (folder / "tune" / "best.yaml").read_text(encoding="utf-8").splitlines()
    (winner,) = find_runs(folder / "winner")
    contract, error = check_policy(folder / "policy")
    return {
        "kills": (folder / OUTPUT).read_text(encoding="utf-8").count("killed: exit code -9"),
        "runs": len(runs),
        "finished": sum(run.status == "finished" for run in runs),
        "starts": sum(len(run.starts) for run in runs),
        "scores": [{name: row.get(name) for name in SCORES} for row in _table(folder / "algorithms")],
        "report_bytes": len(report.encode()),
        "films": report.count("<video"),
        "trials": len(_table(folder / "tune")),
        "verdict": [line.removeprefix("# ") for line in best if line.startswith("# ")],
        "tuned": {"algo": winner.algo, "env_id": winner.env_id, "seed": winner.seed, "score": winner.score},
        "policy": {"algo": contract.algo, "pairs": contract.pairs, "max_error": error},
    }


def _table(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
