"""Replay memory alone: adding a transition and drawing a batch of 256, contenders in turn on one core.

Times are CPU times of the contender's process, so that a neighbour on the machine counts little; wall times lie beside
them in the result file.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.launch import Contender, ContenderError, run_contender
from benchmarks.machine import describe_run
from benchmarks.speed import write_json
from benchmarks.spread import Spread, spread

CASES: dict[str, dict[str, Any]] = {
    "floats": {"kind": "floats", "prioritized": False, "capacity": 100_000},
    "floats-prioritized": {"kind": "floats", "prioritized": True, "capacity": 100_000},
    "images": {"kind": "images", "prioritized": False, "capacity": 20_000},
    "images-prioritized": {"kind": "images", "prioritized": True, "capacity": 20_000},
}
EVERY = tuple(CASES)
IMAGES = ("images", "images-prioritized")
OURS = "ours"


def _contender(name: str, library: str, peer: str | None, variant: str = "") -> Contender:
    return Contender(name=name, script=f"replay_{library}.py", peer=peer, setting={"variant": variant})


# With the cases that each has. "compact": frames, or successors, stored once.
CONTENDERS: dict[str, tuple[Contender, tuple[str, ...]]] = {
    OURS: (_contender(OURS, "ours", None), EVERY),
    "ours-fresh": (_contender("ours-fresh", "ours", None, "fresh"), EVERY),
    "sb3": (_contender("sb3", "sb3", "sb3"), ("floats", "images")),
    "sb3-compact": (_contender("sb3-compact", "sb3", "sb3", "compact"), ("floats", "images")),
    "tianshou": (_contender("tianshou", "tianshou", "tianshou"), EVERY),
    "tianshou-compact": (_contender("tianshou-compact", "tianshou", "tianshou", "compact"), IMAGES),
    "torchrl": (_contender("torchrl", "torchrl", "torchrl"), EVERY),
    "cpprb": (_contender("cpprb", "cpprb", "cpprb"), EVERY),
    "cpprb-compact": (_contender("cpprb-compact", "cpprb", "cpprb", "compact"), EVERY),
}


def run_replay(*, contenders: Sequence[str], repeats: int, core: int | None, out: Path) -> bool:
    """Measure, print, and write `out`, anew after every measurement. Give whether every contender ran."""
    results: dict[str, Any] = {
        "benchmark": "replay",
        **describe_run(),
        "cases": CASES,
        "batch_size": 256,
        "core": core,
        "repeats": repeats,
        "summary": {},
        "failures": {},
        "measurements": [],
    }
    for repeat in range(repeats):
        for case, setting in CASES.items():
            for name in contenders:
                contender, cases = CONTENDERS[name]
                if case not in cases or f"{name} {case}" in results["failures"]:
                    continue
                try:
                    cores = [] if core is None else [core]
                    result = run_contender(contender, {**setting, "threads": 1}, cores=cores)
                except ContenderError as error:
                    results["failures"][f"{name} {case}"] = str(error)
                    print(f"  {case:19} {name:17} FAILED: {error}", flush=True)
                    continue
                results["measurements"].append({"contender": name, "case_name": case, "repeat": repeat, **result})
                results["summary"] = summarize(results["measurements"])
                write_json(out, results)
                figures = ", ".join(f"{key} {times['cpu_us']:.1f} us" for key, times in result["times"].items())
                print(f"  {case:19} {name:17} {figures}", flush=True)
    write_json(out, results)
    print_table(results["summary"])
    print(f"written: {out}")
    return not results["failures"]


def summarize(measurements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per case, operation and contender: spread of the CPU time, and of its ratio to ours of the same repeat."""
    summary: dict[str, Any] = {}
    ours = {(row["case_name"], row["repeat"]): row for row in measurements if row["contender"] == OURS}
    for row in measurements:
        for operation in row["times"]:
            figures = summary.setdefault(row["case_name"], {}).setdefault(operation, {})
            if row["contender"] in figures:
                continue
            rows = [
                other
                for other in measurements
                if (other["contender"], other["case_name"]) == (row["contender"], row["case_name"])
            ]
            pairs = [(other, ours.get((other["case_name"], other["repeat"]))) for other in rows]
            ratios = [
                other["times"][operation]["cpu_us"] / mine["times"][operation]["cpu_us"]
                for other, mine in pairs
                if mine is not None
            ]
            figures[row["contender"]] = {
                "cpu_us": asdict(spread([other["times"][operation]["cpu_us"] for other in rows])),
                "wall_us": asdict(spread([other["times"][operation]["wall_us"] for other in rows])),
                "over_ours": asdict(spread(ratios)) if ratios else None,
                "versions": row["versions"],
            }
    return summary


def print_table(summary: dict[str, Any]) -> None:
    for case, operations in summary.items():
        for operation, figures in operations.items():
            print(f"\n{case}, {operation}\n  {'contender':17} {'us (CPU)':>26} {'over ours':>22}")
            for name, figure in sorted(figures.items(), key=lambda item: item[1]["cpu_us"]["median"]):
                ratio = format(Spread(**figure["over_ours"]), ".2f") if figure["over_ours"] else "-"
                print(f"  {name:17} {format(Spread(**figure['cpu_us']), '.1f'):>26} {ratio:>22}")
