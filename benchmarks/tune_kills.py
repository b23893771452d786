"""A study whose processes are ended by SIGKILL again and again must end as one that nobody disturbed.

Its command and the runs that it has started are killed together. The study then has the same trials, without gaps, the
same winner and the same weights, and no finished run was run again. Training `best.yaml` repeats the winner's weights.
"""

import argparse
import contextlib
import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.machine import describe_run
from benchmarks.results import Line, Session
from rl_training.experiment.config_files import load_config

LONGEST_WAIT = 1_800.0  # seconds until a command must have ended, even on a busy machine
CONFIG = """
algo: dqn
env_id: CartPole-v1
total_timesteps: 1_000
eval_interval: 250
eval_episodes: 2
checkpoint_interval: 200
acceleration: eager
tensorboard: false
algo_kwargs: {learning_rate: 0.1, learning_starts: 100}
"""
TRIALS, SEEDS = 12, 1  # the pruner starts to work at the ninth trial
# As many fresh seeds as fit into a few minutes.
COMMAND = (
    "from rl_training.studies import tuning; tuning.FRESH_SEEDS = 3; from rl_training.cli import main; main()",
    *("tune", "study", "-c", "dqn.yaml", "--trials", str(TRIALS), "--seeds", str(SEEDS), "--jobs", "1", "--quiet"),
)


def start_study(folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-c", *COMMAND], cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def kill_at_random(folder: Path, rng: random.Random) -> int | None:
    """Run the study until it has written a few lines to its journal and a bit longer, then kill it and its runs.

    Returns the number of finished runs at that moment; None if the study ended before.
    """
    journal = folder / "study" / "study.journal"
    wanted = _lines(journal) + rng.randint(1, 12)
    process = start_study(folder)
    until = time.monotonic() + LONGEST_WAIT
    while process.poll() is None and _lines(journal) < wanted and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(rng.uniform(0.0, 3.0))
    children = _children(process.pid)
    process.kill()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return len(finished(folder)) if process.wait() == -signal.SIGKILL else None


def finished(folder: Path) -> dict[str, int]:
    """Return the finished runs of a study, with the time when each ended."""
    files = (folder / "study").glob("*/*/seed*/result.json")
    return {str(file.relative_to(folder).parent): file.stat().st_mtime_ns for file in files}


def differences(folder: Path, whole: Path) -> list[str]:
    """Return what differs between a study and the undisturbed one: trials, winner, weights of the fresh seeds."""
    found = []
    if (folder / "study" / "table.csv").read_bytes() != (whole / "study" / "table.csv").read_bytes():
        found.append("table.csv")
    if _best(folder) != _best(whole):
        found.append("best.yaml")
    runs, expected = finished(folder), finished(whole)
    if runs.keys() != expected.keys():
        found.append("finished runs")
    return found + [run for run in runs.keys() & expected.keys() if weights(folder / run) != weights(whole / run)]


def weights(run: Path) -> bytes:
    """Return the weights at the end of a run."""
    return sorted((run / "checkpoints").glob("step_*/policy.safetensors"))[-1].read_bytes()


def repeats(folder: Path) -> bool:
    """Return whether training best.yaml repeats the weights of the winner on its first fresh seed."""
    command = [sys.executable, "-m", "rl_training", "train", "-c", "study/best.yaml", "--seeds", "2000", "--quiet"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (trained,) = (folder / "runs").glob("*/seed2000")
    rows = list(csv.DictReader((folder / "study" / "table.csv").open()))
    scored = [row for row in rows if row["fresh IQM"]]
    best = max(scored, key=lambda row: float(row["fresh IQM"]))  # of equal ones the first, which is the given config
    return weights(trained) == weights(folder / "study" / "rescore" / f"{int(best['trial']):04d}" / "seed2000")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=5, help="per study (default: %(default)s)")
    parser.add_argument("--studies", type=int, default=1, help="that are killed (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    session = Session(command_line.result_folder(args) / "tune_kills.jsonl", describe_run())
    with tempfile.TemporaryDirectory() as name:
        whole = _make_folder(Path(name) / "whole")
        start_study(whole).wait(LONGEST_WAIT)
        repeated = repeats(whole)
        for number in range(args.studies):
            session.add(_killed_study(_make_folder(Path(name) / str(number)), whole, args, number, repeated))
            print(session.lines[-1], flush=True)
    return 0 if all(map(_is_clean, session.lines)) else 1


def _killed_study(folder: Path, whole: Path, args: argparse.Namespace, number: int, repeated: bool) -> dict[str, Any]:
    rng = random.Random(args.seed + number)
    at_kills: list[int | None] = []
    ended: dict[str, int] = {}
    for _ in range(args.kills):
        at_kills.append(kill_at_random(folder, rng))
        ended = {**finished(folder), **ended}  # the first time of each
    code = start_study(folder).wait(LONGEST_WAIT)
    at_end = finished(folder)
    again = sorted(run for run, at in ended.items() if at_end[run] != at)
    rows = list(csv.DictReader((folder / "study" / "table.csv").open()))
    return {
        "finished_at_kills": at_kills,
        "exit_code": code,
        "runs": len(at_end),
        "pruned": sum(row["state"] == "pruned" for row in rows),
        "run_again": again,
        "differences": differences(folder, whole),
        "best_repeats": repeated,
    }


def _is_clean(line: Line) -> bool:
    sound = line["exit_code"] == 0 and line["best_repeats"] and None not in line["finished_at_kills"]
    return bool(sound) and not line["run_again"] and not line["differences"]


def _make_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "dqn.yaml").write_text(CONFIG, encoding="utf-8")
    return folder


def _best(folder: Path) -> str:
    return load_config(folder / "study" / "best.yaml").to_yaml()


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def _children(pid: int) -> list[int]:
    file = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in file.read_text().split()] if file.is_file() else []
