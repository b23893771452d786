"""Populations that are killed: a stack ended by SIGKILL at random moments loses no member and ends as an unbroken one.

    python -m benchmarks population_kills --kills 50

Each process is killed at a random moment of the time that a whole population takes, and the same call is repeated. At
the end every member must equal, bit for bit, that of a population that was never killed: checkpoints, logs and result.
"""

import argparse
import multiprocessing
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.exactness import differences
from benchmarks.machine import describe_run
from benchmarks.results import Session
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.population import PopulationConfig, PopulationDir
from rl_training.launching.populations import train_population
from rl_training.runtime.setup import RunOptions

MEMBERS = 4
UPDATES = 100


def population_in(folder: Path) -> PopulationConfig:
    base = TrainConfig(
        algo="iql",
        env_id="rl_training/Identity-v0",
        env_kwargs={"actions": "box"},
        total_timesteps=UPDATES,
        device="cpu",
        acceleration="eager",
        log_interval=10,
        eval_interval=50,
        checkpoint_interval=10,
        eval_episodes=2,
        tensorboard=False,
        output_dir=folder,
        algo_kwargs={"dataset_kind": "random", "dataset_size": 200, "batch_size": 8, "hidden_sizes": [16]},
    )
    vary = {"algo_kwargs.expectile": (0.6, 0.9)}
    return PopulationConfig(base=base, seeds=tuple(range(MEMBERS // 2)), vary=vary, run="stacked")


def train(folder: Path) -> None:
    train_population(population_in(folder), RunOptions(show_progress=False))


def killed_after(folder: Path, seconds: float) -> bool:
    """Train in a process that is killed after so many seconds; return whether it was, and had not ended before."""
    process = multiprocessing.get_context("fork").Process(target=train, args=(folder,))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=50, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    rng, kills, steps = random.Random(args.seed), 0, []
    session = Session(command_line.result_folder(args) / "population_kills.jsonl", describe_run())
    with tempfile.TemporaryDirectory() as name:
        whole, disturbed = Path(name) / "whole", Path(name) / "disturbed"
        train(whole)  # imports everything
        started = time.perf_counter()
        killed_after(Path(name) / "timed", 600.0)
        duration, number = time.perf_counter() - started, 0
        while kills < args.kills:
            folder = disturbed / str(number)
            if killed_after(folder, rng.uniform(0.0, duration)):
                kills += 1
                steps.append(common_step(folder))
                duration *= 1.3 if steps[-2:-1] == steps[-1:] else 1.0  # no progress: the machine is busier now
                print(f"kill {kills}: population {number} is at step {steps[-1]}", flush=True)
            else:  # it has ended: the next one
                number, duration = number + 1, 0.8 * duration
        train(disturbed / str(number))
        session.add(found(disturbed, whole, number + 1) | {"kills": kills, "steps_at_kills": steps})
    line = session.lines[-1]
    print(line, flush=True)
    return int(bool(line["lost_members"] or line["differences"]))


def common_step(folder: Path) -> int:
    """Return the last step that all members have; 0 before the first checkpoint."""
    population = PopulationDir(population_in(folder).folder())
    return max((state.step for state in population.states().values()), default=0)


def found(disturbed: Path, whole: Path, count: int) -> dict[str, Any]:
    """Compare the members of the populations that were killed with those of the whole one."""
    expected = PopulationDir(population_in(whole).folder())
    lost, different = [], []
    for number in range(count):
        population = PopulationDir(population_in(disturbed / str(number)).folder())
        lost += [f"{number}/{name}" for name, state in population.states().items() if state.state != "done"]
        for ours, theirs in zip(population.members(), expected.members(), strict=True):
            different += [f"{number}/{ours.name}: {text}" for text in differences(ours, theirs)]
    return {"populations": count, "members": MEMBERS, "lost_members": lost, "differences": different}
