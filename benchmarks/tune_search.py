"""The tuner starts from a learning rate of 0.1 and must find a config that is as good as one with a good value.

The reference is the library's config of the task; both have the same steps. It runs on the fresh seeds of the study,
so that both are scored on the same seeds. The winner must reach the lower end of the reference's interval.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.machine import describe_run
from benchmarks.results import Line, Session
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config
from rl_training.launching.pool import LaunchOptions
from rl_training.launching.seed_runs import run_seeds
from rl_training.results.statistics import summarize
from rl_training.runtime.trainer import RunOptions
from rl_training.studies.study_files import BEST
from rl_training.studies.tune_plan import make_plan, write_plan
from rl_training.studies.tuning import FIRST_FRESH_SEED, FRESH_SEEDS, run_study

BAD_LEARNING_RATE = 0.1
EVALUATIONS = 8  # during a run, for the pruner


def acrobot() -> TrainConfig:
    """Return DQN's defaults on Acrobot-v1, which has no config of its own."""
    return TrainConfig(algo="dqn", env_id="Acrobot-v1", total_timesteps=1, eval_episodes=20)


def cartpole() -> TrainConfig:
    return load_config("dqn/cartpole")


TASKS = {"acrobot": acrobot, "cartpole": cartpole}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--steps", type=int, default=10_000, help="of each run (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=40, help="of the study (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=2, help="of each trial (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the runs are kept, so that the same command continues")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    session = Session(command_line.result_folder(args) / "tune_search.jsonl", describe_run())
    with tempfile.TemporaryDirectory() as name:
        for task in command_line.check_names(args.tasks, list(TASKS), "task"):
            session.add(search(task, (args.folder or Path(name)) / task, args))
            print(session.lines[-1], flush=True)
    return 0 if all(map(is_as_good, session.lines)) else 1


def search(task: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Score the reference on the fresh seeds, then tune from the bad start; return the figures of both."""
    reference = TASKS[task]().updated(
        total_timesteps=args.steps,
        eval_interval=args.steps // EVALUATIONS,
        acceleration="eager",  # each trial would compile its own networks
        tensorboard=False,
        output_dir=folder / "reference",
    )
    fresh = range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + FRESH_SEEDS)
    known = run_seeds(reference, fresh, jobs=args.jobs, options=RunOptions(show_progress=False))
    bad = reference.updated(algo_kwargs={**reference.algo_kwargs, "learning_rate": BAD_LEARNING_RATE})
    plan, study = make_plan(bad, seeds=args.seeds), folder / "study"
    write_plan(study, plan)
    outcome = run_study(
        study, plan, LaunchOptions(root=study.absolute(), jobs=args.jobs, retries=1), trials=args.trials
    )
    if outcome.verdict is None or known.summary is None:
        sys.exit(f"interrupted; the same command with --folder {folder.parent} continues")
    winner = load_config(study / BEST)
    searched = [dimension.name.removeprefix("algo_kwargs.") for dimension in plan.space]
    best, given = outcome.verdict.best, outcome.verdict.given
    return {
        "task": task,
        "steps": args.steps,
        "trials": outcome.trials,
        "seeds": args.seeds,
        "winner": best.number,
        "winner_settings": {name: winner.algo_kwargs[name] for name in searched},
        "iqm": best.summary.iqm,
        "interval": list(best.summary.interval),
        "reference_iqm": known.summary.iqm,
        "reference_interval": list(known.summary.interval),
        "given_iqm": summarize(given.scores).iqm if given.scores else None,
        "clearly_better_than_given": outcome.verdict.clear,
    }


def is_as_good(line: Line) -> bool:
    return bool(line["iqm"] >= line["reference_interval"][0])
