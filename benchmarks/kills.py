"""Crash safety: training processes are ended by SIGKILL, half of them at random moments, half of them at a write.

After each kill every visible checkpoint must be complete and the run must continue; a run that was killed many times
must end exactly as an uninterrupted one. `tests/test_checkpoint_workflows.py` makes a few kills, `python -m benchmarks
kills` many, over all families of algorithms.
"""

import argparse
import functools
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from importlib import metadata
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.exactness import (
    ACTOR_CRITICS,
    ALGO_KWARGS,
    DREAMER,
    GAIL,
    OFFLINE,
    PPO_COMBINATIONS,
    SMALL_ACTOR_CRITIC,
    Case,
    differences,
)
from benchmarks.machine import describe_run
from benchmarks.measurements import summarize_kills
from benchmarks.results import Line, Session
from rl_training.experiment.checkpointing import checkpoint_names, is_whole
from rl_training.experiment.json_lines import JsonLines
from rl_training.experiment.run_dir import create_run_dir, read_result
from rl_training.runtime.setup import resolve
from rl_training.runtime.trainer import RunOptions, resume

EXIT_INTERRUPTED = 75
LONGEST_WAIT = 120.0  # seconds until something must have happened, even on a busy machine
WRITES = range(1, 120)  # the write at which a process dies is drawn from here; a save takes about thirty
AUDITED = {"os.rename": "a rename", "os.remove": "a removal", "os.rmdir": "a removal", "os.mkdir": "a new folder"}

# Saves are as frequent as possible: every kind of save within a few seconds.
OFTEN = {
    "total_timesteps": 400,
    "log_interval": 35,
    "eval_interval": 110,
    "eval_episodes": 1,
    "checkpoint_interval": 40,
    "keep_checkpoints": 3,
}
# With rows of 8 KiB a save takes about as long as the steps between two saves.
CASE = Case(
    name="dqn",
    settings={
        **OFTEN,
        "env_id": "rl_training/Identity-v0",
        "env_kwargs": {"size": 1024},
        "num_envs": 2,
        "total_timesteps": 1_500,
        "log_interval": 70,
    },
    algo_kwargs={"buffer_capacity": 1_200, "train_frequency": 8, "gradient_steps": 1, "hidden_sizes": [8]},
)
WORKERS = replace(CASE, name="dqn_workers", settings={**CASE.settings, "execution_backend": "local_async"})
HEADS = [
    Case(name=algo, settings={**OFTEN, "algo": algo, "num_envs": 2}, algo_kwargs=ALGO_KWARGS["dqn"])
    for algo in ("c51_dqn", "qr_dqn", "iqn", "fqf", "rainbow_dqn")
]
IQL_ONLINE = Case(
    name="iql_online",
    settings={**OFTEN, "algo": "iql_online", "env_id": "Pendulum-v1", "env_kwargs": {"max_episode_steps": 55}},
    algo_kwargs=SMALL_ACTOR_CRITIC,
)
OTHERS = [*ACTOR_CRITICS, PPO_COMBINATIONS[-1], GAIL, *OFFLINE, DREAMER]
CASES = [
    CASE,
    WORKERS,
    *HEADS,
    *(replace(case, settings={**case.settings, **OFTEN}) for case in OTHERS),
    IQL_ONLINE,
]


class LostRunError(RuntimeError):
    """A killed run could not be finished."""


# --- The child -------------------------------------------------------------------------------------------------------


def continue_run(run_dir: Path, dies_at: int | None) -> None:
    """Continue the run to its end, or to the write number `dies_at` into its folder; this is what a child does."""
    if dies_at is not None:
        _die_at_write(run_dir, dies_at)
    sys.exit(EXIT_INTERRUPTED if resume(run_dir, RunOptions(show_progress=False)).interrupted else 0)


def _die_at_write(run_dir: Path, number: int) -> None:
    """Kill this process right before its write `number` into the run folder, and note beside the folder what it was."""
    writes = itertools.count(1)

    def before_write(kind: str) -> None:
        if next(writes) == number:
            _note(run_dir).write_text(kind)
            os.kill(os.getpid(), signal.SIGKILL)

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event in AUDITED and str(run_dir) in str(arguments[0]):
            before_write(AUDITED[event])
        elif event == "open" and str(run_dir) in str(arguments[0]) and _writes(arguments[1], arguments[2]):
            before_write("a new file")

    def counted(self: JsonLines, append: Callable[[JsonLines], Any]) -> Any:
        before_write("an append to a log")
        return append(self)

    sys.addaudithook(look)
    for name in ("flush", "position"):
        setattr(JsonLines, name, functools.partialmethod(counted, getattr(JsonLines, name)))


def _writes(mode: str | None, flags: int) -> bool:
    return "w" in (mode or "") or bool(flags & (os.O_WRONLY | os.O_RDWR))


def _note(run_dir: Path) -> Path:
    return run_dir.parent / "last_write.txt"


