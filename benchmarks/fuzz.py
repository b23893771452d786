"""Damaged files, hostile files, bad settings and faulty environments: each is refused or harmless.

Each case is one command in a process of its own. It must end, with a clear message or the right result: no code of a
file runs, nothing hangs, nothing ends as a bug, and no damage is used silently. `fuzz_cases.py` lists the kinds.
"""

import argparse
import contextlib
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
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import command_line
from benchmarks.exactness import StopAt
from benchmarks.fuzz_cases import (
    BUG,
    CANARY,
    EVIL,
    FINISHED,
    HANG,
    INTACT_DATA,
    KINDS,
    RAN_CODE,
    REFUSED,
    RUN,
    SAME,
    Kind,
    base_config,
)
from benchmarks.machine import describe_run
from benchmarks.measurements import summarize_fuzz
from benchmarks.results import Line, Session
from rl_training.cli import main
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_dir import read_result
from rl_training.experiment.saved_checkpoint import find_checkpoint
from rl_training.runtime.trainer import RunOptions, train

LONGEST = 60.0  # seconds until a command counts as hung, even on a busy machine
EXIT_REFUSED, EXIT_SAVED = 2, 75
DATA_STEPS = 120


def make_intact(folder: Path) -> None:
    """Write what the cases change: an interrupted run, and a dataset in three formats."""
    folder.mkdir()
    config = base_config("dqn") | {"total_timesteps": 400, "checkpoint_interval": 100}
    config["output_dir"] = folder.parent / "forks"  # where a command may continue a checkpoint in a new run
    config["algo_kwargs"] |= {"learning_starts": 50}
    options = RunOptions(callbacks=[StopAt(220)], show_progress=False)
    train(TrainConfig(**config), options, run_dir=folder / RUN)
    (folder / RUN / "result.json").unlink()  # as after a kill
    (folder / INTACT_DATA).mkdir()
    first = f"{INTACT_DATA}/data.npz"
    code, text = run_command(
        ["record", "--random", "--env", "Pendulum-v1", "--steps", str(DATA_STEPS), "--out", first], folder
    )
    for suffix in ("hdf5", "parquet"):
        if code == 0:
            code, text = run_command(["dataset", "convert", first, f"{INTACT_DATA}/data.{suffix}"], folder)
    if code != 0:
        raise RuntimeError(f"the dataset could not be made: {text}")
    (folder / f"{EVIL}.py").write_text(f"import pathlib\npathlib.Path({CANARY!r}).touch()\n")


# --- Running ---------------------------------------------------------------------------------------------------------


def run_command(words: Sequence[str], folder: Path) -> tuple[int | None, str]:
    """Run the command line in a forked child; return its exit code (None: it did not end) and what it printed."""
    child = os.fork()
    if child == 0:
        _run_in_child(words, folder)
    deadline = time.monotonic() + LONGEST
    status: int | None = None
    while status is None and time.monotonic() < deadline:
        ended, found = os.waitpid(child, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(found)
        else:
            time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):  # its workers, if it left any
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    output = folder / "output.txt"
    text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
    output.unlink(missing_ok=True)
    return status, text


