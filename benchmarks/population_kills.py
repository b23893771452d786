"""Populations that are killed: one ended by SIGKILL at random moments loses no member and ends as an unbroken one.

    python -m benchmarks population_kills --kills 50
    python -m benchmarks population_kills --cases host,device --kills 20

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
from rl_training.experiment.population import PopulationConfig, PopulationDir, Way
from rl_training.launching.populations import train_population
from rl_training.runtime.setup import RunOptions

MEMBERS = 4
STEPS = 100
SMALL: dict[str, Any] = {"batch_size": 8, "hidden_sizes": [16]}
SMALL_REPLAY: dict[str, Any] = {**SMALL, "buffer_capacity": 60, "learning_starts": 10}
CASES: dict[str, tuple[Way, dict[str, Any]]] = {  # how the members run, and their settings
    "offline": (
        "stacked",
        {
            "algo": "iql",
            "env_id": "rl_training/Identity-v0",
            "env_kwargs": {"actions": "box"},
            "algo_kwargs": {"dataset_kind": "random", "dataset_size": 200, **SMALL},
        },
    ),
    "host": ("stacked", {"algo": "sac", "env_id": "Pendulum-v1", "max_episode_steps": 30, "algo_kwargs": SMALL_REPLAY}),
    "device": (
        "stacked",
        {
            "algo": "ppo",
            "env_id": "tensor/CartPole-v1",
            "execution_backend": "tensor",
            "num_envs": 2,
            "algo_kwargs": {"num_steps": 5, "minibatch_size": 5, "update_epochs": 2, "hidden_sizes": [16]},
        },
    ),
    "looped": ("looped", {"algo": "dqn", "env_id": "CartPole-v1", "algo_kwargs": SMALL_REPLAY}),
}


def population_in(folder: Path, case: str) -> PopulationConfig:
    run, settings = CASES[case]
    base = TrainConfig(
        **{
            "total_timesteps": STEPS,
            "device": "cpu",
            "acceleration": "eager",
            "log_interval": 10,
            "eval_interval": 50,
            "checkpoint_interval": 10,
            "eval_episodes": 2,
            "tensorboard": False,
            "output_dir": folder,
            **settings,
        }
    )
    vary = {"algo_kwargs.learning_rate": (1e-3, 1e-2)}
    return PopulationConfig(base=base, seeds=tuple(range(MEMBERS // 2)), vary=vary, run=run)


def train(folder: Path, case: str) -> None:
    train_population(population_in(folder, case), RunOptions(show_progress=False))


def killed_after(folder: Path, case: str, seconds: float) -> bool:
    """Train in a process that is killed after so many seconds; return whether it was, and had not ended before."""
    process = multiprocessing.get_context("fork").Process(target=train, args=(folder, case))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def kill_populations(folder: Path, case: str, kills: int, rng: random.Random) -> dict[str, Any]:
    """Train populations of which processes are killed; return what was lost, compared with an undisturbed one."""
    whole, disturbed = folder / "whole", folder / "disturbed"
    train(whole, case)  # imports everything
    started = time.perf_counter()
    killed_after(folder / "timed", case, 600.0)
    duration, number = time.perf_counter() - started, 0
    steps: list[int] = []
    while len(steps) < kills:
        current = disturbed / str(number)
        if killed_after(current, case, rng.uniform(0.0, duration)):
            steps.append(common_step(current, case))
            duration *= 1.3 if steps[-2:-1] == steps[-1:] else 1.0  # no progress: the machine is busier now
            print(f"{case}, kill {len(steps)}: population {number} is at step {steps[-1]}", flush=True)
        else:  # it has ended: the next one
            number, duration = number + 1, 0.8 * duration
    train(disturbed / str(number), case)
    return found(disturbed, whole, case, number + 1) | {"kills": kills, "steps_at_kills": steps}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=command_line.parse_names, metavar="A,B", help=f"of {', '.join(CASES)}")
    parser.add_argument("--kills", type=int, default=50, help="of each case (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    rng = random.Random(args.seed)
    session = Session(command_line.result_folder(args) / "population_kills.jsonl", describe_run())
    for case in command_line.check_names(args.cases, list(CASES), "case"):
        with tempfile.TemporaryDirectory() as folder:
            session.add({"case": case, **kill_populations(Path(folder), case, args.kills, rng)})
        print(session.lines[-1], flush=True)
    return int(any(line["lost_members"] or line["differences"] for line in session.lines))


def common_step(folder: Path, case: str) -> int:
    """Return the last step that all members of a stack have, or the largest one if they run in turn; 0 at first."""
    population = PopulationDir(population_in(folder, case).folder())
    return max((state.step for state in population.states().values()), default=0)


def found(disturbed: Path, whole: Path, case: str, count: int) -> dict[str, Any]:
    """Compare the members of the populations that were killed with those of the whole one."""
    expected = PopulationDir(population_in(whole, case).folder())
    lost, different = [], []
    for number in range(count):
        population = PopulationDir(population_in(disturbed / str(number), case).folder())
        lost += [f"{number}/{name}" for name, state in population.states().items() if state.state != "done"]
        for ours, theirs in zip(population.members(), expected.members(), strict=True):
            different += [f"{number}/{ours.name}: {text}" for text in differences(ours, theirs)]
    return {"populations": count, "members": MEMBERS, "lost_members": lost, "differences": different}