def start_child(run_dir: Path, dies_at: int | None = None) -> BaseProcess:
    """Start a process that continues the run, from a fork server that has already imported everything."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.kills"])
    child = context.Process(target=continue_run, args=(run_dir, dies_at))
    child.start()
    return child


def finish(run_dir: Path) -> Path:
    """Continue the run to its end, in a child; return its folder."""
    child = start_child(run_dir)
    child.join()
    _check_ended(child)
    return run_dir


def _check_ended(child: BaseProcess) -> None:
    if child.exitcode != 0:
        raise LostRunError(f"the run could not be continued: exit code {child.exitcode}")


# --- Kills -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kill:
    """Where a run was killed, and what was damaged afterwards."""

    place: str
    damage: list[str]


def prepare_run(case: Case, run_dir: Path) -> Path:
    """Create the folder of a run as `train` does, without training yet."""
    return create_run_dir(resolve(case.config(run_dir.parent)), run_dir)


def kill_at_write(run_dir: Path, rng: random.Random) -> str | None:
    """Continue the run in a child that dies at a write; return which, or None if the run ended before."""
    child = start_child(run_dir, rng.choice(WRITES))
    child.join()
    if child.exitcode == -signal.SIGKILL:
        return f"at {_note(run_dir).read_text()}"
    _check_ended(child)
    return None


def kill_at_random(run_dir: Path, rng: random.Random) -> str | None:
    """Continue the run in a child and kill it; return where it was, or None if it ended before the kill."""
    child = start_child(run_dir)
    try:
        if _wait_for_the_moment(run_dir, child, rng):
            os.kill(child.pid or 0, signal.SIGKILL)
    finally:
        child.kill()
        child.join()
    if child.exitcode == -signal.SIGKILL:
        return place_of_death(run_dir)
    _check_ended(child)
    return None


def _wait_for_the_moment(run_dir: Path, child: BaseProcess, rng: random.Random) -> bool:
    """Wait for zero to two new checkpoints, so that a run that is killed repeatedly makes progress, and a bit more."""
    folder = run_dir / "checkpoints"
    before = set(checkpoint_names(folder))
    saves = rng.choice([0, 1, 1, 2])
    if not wait_until(lambda: len(set(checkpoint_names(folder)) - before) >= saves, child):
        return False
    until = time.monotonic() + rng.uniform(0.0, 0.3)
    return wait_until(lambda: time.monotonic() >= until, child)


def wait_until(condition: Callable[[], bool], child: BaseProcess) -> bool:
    """Poll until `condition` holds; return False if the child ended first."""
    deadline = time.monotonic() + LONGEST_WAIT
    while not condition():
        if not child.is_alive():
            return False
        if time.monotonic() > deadline:
            raise LostRunError(f"nothing happened for {LONGEST_WAIT:g} s")
        time.sleep(0.0005)
    return True


def place_of_death(run_dir: Path) -> str:
    folder = run_dir / "checkpoints"
    if any(folder.glob(".writing_*")):
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


def kill_run(run_dir: Path, *, kills: int, seed: int) -> Iterator[Kill]:
    """Kill a prepared run up to `kills` times, by turns at a write and at a random moment, then finish it."""
    rng = random.Random(seed)
    for kill in itertools.islice(itertools.cycle((kill_at_write, kill_at_random)), kills):
        if read_result(run_dir) is not None:  # the last kill came after the end of the run
            return
        place = kill(run_dir, rng)
        if place is None:
            return
        yield Kill(place, damage(run_dir))
    if read_result(run_dir) is None:
        finish(run_dir)


# --- The command -----------------------------------------------------------------------------------------------------


def kill_case(case: Case, folder: Path, kills: int, seed: int) -> list[Line]:
    """Kill runs of one kind, one after the other, `kills` times in total; return a line for each kill and each run."""
    lines: list[Line] = []
    done = 0
    try:
        unbroken = finish(prepare_run(case, folder / "unbroken"))
        for number in itertools.count():
            if done >= kills:
                break
            run_dir = prepare_run(case, folder / f"run_{number}")
            head = {"case": case.name, "run": number}
            start = time.perf_counter()
            for kill in kill_run(run_dir, kills=kills - done, seed=seed + number):
                done += 1
                seconds, start = round(time.perf_counter() - start, 1), time.perf_counter()
                found = {"kills": {kill.place: 1}, "checkpoints_not_whole": kill.damage, "seconds": seconds}
                lines.append({**head, **found})
            lines.append({**head, "differences": differences(run_dir, unbroken)})
            shutil.rmtree(run_dir)
    except LostRunError as error:
        lines.append({"case": case.name, "failed": str(error)})
    return lines


def run_kills(cases: Sequence[Case], *, kills: int, jobs: int, seed: int, out: Path) -> bool:
    """Kill runs of all cases, `jobs` at a time, `kills` times in total. Return whether nothing was lost."""
    versions = {name: metadata.version(name) for name in ("rl-training", "torch", "gymnasium", "numpy")}
    session = Session(out, {**describe_run(), "versions": versions, "seed": seed})
    shares = [kills // len(cases) + (index < kills % len(cases)) for index in range(len(cases))]
    # Processes, not threads: `multiprocessing` loses exit codes of children that several threads start.
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(jobs, context) as pool:
        examined = [
            pool.submit(kill_case, case, Path(name) / case.name, share, seed + 1_000 * index)
            for index, (case, share) in enumerate(zip(cases, shares, strict=True))
            if share
        ]
        for future in as_completed(examined):
            for line in future.result():
                session.add(line)
                print(line, flush=True)
    summary = summarize_kills(session.lines)
    print(f"{summary}; {out}")
    clean = not any(summary[name] for name in ("checkpoints_not_whole", "runs_lost", "runs_that_differ"))
    return clean and summary["kills"] >= kills


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kills", type=int, default=200, help="in total, half of them at a write (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (default: %(default)s)")
    names = [case.name for case in CASES]
    parser.add_argument("--cases", type=command_line.parse_names, help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the runs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    chosen = command_line.check_names(args.cases, [case.name for case in CASES], "case")
    cases = [case for case in CASES if case.name in chosen]
    if args.device == "cuda":  # where the update is captured in a CUDA graph
        settings = {"device": "cuda", "acceleration": "auto", "deterministic": True}
        cases = [replace(case, settings={**case.settings, **settings}) for case in cases]
    out = command_line.result_folder(args) / ("kills.jsonl" if args.device == "cpu" else "kills_cuda.jsonl")
    return 0 if run_kills(cases, kills=args.kills, jobs=args.jobs, seed=args.seed, out=out) else 1
