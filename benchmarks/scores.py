"""Train over several seeds and play the final policy greedily on reset seeds that all contenders share.

Each run adds one line to `results/scores/<row>.jsonl`; `python -m benchmarks scores --list` shows the rows.
"""

import argparse

from benchmarks import command_line
from benchmarks.engine import PRECISIONS, RowRuns, run_scores
from benchmarks.results import read_lines
from benchmarks.rows import ROWS, rows_named
from benchmarks.rows.atari import ATARI_ROWS
from benchmarks.summaries import print_scores, summarize_scores


def print_rows() -> None:
    width = max(map(len, [*ROWS, *ATARI_ROWS]))
    print(f"{'row':{width}} {'steps':>10} {'seeds':>5}  target")
    for name, row in ROWS.items():
        print(f"{name:{width}} {row.steps:10,} {row.seeds:5}  {row.target}")
    print("\npython -m benchmarks atari")
    for name, atari_row in ATARI_ROWS.items():
        print(f"{name:{width}} {atari_row.steps:10,} {1:5}  {atari_row.target}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="ROW",
        help="such as sac-pendulum; sac stands for all rows whose names begin with sac- (default: all rows)",
    )
    parser.add_argument("--list", action="store_true", help="list the rows with budget and target, and run nothing")
    parser.add_argument("--contenders", type=command_line.parse_names, metavar="A,B", help="only these contenders")
    parser.add_argument("--steps", type=int, help="steps per run instead of the row's own")
    parser.add_argument("--seeds", type=command_line.parse_seeds, help="0-4 or 0,2,5 (default: the row's own)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="where ours and d3rlpy train (default: %(default)s)")
    parser.add_argument(
        "--matmul-precision",
        choices=tuple(PRECISIONS),
        help="of our contenders; medium means bfloat16 products (default: the config's)",
    )
    command_line.add_stacked(parser)
    command_line.add_quick(parser)
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    if args.list:
        print_rows()
        return 0
    wanted = [
        RowRuns(
            name=name,
            row=ROWS[name],
            contenders=command_line.check_names(args.contenders, list(ROWS[name].contenders), "contender"),
            seeds=args.seeds or range(2 if args.quick else ROWS[name].seeds),
            steps=command_line.steps_of(args, ROWS[name].steps),
            out=command_line.result_folder(args),
            matmul_precision=args.matmul_precision,
            stacked=args.stacked,
        )
        for name in rows_named(args.names)
    ]
    well = run_scores(wanted, jobs=args.jobs, device=args.device)
    for each in wanted:
        print_scores(each.row, summarize_scores(read_lines(each.file), each.row))
        print(f"written: {each.file}", flush=True)
    return 0 if well else 1
