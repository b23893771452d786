"""Populations on a GPU: updates per second of all members together, and of single runs one after the other.

    python -m benchmarks populations iql --members 1,32 --updates 20000 --singles 8 --precisions highest,high
    python -m benchmarks populations dqn sac --members 1,32 --singles 0

Everything is trained by `train_population` with its logs, evaluations and checkpoints. Members of `iql` and `bc` learn
from random transitions with the sizes of HalfCheetah; those of `dqn` and `sac` on tensor environments, with one update
per environment step. `member_updates_per_s` is the rate between the first and the last record of metrics, evaluations
and checkpoints in between included; `median_per_s` the median rate between two records, most of which have none.
`ready_s` is the time until the first record, compilation included; `wall_s` that of the whole call.
"""

import argparse
import tempfile
import time
import traceback
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import command_line
from benchmarks.gpu import describe_device
from benchmarks.machine import describe_run
from benchmarks.results import RESULTS, Session
from benchmarks.speed import write_random_rows
from benchmarks.speed_tasks import ACTOR_CRITIC, Q_LEARNING
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.population import PopulationConfig
from rl_training.launching.populations import train_population
from rl_training.runtime.setup import RunOptions

ALGORITHMS = ("iql", "bc", "dqn", "sac")
ONLINE: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("tensor/CartPole-v1", Q_LEARNING | {"learning_starts": 512}),
    "sac": ("tensor/Pendulum-v1", ACTOR_CRITIC | {"learning_starts": 512}),
}
ROWS = 100_000


def config_of(algo: str, folder: Path, *, updates: int, device: str, precision: str) -> TrainConfig:
    """Return the settings of a run: on random transitions without an environment, or on a tensor environment."""
    if algo in ONLINE:
        env_id, hparams = ONLINE[algo]
        return TrainConfig(
            algo=algo,
            env_id=env_id,
            execution_backend="tensor",
            total_timesteps=updates + hparams["learning_starts"],
            device=device,
            matmul_precision=precision,
            output_dir=folder / "runs",
            log_interval=max(1, updates // 20),
            checkpoint_interval=max(1, updates // 2),
            eval_episodes=1,
            algo_kwargs=hparams,
        )
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
    records = [record for record in records if record["gradient_step"] > 0]
    first, last = records[0], records[-1]
    rates = [
        members * (after["gradient_step"] - before["gradient_step"]) / (after["wall_s"] - before["wall_s"])
        for before, after in [(first, last), *pairwise(records)]
        if after["wall_s"] > before["wall_s"]
    ]
    return {
        "wall_s": wall_s,
        "ready_s": first["wall_s"],
        "member_updates_per_s": rates[0],
        "median_per_s": median(rates[1:]),
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
