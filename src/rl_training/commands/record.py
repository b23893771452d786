"""`rl-training record`: record a dataset with trained policies or random actions."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.commands.messages import command_line, reports_errors, show
from rl_training.commands.options import AllowCode, Debug, Quiet, whole_number
from rl_training.core.counted import counted
from rl_training.core.import_path import search_current_folder
from rl_training.errors import ConfigError
from rl_training.hparams.fields import expand_home
from rl_training.runtime.report_timer import ReportTimer

if TYPE_CHECKING:
    from gymnasium import Space

    from rl_training.envs.factory import EnvFactory
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.recording import Player, Recorder
    from rl_training.runtime.setup import RunOptions

_PROGRESS_SECONDS = 2.0

log = logging.getLogger("rl_training")


@reports_errors
def record(
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            parser=expand_home,
            metavar="DATASET",
            help="A .npz, .hdf5 or .parquet file, or a Minari folder.",
        ),
    ],
    run: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            parser=expand_home,
            metavar="PATH",
            help="A run folder or checkpoint whose policy acts; repeatable.",
        ),
    ] = None,
    share: Annotated[
        list[float] | None,
        typer.Option(metavar="X", help="Share of each --run, in their order; equal shares if not given."),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Act at random, in --env.")] = False,
    env: Annotated[str | None, typer.Option(metavar="ID", help="With --random: the environment.")] = None,
    steps: Annotated[
        int | None, typer.Option(parser=whole_number(least=1), metavar="N", help="Steps to record.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(parser=whole_number(least=1), metavar="N", help="Whole episodes to record.")
    ] = None,
    seed: Annotated[
        int, typer.Option(parser=whole_number(least=0), metavar="S", help="Seed that determines the episodes.")
    ] = 0,
    noise: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="X",
            help="Deviation of the noise on actions in [-1, 1]; for choices, probability of a random one.",
        ),
    ] = 0.0,
    explore: Annotated[bool, typer.Option("--explore", help="Explore as in training, not greedily.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Use the best checkpoints of the runs, not the newest.")] = False,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Record a dataset with trained policies or random actions. After an interruption the same command continues."""
    runs = run or []
    if random == bool(runs):
        raise ConfigError("give --run, once or more, or --random with --env")
    if random and (env is None or explore or noise or best or share):
        raise ConfigError("--random needs --env, and takes no --explore, --noise, --share or --best")
    if env is not None and not random:
        raise ConfigError("--env goes with --random: a run has its own environment")
    if share is not None and len(share) != len(runs):
        raise ConfigError(f"give one --share per --run: there are {len(share)} for {len(runs)}")
    from rl_training.envs.factory import make_env_factory
    from rl_training.envs.hang_watch import hangs_end
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.recording import Plan, Recorder
    from rl_training.runtime.saved_policy import env_factory_of
    from rl_training.runtime.setup import RunOptions

    with hangs_end(TrainConfig.model_fields["worker_timeout"].default):
        if env is not None:
            env_id, env_kwargs = env, dict[str, Any]()
            search_current_folder(env_id)
            factory = make_env_factory(env_id, env_kwargs)
            players = [_random_player(factory)]
        else:
            options = RunOptions(allow_code=allow_code)
            loaded = [_load_player(path, options, best=best, explore=explore) for path in runs]
            config = _with_common_env([config for config, _ in loaded])
            env_id, env_kwargs = config.env_id, config.env_kwargs
            factory = env_factory_of(config, options)
            players = _with_noise_and_shares(
                [player for _, player in loaded], noise, share or [1.0] * len(runs), factory
            )
        details = {"env_kwargs": env_kwargs, "noise": noise, "explore": explore}
        plan = Plan(players=players, seed=seed, steps=steps, episodes=episodes, env_id=env_id, details=details)
        _record(Recorder(plan, factory, out))


def _random_player(factory: "EnvFactory") -> "Player":
    from rl_training.runtime.policies import random_policy
    from rl_training.runtime.recording import Player

    return Player("random", random_policy(_action_space(factory)))


def _with_noise_and_shares(
    players: "Sequence[Player]", noise: float, shares: Sequence[float], factory: "EnvFactory"
) -> "list[Player]":
    from rl_training.runtime.policies import noisy_policy

    space = _action_space(factory)
    return [
        replace(player, policy=noisy_policy(player.policy, noise, space), share=share)
        for player, share in zip(players, shares, strict=True)
    ]


def _action_space(factory: "EnvFactory") -> "Space[Any]":
    from rl_training.envs.vector import SyncEnvs

    with SyncEnvs(factory) as envs:
        return envs.action_space


def _load_player(path: Path, options: "RunOptions", *, best: bool, explore: bool) -> "tuple[TrainConfig, Player]":
    """Load the config and the policy of a run."""
    from rl_training.core.seeding import RepeatableStreams
    from rl_training.runtime.policies import trained_policy
    from rl_training.runtime.recording import Player
    from rl_training.runtime.saved_policy import load_policy

    streams = RepeatableStreams(0)  # each episode has its own seed
    checkpoint, algorithm = load_policy(path, options, pointer="best" if best else "latest", streams=streams)
    policy = trained_policy(algorithm, streams, step=checkpoint.step, explore=explore)
    return checkpoint.config, Player(str(checkpoint.path.resolve()), policy)


def _with_common_env(configs: "Sequence[TrainConfig]") -> "TrainConfig":
    """Return one of the configs; raise `ConfigError` unless all of them have the same environment."""
    first = configs[0]
    if not first.env_id:
        raise ConfigError("the run has no environment to record in: its env_id is empty")
    for other in configs[1:]:
        if any(
            getattr(other, name) != getattr(first, name) for name in ("env_id", "env_factory", "env_kwargs", "wrappers")
        ):
            raise ConfigError(
                f"the runs must have the same environment, found {first.env_id} {first.env_kwargs} "
                f"and {other.env_id} {other.env_kwargs}"
            )
    return first


def _record(recorder: "Recorder") -> None:
    from rl_training.runtime.signals import EXIT_INTERRUPTED, first_signal_handled

    received: list[int] = []
    started = time.monotonic()
    with first_signal_handled(received.append):
        complete = recorder.run(should_stop=lambda: bool(received), on_episode=_report_episodes(recorder))
    rows = [("recorded", f"{counted(recorder.rows, 'step')} in {counted(recorder.episodes, 'episode')}")]
    if recorder.returns:
        spread = f"min {min(recorder.returns):.1f}, max {max(recorder.returns):.1f}"
        episodes = counted(len(recorder.returns), "episode")
        rows.append(("returns", f"{fmean(recorder.returns):.1f} ({episodes}, {spread})"))
    rows.append(("wall time", f"{time.monotonic() - started:.1f} s"))
    if complete:
        rows += [("dataset", str(recorder.out)), ("look at it", command_line("dataset", "inspect", recorder.out))]
    else:
        rows.append(("continue", "the same command again"))
    show(rows)
    if not complete:
        raise typer.Exit(EXIT_INTERRUPTED)


def _report_episodes(recorder: "Recorder") -> Callable[[], None]:
    """Return a function that reports the progress of a long recording."""
    unit = "steps" if recorder.plan.steps is not None else "episodes"
    timer = ReportTimer(_PROGRESS_SECONDS)

    def on_episode() -> None:
        if timer.is_due():
            mean = fmean(recorder.returns[-100:])
            log.info("%s/%s %s, mean return %.1f", f"{recorder.amount:,}", f"{recorder.total:,}", unit, mean)

    return on_episode
