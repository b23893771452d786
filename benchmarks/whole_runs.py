"""Updates per second of whole training runs on a GPU: acting, environment steps, sampling, updates and logs.

    python -m benchmarks whole_runs                        # SAC on HalfCheetah-v5 and DQN on CartPole-v1, on CUDA
    python -m benchmarks whole_runs dqn --device cpu --updates 2000

One update per environment step. `updates_per_s` is the rate after the first thousand updates, `ready_s` the time until
then; `alone_per_s` is the rate of sampling and updating at the end of the run, without environments.
"""

import argparse
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks import command_line
from benchmarks.gpu import describe_device
from benchmarks.machine import describe_run
from benchmarks.results import RESULTS, Session
from benchmarks.speed_tasks import ACTOR_CRITIC, Q_LEARNING
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import RunOptions, train

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("CartPole-v1", Q_LEARNING | {"learning_starts": 1_000}),
    "sac": ("HalfCheetah-v5", ACTOR_CRITIC | {"learning_starts": 1_000}),
}
WARM_UP, ALONE = 1_000, 1_000  # updates


class Rates(Callback):
    """Measures the run between two steps, and updates alone after the second."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last, self.found = first, last, dict[str, float]()
        self._began = time.perf_counter()

    def on_step(self, run: Run) -> None:
        if run.step in (self.first, self.last):
            _wait(run)
            now = time.perf_counter()
            if run.step == self.first:
                self.found["ready_s"], self._began = now - self._began, now
            else:
                self.found["updates_per_s"] = (self.last - self.first) / (now - self._began)
                self.found["alone_per_s"] = _alone(run)


def _alone(run: Run) -> float:
    memory: Any = run.memory
    hparams: Any = run.config.hparams
    sample = memory.sampler(hparams.batch_size)
    for timed in (False, True):  # the first round captures the update
        _wait(run)
        started = time.perf_counter()
        for _ in range(ALONE if timed else 10):
            run.algorithm.update(sample())
        _wait(run)
    return ALONE / (time.perf_counter() - started)


def _wait(run: Run) -> None:
    if run.config.device.startswith("cuda"):
        torch.cuda.synchronize()


def measure(algo: str, *, device: str, acceleration: str, updates: int, folder: Path) -> dict[str, float]:
    """Train once and return the rates."""
    env_id, hparams = CASES[algo]
    first = hparams["learning_starts"] + min(WARM_UP, updates // 2)
    last = hparams["learning_starts"] + updates
    rates = Rates(first, last)
    config = TrainConfig(
        algo=algo,
        env_id=env_id,
        total_timesteps=last + 1,
        device=device,
        acceleration=acceleration,
        log_interval=1_000,
        eval_episodes=1,
        output_dir=folder,
        algo_kwargs=hparams,
    )
    train(config, RunOptions(show_progress=False, callbacks=[rates]))
    return rates.found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("algorithms", nargs="*", metavar="ALGO", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--acceleration", default="auto")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    algorithms = command_line.check_names(args.algorithms or list(CASES), list(CASES), "algorithm")
    session = Session(
        (args.out or RESULTS) / "whole_runs.jsonl",
        {**describe_run(), **describe_device(args.device), "updates": args.updates, "acceleration": args.acceleration},
    )
    failures = 0
    for repeat in range(args.repeats):
        for algo in algorithms:
            head = {"algo": algo, "env_id": CASES[algo][0], "hparams": CASES[algo][1], "repeat": repeat}
            try:
                with tempfile.TemporaryDirectory() as folder:
                    found = measure(
                        algo,
                        device=args.device,
                        acceleration=args.acceleration,
                        updates=args.updates,
                        folder=Path(folder),
                    )
                session.add({**head, **found})
            except Exception as error:  # one case that fails does not end the others
                failures += 1
                traceback.print_exc()
                session.add({**head, "error": f"{type(error).__name__}: {error}"})
            print({name: session.lines[-1].get(name) for name in ("algo", "updates_per_s", "alone_per_s", "ready_s")})
    return int(failures > 0)
