"""`rl-training evaluate` and `rl-training predict`: what a trained policy does."""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.commands.messages import reports_errors, show
from rl_training.commands.options import (
    AllowCode,
    AllowEntryPoints,
    AsJson,
    Best,
    Debug,
    EvalSeed,
    Quiet,
    RunPath,
    whole_number,
)
from rl_training.core.counted import counted
from rl_training.errors import ConfigError
from rl_training.results.return_text import mean_and_std, return_text
from rl_training.runtime.report_timer import ReportTimer

if TYPE_CHECKING:
    from rl_training.experiment.saved_checkpoint import Checkpoint
    from rl_training.runtime.evaluation import EvalEpisode
    from rl_training.runtime.setup import RunOptions

_PROGRESS_SECONDS = 5.0

log = logging.getLogger("rl_training")


@reports_errors
def evaluate(
    path: RunPath,
    episodes: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(least=1),
            metavar="N",
            help="Episodes to play; eval_episodes of the config if not given.",
        ),
    ] = None,
    seed: EvalSeed = None,
    best: Best = False,
    allow_entry_points: AllowEntryPoints = False,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Play whole episodes with a trained policy, without exploration; without an environment, use held-out data."""
    from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
    from rl_training.runtime.setup import RunOptions

    found = find_checkpoint(path, "best" if best else "latest")
    options = RunOptions(allow_entry_points=allow_entry_points, allow_code=allow_code)
    if open_checkpoint(found, parts=()).config.env_id:
        _evaluate_in_env(found, episodes, seed, options, as_json=as_json)
    else:
        _evaluate_on_held_out(open_checkpoint(found), options, as_json=as_json)


def _evaluate_in_env(
    path: Path, episodes: int | None, seed: int | None, options: "RunOptions", *, as_json: bool
) -> None:
    from rl_training.core.seeding import Streams
    from rl_training.envs.hang_watch import hangs_end
    from rl_training.runtime.evaluation import evaluate_run
    from rl_training.runtime.saved_policy import env_factory_of, load_policy

    checkpoint, algorithm = load_policy(path, options)
    config = checkpoint.config
    seeds = Streams(config.seed if seed is None else seed).eval_seeds(episodes or config.eval_episodes)
    on_episode = _report_episodes(len(seeds))
    with hangs_end(config.worker_timeout):
        factory = env_factory_of(config, options)
        played = evaluate_run(config, factory, algorithm, seeds, step=checkpoint.step, on_episode=on_episode)
    if as_json:
        typer.echo(json.dumps(_evaluation_record(checkpoint, played)))
    else:
        show([("evaluation", describe_returns(played)), ("checkpoint", str(checkpoint.path))])


def _evaluation_record(checkpoint: "Checkpoint", episodes: "Sequence[EvalEpisode]") -> dict[str, Any]:
    returns = [episode.ret for episode in episodes]
    return {
        "checkpoint": str(checkpoint.path),
        "step": checkpoint.step,
        "mean": fmean(returns),
        "std": pstdev(returns),
        "min": min(returns),
        "max": max(returns),
        "episodes": [episode.record() for episode in episodes],
    }


def _evaluate_on_held_out(checkpoint: "Checkpoint", options: "RunOptions", *, as_json: bool) -> None:
    from rl_training.runtime.offline_evaluation import evaluate_checkpoint_offline

    metrics = evaluate_checkpoint_offline(checkpoint, options)
    if as_json:
        typer.echo(json.dumps({"checkpoint": str(checkpoint.path), "step": checkpoint.step, "held_out": metrics}))
    else:
        show([("held out", describe_held_out(metrics)), ("checkpoint", str(checkpoint.path))])


def describe_returns(episodes: "Sequence[EvalEpisode]") -> str:
    returns = [episode.ret for episode in episodes]
    low, high = (return_text(end, max(map(abs, returns))) for end in (min(returns), max(returns)))
    spread = f"{counted(len(returns), 'episode')}, min {low}, max {high}"
    successes = [episode.success for episode in episodes if episode.success is not None]
    spread += f", {fmean(successes):.0%} reached their goal" if successes else ""
    return f"{mean_and_std(returns)} ({spread})"


def describe_held_out(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def _report_episodes(total: int) -> "Callable[[EvalEpisode], None]":
    """Return a function that reports the progress of a long evaluation; a short one is silent."""
    returns: list[float] = []
    timer = ReportTimer(_PROGRESS_SECONDS)

    def on_episode(episode: "EvalEpisode") -> None:
        returns.append(episode.ret)
        if timer.is_due():
            so_far = (return_text(number) for number in (episode.ret, fmean(returns)))
            log.info("episode %d/%d: return %s, mean %s", len(returns), total, *so_far)

    return on_episode


@reports_errors
def predict(
    path: RunPath,
    obs: Annotated[
        str,
        typer.Option(
            metavar="JSON",
            help="One observation or a list of them; an object if it has parts. - reads JSON from stdin, one per line.",
        ),
    ],
    best: Best = False,
    allow_code: AllowCode = False,
    debug: Debug = False,
) -> None:
    """Print the greedy action for observations, as JSON."""
    from rl_training.api.algorithms import managed_class
    from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint

    found = find_checkpoint(path, "best" if best else "latest")
    agent = managed_class(open_checkpoint(found, parts=()).config.algo).load(found, allow_code=allow_code)
    for place, text in _observations(obs):
        try:
            actions = agent.predict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{place}: {error}") from error
        typer.echo(json.dumps(actions.tolist()))


def _observations(obs: str) -> Iterator[tuple[str, str]]:
    """Yield the place of each observation, for messages, and its text."""
    if obs != "-":
        yield "--obs", obs
        return
    for number, line in enumerate(sys.stdin, 1):
        if line.strip():
            yield f"line {number} of the input", line
