"""Crash safety: training processes are ended by SIGKILL at random moments, most of them during a save.

After each kill every visible checkpoint must be complete and the run must continue; a run that was killed many times
must end exactly as an uninterrupted one. `tests/test_checkpoint_workflows.py` makes a few kills, `python -m benchmarks
kills` many.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks import command_line
from benchmarks.exactness import Case, differences, run_unbroken
from benchmarks.machine import describe_run
from benchmarks.measurements import summarize_kills
from benchmarks.results import Session
from rl_training.experiment.checkpointing import checkpoint_names, is_whole
from rl_training.experiment.run_dir import create_run_dir, read_result
from rl_training.runtime.setup import resolve
from rl_training.runtime.trainer import RunOptions, resume

EXIT_INTERRUPTED = 75
LONGEST_WAIT = 60.0  # seconds until something must have happened, even on a busy machine

# With rows of 8 KiB a save takes about as long as the steps between two saves.
CASE = Case(
    name="killed",
    settings={
        "env_id": "rl_training/Identity-v0",
        "env_kwargs": {"size": 1024},
        "num_envs": 2,
        "total_timesteps": 1_500,
        "log_interval": 70,
        "eval_interval": 110,
        "checkpoint_interval": 40,
        "keep_checkpoints": 3,
    },
    algo_kwargs={"buffer_capacity": 1_200, "train_frequency": 8, "gradient_steps": 1, "hidden_sizes": [8]},
)


class LostRunError(RuntimeError):
    """A killed run could not be finished."""


def continue_run(run_dir: Path) -> None:
    """Continue the run to its end; this is what the child process does."""
    sys.exit(EXIT_INTERRUPTED if resume(run_dir, RunOptions(show_progress=False)).interrupted else 0)


def start_child(run_dir: Path) -> BaseProcess:
    """Start a process that continues the run, from a fork server that has already imported everything."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.kills"])
    child = context.Process(target=continue_run, args=(run_dir,))
    child.start()
    return child


def prepare_run(case: Case, folder: Path) -> Path:
    """Create the folder of a run as `train` does, without training yet."""
    return create_run_dir(resolve(case.config(folder)), folder / case.name)


def wait_until(condition: Callable[[], bool], child: BaseProcess) -> bool:
    """Poll until `condition` holds; return False if the child ended first."""
    deadline = time.monotonic() + LONGEST_WAIT
    while not condition():
        if not child.is_alive():
            return False
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened for {LONGEST_WAIT:g} s")
        time.sleep(0.0002)
    return True


def is_saving(run_dir: Path) -> bool:
    return any((run_dir / "checkpoints").glob(".writing_*"))


def kill_once(run_dir: Path, *, during_save: bool, rng: random.Random) -> str:
    """Continue the run in a child and kill it; return where it was, or "finished" if it ended before the kill."""
    child = start_child(run_dir)
    try:
        if not _wait_for_the_moment(run_dir, child, during_save, rng):
            child.join()
            return _ended(child)
        os.kill(child.pid or 0, signal.SIGKILL)
    finally:
        child.kill()
        child.join()
    if child.exitcode != -signal.SIGKILL:
        return _ended(child)
    return place_of_death(run_dir)


def _ended(child: BaseProcess) -> str:
    if child.exitcode != 0:
        raise LostRunError(f"the run could not be continued: exit code {child.exitcode}")
    return "finished"


def _wait_for_the_moment(run_dir: Path, child: BaseProcess, during_save: bool, rng: random.Random) -> bool:
    """Wait for zero to two new checkpoints, so that a run that is killed repeatedly makes progress."""
    folder = run_dir / "checkpoints"
    before = set(checkpoint_names(folder))
    saves = rng.choice([0, 1, 1, 2])
    if not wait_until(lambda: len(set(checkpoint_names(folder)) - before) >= saves, child):
        return False
    if during_save:
        if not wait_until(lambda: is_saving(run_dir), child):
            return False
        until = time.monotonic() + rng.uniform(0.0, 0.01)
    else:
        until = time.monotonic() + rng.uniform(0.0, 0.3)
    return wait_until(lambda: time.monotonic() >= until, child)


def place_of_death(run_dir: Path) -> str:
    folder = run_dir / "checkpoints"
    if is_saving(run_dir):
        return "during a save"
    if any(folder.glob(".removing_*")):
        return "while removing an old checkpoint"
    return "between saves" if checkpoint_names(folder) else "before the first checkpoint"


def damage(run_dir: Path) -> list[str]:
    """List the visible checkpoints that are incomplete, and a `latest` that does not name a complete one."""
    folder = run_dir / "checkpoints"
    found = [f"{name} is not whole" for name in checkpoint_names(folder) if not is_whole(folder / name)]
    latest = folder / "latest"
    if latest.exists() and not is_whole(folder / latest.read_text().strip()):
        found.append(f"latest names {latest.read_text().strip()!r}, which is not whole")
    return found


def run_killed(
    case: Case, folder: Path, *, kills: int, share_during_save: float, seed: int
) -> tuple[Path, Counter[str], list[str]]:
    """Kill a run up to `kills` times, then finish it; return its folder, where it was killed, and all damage."""
    rng = random.Random(seed)
    run_dir = prepare_run(case, folder)
    places: Counter[str] = Counter()
    found: list[str] = []
    while sum(places.values()) < kills:
        place = kill_once(run_dir, during_save=rng.random() < share_during_save, rng=rng)
        if place == "finished":
            break
        places[place] += 1
        found += damage(run_dir)
    if read_result(run_dir) is None:
        child = start_child(run_dir)
        child.join()
        _ended(child)
    return run_dir, places, found


# --- The command -----------------------------------------------------------------------------------------------------


def run_kills(*, kills: int, seed: int, out: Path) -> bool:
    """Kill runs, one after the other, `kills` times in total. Return whether nothing was lost."""
    versions = {name: metadata.version(name) for name in ("rl-training", "torch", "gymnasium", "numpy")}
    session = Session(out, {**describe_run(), "versions": versions, "seed": seed})
    with tempfile.TemporaryDirectory() as name:
        unbroken = run_unbroken(CASE, Path(name))
        while (done := summarize_kills(session.lines)["kills"]) < kills:
            number = len(session.lines)
            backend = ("local_sync", "local_async")[number % 2]  # the uninterrupted run is the same for both
            case = replace(CASE, settings={**CASE.settings, "execution_backend": backend})
            folder, head, start = Path(name) / str(number), {"run": number, "backend": backend}, time.perf_counter()
            try:
                run_dir, places, damaged = run_killed(
                    case, folder, kills=kills - done, share_during_save=0.75, seed=seed + number
                )
            except LostRunError as error:
                session.add({**head, "failed": str(error)})
                break
            found = {"kills": dict(places), "differences": differences(run_dir, unbroken)}
            seconds = round(time.perf_counter() - start, 1)
            session.add({**head, **found, "checkpoints_not_whole": damaged, "seconds": seconds})
            print(f"run {number}: {found}", flush=True)
    summary = summarize_kills(session.lines)
    print(f"{summary}; {out}")
    enough = summary["places"].get("during a save", 0) * 2 >= kills
    return enough and not any(summary[name] for name in ("checkpoints_not_whole", "runs_lost", "runs_that_differ"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kills", type=int, default=40, help="in total, at least half during a save (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random moments (default: %(default)s)")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    out = command_line.result_folder(args) / "kills.jsonl"
    return 0 if run_kills(kills=args.kills, seed=args.seed, out=out) else 1
