"""Replay memory alone: add a transition and sample a batch of 256, contenders in turn on one core.

Times are CPU times of the contender's process, so that other load on the machine counts little; wall times are in the
result file as well.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.launch import Contender, ContenderError, run_contender
from benchmarks.machine import describe_run
from benchmarks.measurements import summarize_replay
from benchmarks.results import Session
from benchmarks.spread import Spread

CASES: dict[str, dict[str, Any]] = {
    "floats": {"kind": "floats", "prioritized": False, "capacity": 100_000},
    "floats-prioritized": {"kind": "floats", "prioritized": True, "capacity": 100_000},
    "images": {"kind": "images", "prioritized": False, "capacity": 20_000},
    "images-prioritized": {"kind": "images", "prioritized": True, "capacity": 20_000},
}
EVERY = tuple(CASES)
IMAGES = ("images", "images-prioritized")


def _contender(name: str, peer: str | None = None, variant: str = "") -> Contender:
    return Contender(name=name, script=f"replay_{peer or 'ours'}.py", peer=peer, setting={"variant": variant})


# Each with the cases it supports. "compact": frames, or successors, are stored once.
CONTENDERS: dict[str, tuple[Contender, tuple[str, ...]]] = {
    "ours": (_contender("ours"), EVERY),
    "ours-fresh": (_contender("ours-fresh", variant="fresh"), EVERY),
    "sb3": (_contender("sb3", "sb3"), ("floats", "images")),
    "sb3-compact": (_contender("sb3-compact", "sb3", "compact"), ("floats", "images")),
    "tianshou": (_contender("tianshou", "tianshou"), EVERY),
    "tianshou-compact": (_contender("tianshou-compact", "tianshou", "compact"), IMAGES),
    "torchrl": (_contender("torchrl", "torchrl"), EVERY),
    "cpprb": (_contender("cpprb", "cpprb"), EVERY),
    "cpprb-compact": (_contender("cpprb-compact", "cpprb", "compact"), EVERY),
}


def run_replay(*, contenders: Sequence[str], repeats: int, core: int | None, out: Path) -> bool:
    """Measure, print, and write `out` after every measurement. Return whether every contender ran."""
    session, failed = Session(out, {**describe_run(), "core": core}), set[tuple[str, str]]()
    for repeat in range(repeats):
        for case, setting in CASES.items():
            for name in contenders:
                contender, cases = CONTENDERS[name]
                if case not in cases or (name, case) in failed:
                    continue
                head = {"contender": name, "case_name": case, "repeat": repeat}
                try:
                    cores = [] if core is None else [core]
                    result = run_contender(contender, {**setting, "threads": 1}, cores=cores)
                except ContenderError as error:
                    failed.add((name, case))
                    session.add({**head, "failed": str(error)})
                    print(f"  {case:19} {name:17} FAILED: {error}", flush=True)
                    continue
                session.add({**head, **result})
                figures = ", ".join(f"{key} {times['cpu_us']:.1f} us" for key, times in result["times"].items())
                print(f"  {case:19} {name:17} {figures}", flush=True)
    print_table(summarize_replay(session.lines))
    print(f"written: {out}")
    return not failed


def print_table(summary: dict[str, Any]) -> None:
    for case, operations in summary.items():
        for operation, figures in operations.items():
            print(f"\n{case}, {operation}\n  {'contender':17} {'us (CPU)':>26} {'over ours':>22}")
            for name, figure in sorted(figures.items(), key=lambda item: item[1]["cpu_us"]["median"]):
                ratio = format(Spread(**figure["over_ours"]), ".2f") if figure["over_ours"] else "-"
                print(f"  {name:17} {format(Spread(**figure['cpu_us']), '.1f'):>26} {ratio:>22}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--contenders", type=command_line.parse_names, metavar="A,B", help="only these contenders")
    parser.add_argument("--repeats", type=int, default=5, help="rounds over all contenders (default: %(default)s)")
    command_line.add_core(parser)
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    names = command_line.check_names(args.contenders, list(CONTENDERS), "contender")
    out = command_line.result_folder(args) / "replay.jsonl"
    return 0 if run_replay(contenders=names, repeats=args.repeats, core=args.core, out=out) else 1
