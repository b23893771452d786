"""Environments of other packages, each in a short run: works, or is refused with a remedy; is its resume exact?

They run in a virtual environment of their own, `.peers/packages`, with the versions of
`benchmarks/requirements/packages.txt`.
"""

import argparse
import json
import os
import subprocess
from typing import Any

from benchmarks import command_line
from benchmarks.machine import describe_run
from benchmarks.package_case import CASES
from benchmarks.peers import ROOT, peer_python
from benchmarks.results import Session

LONGEST = 300  # seconds of one case
LEARNING = "minigrid-learning"  # PPO until it has learned, with several seeds
LEARNING_CASE = "minigrid"
LEARNING_SEEDS = (0, 1, 2)


def run_case(python: str, *words: str) -> dict[str, Any]:
    """Run one case in a process of its own, so that a crash or a hang costs no other case."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}
    command = [python, "-m", "benchmarks.package_case", *words]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        return {"outcome": "hung", "message": f"no end after {LONGEST} s"}
    if done.returncode != 0:
        return {"outcome": "failed", "message": (done.stderr or done.stdout)[-1000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="CASE", help=f"of {', '.join([*CASES, LEARNING])} (default: all)")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    names = command_line.check_names(args.names, [*CASES, LEARNING], "case")
    python = str(peer_python("packages"))
    session = Session(command_line.result_folder(args) / "packages.jsonl", describe_run())
    for name in names:
        for words in [("learn", str(seed)) for seed in LEARNING_SEEDS] if name == LEARNING else [(name,)]:
            session.add({"case": name, **_head(name), **run_case(python, *words)})
            line = session.lines[-1]
            found = [line.get(key) for key in ("resume_said", "resume_exact", "return")]
            print(name, line["outcome"], *(each for each in found if each is not None), flush=True)
    return 1 if any(line["outcome"] in ("failed", "hung") for line in session.lines) else 0


def _head(name: str) -> dict[str, Any]:
    """Return what is known of a case before it runs."""
    case = CASES[LEARNING_CASE if name == LEARNING else name]
    return {"package": case.package, "env_id": case.env_id, "algo": case.algo}
