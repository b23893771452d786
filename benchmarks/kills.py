"""Crash safety: training processes ended by SIGKILL at random moments, most of them while they save.

After each death every visible checkpoint must be whole, and the run must go on; the run that was killed over and over
must end as the unbroken one. `tests/test_checkpoint_workflows.py` makes a few kills, `python -m benchmarks kills` many.
"""

import json
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
from typing import Any

from benchmarks.exactness import Case, differences, run_unbroken
from benchmarks.machine import describe_run
from rl_training.experiment.checkpointing import checkpoint_names, is_whole
from rl_training.experiment.run_dir import create_run_dir, read_result
from rl_training.runtime.setup import resolve
from rl_training.runtime.trainer import RunOptions, resume

EXIT_INTERRUPTED = 75
LONGEST_WAIT = 60.0  # seconds until something must have happened, on the busiest machine

# Rows of 8 KiB make a save last as long as the steps between two saves.
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
    """A killed run could not be brought to its end."""


def continue_run(run_dir: Path) -> None:
    """What the child process does: bring the run to its end, from wherever it stands."""
    sys.exit(EXIT_INTERRUPTED if resume(run_dir, RunOptions(show_progress=False)).interrupted else 0)


def start_child(run_dir: Path) -> BaseProcess:
    """Start a process that continues the run; it comes from a server that has imported everything already."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.kills"])
    child = context.Process(target=continue_run, args=(run_dir,))
    child.start()
    return child


def prepare_run(case: Case, folder: Path) -> Path:
    """Make a run's folder as `train` would, without training in it yet."""
    return create_run_dir(resolve(case.config(folder)), folder / case.name)


def wait_until(condition: Callable[[], bool], child: BaseProcess) -> bool:
    """Poll until `condition` holds; False if the child ended first."""
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
    """Continue the run in a child and kill it; say where it was found, or "finished" if it was too quick for us."""
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
    """Wait for some checkpoint after the one it started from, so that a run killed again and again comes forward."""
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
    """Name the visible checkpoints that are not whole, and a `latest` that does not name one of them."""
    folder = run_dir / "checkpoints"
    found = [f"{name} is not whole" for name in checkpoint_names(folder) if not is_whole(folder / name)]
    latest = folder / "latest"
    if latest.exists() and not is_whole(folder / latest.read_text().strip()):
        found.append(f"latest names {latest.read_text().strip()!r}, which is not whole")
    return found


def run_killed(
    case: Case, folder: Path, *, kills: int, share_during_save: float, seed: int
) -> tuple[Path, Counter[str], list[str]]:
    """Kill a run up to `kills` times and bring it to its end; give its folder, the places of death, and all damage."""
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
    """Kill runs, one after the other, until there were `kills` deaths; write what was found to `out`."""
    start = time.perf_counter()
    places: Counter[str] = Counter()
    damaged: list[str] = []
    runs: list[dict[str, Any]] = []
    lost: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        unbroken = run_unbroken(CASE, Path(name))
        while sum(places.values()) < kills:
            left = kills - sum(places.values())
            folder = Path(name) / str(len(runs))
            backend = ("local_sync", "local_async")[len(runs) % 2]  # the unbroken run is the same for both
            case = replace(CASE, settings={**CASE.settings, "execution_backend": backend})
            try:
                run_dir, deaths, found = run_killed(
                    case, folder, kills=left, share_during_save=0.75, seed=seed + len(runs)
                )
            except LostRunError as error:
                lost.append(str(error))
                break
            places += deaths
            damaged += found
            runs.append({"backend": backend, "kills": dict(deaths), "differences": differences(run_dir, unbroken)})
            print(f"run {len(runs)}: {runs[-1]}", flush=True)
    different = [difference for run in runs for difference in run["differences"]]
    enough = places["during a save"] * 2 >= kills
    record = {
        **describe_run(),
        "versions": {name: metadata.version(name) for name in ("rl-training", "torch", "gymnasium", "numpy")},
        "seed": seed,
        "seconds": round(time.perf_counter() - start, 1),
        "kills": sum(places.values()),
        "places": dict(places),
        "checkpoints_not_whole": damaged,
        "runs_lost": lost,
        "runs_that_differ": sum(bool(run["differences"]) for run in runs),
        "runs": runs,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{record['kills']} kills: {dict(places)}")
    print(f"{len(damaged)} checkpoints not whole, {len(lost)} runs lost, {len(different)} differences; {out}")
    return enough and not damaged and not different and not lost
