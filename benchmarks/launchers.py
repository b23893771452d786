"""Runs on each launcher, whose workers are ended by SIGKILL: every run ends, with the weights of an undisturbed one.

Half of the kills hit the process that trains a run, half the worker that claims it: the launching command (`local`),
`rl-training work` (`work`, started by hand, and `slurm`), or a process of Ray. `slurm` starts a cluster on this machine
(slurm_cluster.py); `ray` needs `pip install '.[ray]'`.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.exactness import SMALL_PPO, differences
from benchmarks.machine import describe_run
from benchmarks.results import Line, Session
from benchmarks.slurm_cluster import slurm_cluster
from rl_training.experiment.checkpointing import checkpoint_names
from rl_training.experiment.claims import holder_of
from rl_training.experiment.run_dir import create_run_dir, read_result, read_run_config
from rl_training.results.run_record import RunRecord

LAUNCHERS = ("local", "work", "slurm", "ray")
JOBS = 2
LONGEST_WAIT = 600.0  # seconds until something must have happened, even on a busy machine
SETTINGS: dict[str, Any] = {
    "env_id": "CartPole-v1",
    "total_timesteps": 2_000,
    "device": "cpu",
    "acceleration": "eager",
    "checkpoint_interval": 100,
    "eval_interval": 900,
    "eval_episodes": 1,
    "log_interval": 70,
    "tensorboard": False,
}
DQN = {"buffer_capacity": 500, "learning_starts": 100, "train_frequency": 4, "gradient_steps": 1, "hidden_sizes": [16]}
CONFIGS = {"dqn": DQN, "ppo": SMALL_PPO}
SEEDS = "0-2"


def write_sweep(folder: Path) -> Path:
    """Write a sweep of six runs: two algorithms with three seeds."""
    for algo, algo_kwargs in CONFIGS.items():
        config = {**SETTINGS, "algo": algo, "algo_kwargs": algo_kwargs}
        (folder / f"{algo}.yaml").write_text(json.dumps(config), encoding="utf-8")  # YAML, too
    file = folder / "runs.yaml"
    file.write_text(json.dumps({"configs": [str(folder / f"{algo}.yaml") for algo in CONFIGS], "seeds": SEEDS}))
    return file


class Launch:
    """The processes that launch the runs of a folder: one `sweep`, or two `work`. Killed ones are started again."""

    def __init__(self, folder: Path, launcher: str) -> None:
        self.root, self.output = folder / "runs", folder / "output.txt"
        sweep = ["sweep", str(write_sweep(folder)), "--launcher", launcher, "--jobs", str(JOBS)]
        sweep += ["--ray", "address=local"] if launcher == "ray" else []  # not the cluster of somebody else
        self._commands = [["work", str(self.root)]] * JOBS if launcher == "work" else [sweep]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * len(self._commands)

    @property
    def runs(self) -> list[Path]:
        return sorted(path.parent for path in self.root.glob("*/*/config.yaml"))

    def is_done(self) -> bool:
        """Return whether all runs are finished and all processes have ended; start those that were killed."""
        for slot, process in enumerate(self._processes):
            code = process.poll() if process is not None else -signal.SIGKILL
            if code not in (None, 0, -signal.SIGKILL):
                raise RuntimeError(f"a launching process ended with exit code {code}; see {self.output}")
            if code is not None and not (self.runs and all(read_result(run) is not None for run in self.runs)):
                self._processes[slot] = self._start(self._commands[slot])
        return all(process is not None and process.poll() is not None for process in self._processes)

    def _start(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        with self.output.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "rl_training", *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def run(self) -> None:
        """Run until all is done."""
        self.wait_until(lambda: False)

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait until a condition holds; return False if all is done before."""
        deadline = time.monotonic() + LONGEST_WAIT
        while not condition():
            if self.is_done():
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing happened for {LONGEST_WAIT:g} s; see {self.output}")
            time.sleep(0.02)
        return True

    def end(self) -> None:
        for process in self._processes:
            if process is not None:
                process.terminate()
                process.wait()


def trainers(runs: Sequence[Path]) -> dict[Path, list[int]]:
    """Return the processes that train each run now.

    A process that starts a program, such as git, is a copy of itself for a moment: a child of a trainer is not one.
    """
    found: dict[Path, dict[int, int]] = {run: {} for run in runs}  # process: its parent
    by_name = {str(run): run for run in runs}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_text("utf-8", "replace").split("\0")
                if "resume" in words and (run := by_name.get(words[words.index("resume") + 1])) is not None:
                    parent = (process / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1]
                    found[run][int(process.name)] = int(parent)
    return {run: [pid for pid, parent in pids.items() if parent not in pids] for run, pids in found.items()}


