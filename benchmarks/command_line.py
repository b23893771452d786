"""Arguments and checks that several sub-commands share."""

import argparse
import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.launch import KEPT_RUNS
from benchmarks.results import RESULTS

QUICK_STEPS = 5_000
QUICK_RESULTS = KEPT_RUNS / "quick"


class UsageError(ValueError):
    """The command line asks for something that does not exist."""


def parse_seeds(text: str) -> list[int]:
    """Parse `0-4`, `0,2,5` or a mix of both."""
    seeds: list[int] = []
    for part in text.split(","):
        first, separator, last = part.partition("-")
        try:
            seeds += range(int(first), int(last or first) + 1) if separator else [int(first)]
        except ValueError:
            raise argparse.ArgumentTypeError(f"seeds are written 0-4 or 0,2,5, got {text!r}") from None
    return seeds


def parse_names(text: str) -> list[str]:
    """Parse `a,b`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def unknown(name: str, known: Sequence[str], kind: str) -> UsageError:
    """Build the error for an unknown name; it offers the closest known one."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    return UsageError(f"unknown {kind} {name!r}; {hint}")


def check_names(names: Sequence[str] | None, known: Sequence[str], kind: str) -> list[str]:
    """Return `names`, or all known ones where none are given; raise an error for the first unknown name."""
    for name in names or ():
        if name not in known:
            raise unknown(name, known, kind)
    return list(names or known)


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=None, help=f"folder of the result files (default: {RESULTS})")


def add_quick(parser: argparse.ArgumentParser) -> None:
    help_text = f"a trial of at most {QUICK_STEPS} steps; results go to {QUICK_RESULTS}"
    parser.add_argument("--quick", action="store_true", help=help_text)


def add_stacked(parser: argparse.ArgumentParser) -> None:
    help_text = "train all seeds of each of our contenders together, then play each; peers run as ever"
    parser.add_argument("--stacked", action="store_true", help=help_text)


def add_core(parser: argparse.ArgumentParser) -> None:
    last = (os.cpu_count() or 1) - 1
    parser.add_argument("--core", type=int, default=last, help="core to run on (default: %(default)s)")


def result_folder(args: argparse.Namespace) -> Path:
    """Return the folder for results: `--out`, or the trial folder with `--quick`, or the committed results."""
    folder: Path = args.out or (QUICK_RESULTS if getattr(args, "quick", False) else RESULTS)
    return folder


def steps_of(args: argparse.Namespace, full: int) -> int:
    """Return the number of steps: `--steps`, or the benchmark's own, shortened by `--quick`."""
    return int(args.steps or (min(QUICK_STEPS, full) if args.quick else full))
