"""A sweep whose command is ended by SIGKILL again and again must end with the table of one that ran in one go.

The runs of a killed command save and end on their own. The next command waits for them, resumes them and runs the rest.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import command_line
from benchmarks.machine import describe_run
from benchmarks.results import Session

LONGEST_WAIT = 600.0  # seconds until a command must have ended, even on a busy machine
FILES = ("table.csv", "table.md", "sweep.yaml")
SWEEP = """
configs: [dqn/cartpole, ppo/cartpole]
set:
  total_timesteps: 3_000
  acceleration: eager
  checkpoint_interval: 500
  eval_interval: 1_000
  eval_episodes: 2
  tensorboard: false
grid:
  algo_kwargs.learning_rate: [1e-3, 3e-4]
  env_id: [CartPole-v1, Acrobot-v1]
seeds: 0-1
exclude: [{algo: ppo, algo_kwargs.learning_rate: 1e-3}]
"""


def start_sweep(file: Path, jobs: int) -> "subprocess.Popen[bytes]":
    with (file.parent / "output.txt").open("ab") as output:
        command = [sys.executable, "-m", "rl_training", "sweep", str(file), "--jobs", str(jobs), "--quiet"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def kill_at_random(file: Path, jobs: int, rng: random.Random) -> int | None:
    """Run the sweep until it has written one to six new checkpoints and a bit longer, then kill its command.

    Returns the number of finished runs at that moment; None if the sweep ended before.
    """
    before, wanted = _count(file, "checkpoints/step_*"), rng.randint(1, 6)
    process = start_sweep(file, jobs)
    until = time.monotonic() + LONGEST_WAIT
    while process.poll() is None and _count(file, "checkpoints/step_*") < before + wanted:
        if time.monotonic() > until:
            process.kill()
            raise TimeoutError(f"the sweep wrote no checkpoint for {LONGEST_WAIT:g} s: {file.parent / 'output.txt'}")
        time.sleep(0.01)
    time.sleep(rng.uniform(0.0, 0.5))
    process.kill()
    return _count(file, "result.json") if process.wait() == -signal.SIGKILL else None


def _count(file: Path, pattern: str) -> int:
    return len(list(file.with_suffix("").glob(f"*/seed*/{pattern}")))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=3, help="per sweep (default: %(default)s)")
    parser.add_argument("--sweeps", type=int, default=1, help="that are killed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    session = Session(command_line.result_folder(args) / "sweep_kills.jsonl", describe_run())
    with tempfile.TemporaryDirectory() as name:
        whole = _write_sweep(Path(name) / "whole")
        start_sweep(whole, args.jobs).wait(LONGEST_WAIT)
        for number in range(args.sweeps):
            file = _write_sweep(Path(name) / str(number))
            rng = random.Random(args.seed + number)
            finished = [kill_at_random(file, args.jobs, rng) for _ in range(args.kills)]
            code = start_sweep(file, args.jobs).wait(LONGEST_WAIT)
            differing = [each for each in FILES if _content(file, each) != _content(whole, each)]
            line = {"finished_at_kills": finished, "runs": _count(file, "result.json"), "exit_code": code}
            session.add({**line, "files_that_differ": differing})
            print(session.lines[-1], flush=True)
            shutil.rmtree(file.parent)
    clean = all(line["exit_code"] == 0 and not line["files_that_differ"] for line in session.lines)
    return 0 if clean and None not in (kill for line in session.lines for kill in line["finished_at_kills"]) else 1


def _write_sweep(folder: Path) -> Path:
    folder.mkdir()
    file = folder / "lr.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    return file


def _content(file: Path, name: str) -> str:
    return (file.with_suffix("") / name).read_text(encoding="utf-8")