def is_training(pid: int, run: Path) -> bool:
    """Return whether a process has opened the lock of a run: it trains or is about to, and does not yet end."""
    with contextlib.suppress(OSError):
        return any(file.readlink() == run / ".lock" for file in Path(f"/proc/{pid}/fd").iterdir())
    return False


class Watch:
    """Looks all the time how many processes train each run."""

    def __init__(self, launch: Launch) -> None:
        self._launch, self._ended, self.most = launch, threading.Event(), 0
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            for run, pids in trainers(self._launch.runs).items():
                self.most = max(self.most, sum(is_training(pid, run) for pid in pids))


def kill(launch: Launch, rng: random.Random, kind: str) -> str | None:
    """Kill the worker or the training process of a run after zero to two new checkpoints of it; None if all is done."""
    while launch.wait_until(lambda: any(trainers(launch.runs).values())):
        run = rng.choice([run for run, pids in trainers(launch.runs).items() if pids] or [None])
        if run is None:
            continue
        saves, before = rng.choice([0, 1, 1, 2]), set(checkpoint_names(run / "checkpoints"))

        def is_due(run: Path = run, saves: int = saves, before: set[str] = before) -> bool:
            return len(set(checkpoint_names(run / "checkpoints")) - before) >= saves or read_result(run) is not None

        launch.wait_until(is_due)
        time.sleep(rng.uniform(0.0, 0.5))
        holder, pids = holder_of(run), trainers([run])[run]
        if holder is not None and pids and read_result(run) is None:
            with contextlib.suppress(ProcessLookupError):  # it ended in this moment
                os.kill(holder.pid if kind == "worker" else pids[0], signal.SIGKILL)
                return kind
    return None


def examine(launcher: str, folder: Path, unbroken: Launch, kills: int, seed: int) -> Line:
    """Run six runs on a launcher, kill its processes, and compare the runs with undisturbed ones."""
    folder.mkdir()
    launch = Launch(folder, launcher)
    if launcher == "work":
        for run in unbroken.runs:
            create_run_dir(read_run_config(run), launch.root / run.relative_to(unbroken.root))
    rng, start = random.Random(seed), time.perf_counter()
    killed: Counter[str] = Counter()
    try:
        with Watch(launch) as watch:
            for number in range(kills):
                if (kind := kill(launch, rng, ("worker", "trainer")[number % 2])) is None:
                    break
                killed[kind] += 1
                print(f"{launcher}: killed {dict(killed)}", flush=True)
            launch.run()
    finally:
        launch.end()
    return {
        "launcher": launcher,
        "runs": len(launch.runs),
        "finished": sum(read_result(run) is not None for run in launch.runs),
        "kills": dict(killed),
        "starts": sum(len(RunRecord(run).starts) for run in launch.runs),
        "trained_by_at_most": watch.most,
        "differences": [
            f"{run.relative_to(launch.root)}: {difference}"
            for run in launch.runs
            for difference in differences(run, unbroken.root / run.relative_to(launch.root))
        ],
        "seconds": round(time.perf_counter() - start, 1),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--launchers", type=command_line.parse_names, help=f"of {', '.join(LAUNCHERS)} (default: all)")
    parser.add_argument("--kills", type=int, default=10, help="per launcher (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    names = command_line.check_names(args.launchers, LAUNCHERS, "launcher")
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    file = command_line.result_folder(args) / "launchers.jsonl"
    session = Session(file, {**describe_run(), "seed": args.seed})
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "unbroken").mkdir()
        unbroken = Launch(Path(name) / "unbroken", "local")
        unbroken.run()
        for launcher in names:
            with slurm_cluster(Path(name) / "cluster") if launcher == "slurm" else contextlib.nullcontext():
                line = examine(launcher, Path(name) / launcher, unbroken, args.kills, args.seed)
            session.add(line)
            print(line, flush=True)
    return 0 if all(is_clean(line, args.kills) for line in session.lines) else 1


def is_clean(line: dict[str, Any], kills: int) -> bool:
    all_ended = line["finished"] == line["runs"] == 6 and sum(line["kills"].values()) >= kills
    return all_ended and line["trained_by_at_most"] == 1 and not line["differences"]
