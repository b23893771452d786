"""Try other values of a row's settings, on other seeds than those that are scored.

Each run adds one line to `results/tuning/<row>.jsonl`, in the form of a score line. The contender's name says what was
changed: `learning_rate=3e-4 layer_norm=true`, or `ours` for the row as it is.
"""

import argparse
from dataclasses import replace
from typing import Any

from benchmarks import command_line
from benchmarks.command_line import UsageError
from benchmarks.engine import Control, Row, RowRuns, run_scores
from benchmarks.results import read_lines
from benchmarks.rows import ROWS
from benchmarks.summaries import print_scores, summarize_scores
from rl_training.experiment.config_files import parse_yaml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="ROW", help="such as sac-hopper: `python -m benchmarks scores --list`")
    parser.add_argument(
        "--change",
        action="append",
        default=[],
        metavar="'SETTING=VALUE ...'",
        help="a variant: these algo_kwargs instead of the row's, blanks between them; give it once per variant",
    )
    parser.add_argument(
        "--contenders",
        type=command_line.parse_names,
        default=[],
        metavar="A,B",
        help="of the row, beside the changes",
    )
    parser.add_argument("--seeds", type=command_line.parse_seeds, required=True, help="such as 100-104")
    parser.add_argument("--steps", type=int, help="steps per run instead of the row's own")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="where ours trains (default: %(default)s)")
    command_line.add_stacked(parser)
    command_line.add_quick(parser)
    command_line.add_out(parser)


def parse_change(text: str) -> dict[str, Any]:
    """Parse `learning_rate=3e-4 hidden_sizes=[64,64]` into settings and values."""
    changes: dict[str, Any] = {}
    for part in text.split():
        name, separator, value = part.partition("=")
        if not separator or not name:
            raise UsageError(f"a change is written SETTING=VALUE, several of them with blanks between, got {text!r}")
        changes[name] = parse_yaml(value, name)
    return changes


def with_variants(row: Row, changes: list[str]) -> Row:
    """Return the row with a further contender for each change: our algorithm with the changed settings."""
    variants = {text: Control(config=row.config, hparams=parse_change(text)) for text in changes}
    return replace(row, controls={**row.controls, **variants})


def run(args: argparse.Namespace) -> int:
    command_line.check_names([args.name], list(ROWS), "row")
    row = with_variants(ROWS[args.name], args.change)
    contenders = command_line.check_names([*args.contenders, *args.change], list(row.contenders), "contender")
    wanted = RowRuns(
        name=args.name,
        row=row,
        contenders=contenders if args.contenders or args.change else ["ours"],
        seeds=args.seeds,
        steps=command_line.steps_of(args, row.steps),
        out=command_line.result_folder(args),
        kind="tuning",
        stacked=args.stacked,
    )
    well = run_scores([wanted], jobs=args.jobs, device=args.device)
    print_scores(row, summarize_scores(read_lines(wanted.file), row))
    print(f"written: {wanted.file}", flush=True)
    return 0 if well else 1