def _run_in_child(words: Sequence[str], folder: Path) -> NoReturn:
    try:
        os.setsid()
        os.chdir(folder)
        sys.path.insert(0, str(folder))  # so that a module of a hostile file could be imported
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
        sys.argv = ["rl-training", *words]
        main()
    except SystemExit as ending:
        os._exit(ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def result_of(folder: Path, text: str) -> object:
    """Return what a command achieved: the trained weights and score of a run, or what the command printed."""
    run_dir = folder / RUN
    if read_result(run_dir) is not None:
        result: dict[str, Any] = read_result(run_dir) or {}
        return (find_checkpoint(run_dir) / "policy.safetensors").read_bytes(), result.get("mean_return")
    return text


def outcome(code: int | None, text: str, folder: Path, intact: object) -> str:
    """Judge how a command ended. `intact`: what it achieves in an intact folder."""
    if (folder / CANARY).exists():
        return RAN_CODE
    if code is None:
        return HANG
    if "Traceback (most recent call last)" in text or code not in (0, EXIT_REFUSED, EXIT_SAVED):
        return BUG
    if code == EXIT_REFUSED:
        return REFUSED if "error:" in text.lower() else BUG
    return SAME if result_of(folder, text) == intact else FINISHED


class Fuzzer:
    """Runs cases in copies of an intact folder."""

    def __init__(self, intact: Path) -> None:
        self._intact = intact
        self._expected: dict[tuple[str, ...], object] = {}

    def expected(self, words: Sequence[str]) -> object:
        """Return what a command achieves in the intact folder; nothing for `train`, which has a config of its own."""
        known = tuple(words)
        if known not in self._expected and words[0] != "train":
            with self._copy() as folder:
                self._expected[known] = result_of(folder, run_command(words, folder)[1])
        return self._expected.get(known)

    def run(self, number: int, kind: Kind) -> Line:
        """Run one case and return its result line."""
        with self._copy() as folder:
            case = kind(folder, random.Random(number))
            code, text = run_command(case.words, folder)
            found = outcome(code, text, folder, self.expected(case.words))
        line: Line = {"case": number, "kind": kind.__name__, "what": case.what, "ran": case.words[0]}
        line |= {"outcome": found, "exit_code": code, "right": found in case.right}
        return line if line["right"] else {**line, "printed": text[-2_000:]}

    @contextlib.contextmanager
    def _copy(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._intact.parent, ignore_cleanup_errors=True) as name:
            yield Path(shutil.copytree(self._intact, Path(name) / "folder", symlinks=True))


@functools.cache
def _fuzzer(intact: Path) -> Fuzzer:
    return Fuzzer(intact)


def run_case(intact: Path, number: int, kind: Kind) -> Line:
    """Run one case; this is what the processes of the pool do."""
    return _fuzzer(intact).run(number, kind)


def numbered_cases(count: int, seed: int) -> Iterator[tuple[int, Kind]]:
    """Choose the kinds of `count` cases by their shares."""
    names = random.Random(seed).choices(list(KINDS), weights=list(KINDS.values()), k=count)
    return zip(range(seed * 1_000_000, seed * 1_000_000 + count), names, strict=True)


# --- The command -----------------------------------------------------------------------------------------------------


def run_fuzz(cases: Sequence[tuple[int, Kind]], *, jobs: int, out: Path) -> bool:
    """Run the cases, `jobs` at a time. Return whether every outcome was right."""
    versions = {name: metadata.version(name) for name in ("rl-training", "torch", "gymnasium", "numpy")}
    facts = {**describe_run(), "versions": versions}
    session = Session(out, {name: facts[name] for name in ("date", "command")})
    with tempfile.TemporaryDirectory() as name:
        os.environ["RL_TRAINING_CACHE"] = f"{name}/cache"  # keys and compiled code of the cases, not of the user
        os.environ["OMP_NUM_THREADS"] = "1"
        intact = Path(name) / "intact"
        make_intact(intact)
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            for line in pool.map(run_case, itertools.repeat(intact), *zip(*cases, strict=True)):
                session.add(line if session.lines else {**line, **facts})  # once: thousands of lines share them
                if not line["right"]:
                    print(f"{line['kind']}: {line['what']}: {line['outcome']}\n{line['printed']}", flush=True)
                if len(session.lines) % 100 == 0:
                    print(f"{len(session.lines)} of {len(cases)} cases", flush=True)
    summary = summarize_fuzz(session.lines)
    print(f"{summary}; {out}")
    return bool(summary["wrong"] == 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = [kind.__name__ for kind in KINDS]
    parser.add_argument("--cases", type=int, default=2_000, help="in total (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time (default: %(default)s)")
    parser.add_argument("--kind", choices=kinds, help="only cases of this kind")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    out = command_line.result_folder(args) / "fuzz.jsonl"
    cases = list(numbered_cases(args.cases, args.seed))
    if args.kind:
        kind = next(kind for kind in KINDS if kind.__name__ == args.kind)
        cases = [(number, kind) for number, _ in cases]
    return 0 if run_fuzz(cases, jobs=args.jobs, out=out) else 1
