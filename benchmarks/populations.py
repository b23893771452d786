"""Populations on a GPU: updates per second of all members together, and of single runs one after the other.

    python -m benchmarks populations iql --members 1,32 --updates 20000 --singles 8 --precisions highest,high

Everything is trained by `train_population` with its logs, evaluations on held-out data and checkpoints. Members learn
from random transitions with the sizes of HalfCheetah. `member_updates_per_s` is the rate between the first and the last
record of metrics; `ready_s` the time until the first one, compilation included; `wall_s` is that of the whole call.
"""

import argparse
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.gpu import describe_device
from benchmarks.machine import describe_run
from benchmarks.results import RESULTS, Session
from benchmarks.speed import write_random_rows
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.population import PopulationConfig
from rl_training.launching.populations import train_population
from rl_training.runtime.setup import RunOptions

ALGORITHMS = ("iql", "bc")
ROWS = 100_000


def config_of(algo: str, folder: Path, *, updates: int, device: str, precision: str) -> TrainConfig:
    """Return the settings of a run on random transitions without an environment."""
    file = folder / "random.npz"
    if not file.is_file():
        write_random_rows(file, ROWS)
    return TrainConfig(
        algo=algo,
        total_timesteps=updates,
        device=device,
        matmul_precision=precision,
        output_dir=folder / "runs",
        log_interval=max(1, updates // 20),
        eval_interval=max(1, updates // 2),
        checkpoint_interval=max(1, updates // 2),
        algo_kwargs={"dataset_path": str(file), "held_out": 0.1},
    )


def measure(base: TrainConfig, seeds: Sequence[int], run: str) -> dict[str, Any]:
    """Train a population and return its times."""
    config = PopulationConfig(base=base, seeds=tuple(seeds), run=run)  # type: ignore[arg-type]
    started = time.perf_counter()
    result = train_population(config, RunOptions(show_progress=False))
    wall_s = time.perf_counter() - started
    members = len(seeds) if run == "stacked" else 1  # that share the time
    records = [r for r in read_json_lines(result.folder / "members" / "000" / "metrics.jsonl") if "steps_per_s" in r]
    first, last = records[0], records[-1]
    rate = members * (last["step"] - first["step"]) / (last["wall_s"] - first["wall_s"])
    return {
        "wall_s": wall_s,
        "ready_s": first["wall_s"],
        "member_updates_per_s": rate,
        "member_updates_per_s_of_call": len(seeds) * base.total_timesteps / wall_s,
        "ended": sorted({state.state for state in result.states.values()}),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("algorithms", nargs="*", metavar="ALGO", help=f"of {', '.join(ALGORITHMS)} (default: iql)")
    parser.add_argument("--members", default="1,32", help="sizes of the stacks (default: 1,32)")
    parser.add_argument("--singles", type=int, default=32, help="single runs, one after the other; 0: none")
    parser.add_argument("--updates", type=int, default=20_000, help="of each member")
    parser.add_argument("--precisions", default="highest", help="values of matmul_precision (default: highest)")
    parser.add_argument("--device", default="cuda")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    algorithms = command_line.check_names(args.algorithms or ["iql"], ALGORITHMS, "algorithm")
    sizes = [int(size) for size in command_line.parse_names(args.members)]
    runs = [(size, "stacked") for size in sizes] + ([(args.singles, "looped")] if args.singles else [])
    cases = [(*case, precision) for precision in command_line.parse_names(args.precisions) for case in runs]
    facts = {**describe_run(), **describe_device(args.device), "updates": args.updates, "rows": ROWS}
    session, failures = Session((args.out or RESULTS) / "populations.jsonl", facts), 0
    for algo in algorithms:
        for members, how, precision in cases:
            head = {"algo": algo, "members": members, "run": how, "matmul_precision": precision}
            print(f"{algo}, {members} members, {how}, {precision} ...", flush=True)
            try:
                with tempfile.TemporaryDirectory() as folder:
                    base = config_of(algo, Path(folder), updates=args.updates, device=args.device, precision=precision)
                    session.add({**head, **measure(base, range(members), how)})
            except Exception as error:  # one case that fails does not end the others
                failures += 1
                traceback.print_exc()
                session.add({**head, "error": f"{type(error).__name__}: {error}"})
            print(session.lines[-1], flush=True)
    return int(failures > 0)
