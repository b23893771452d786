"""`rl-training probe`: find the broken link when an agent does not learn."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.commands.messages import EXIT_BUG, reports_errors
from rl_training.commands.options import AsJson, Debug, Overrides
from rl_training.core.printable_text import printable_lines
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import build_config, load_config

if TYPE_CHECKING:
    from rl_training.probing.findings import Finding
    from rl_training.probing.ladder import Climb

EXIT_FOUND = EXIT_BUG
# What stands in for the half that is not probed: an algorithm that takes all kinds of actions, and any environment.
_PLACEHOLDERS = {"algo": "ppo", "env_id": "rl_training/Chain-v0", "total_timesteps": 1}


@reports_errors
def probe(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="YAML file of the run that does not learn.")
    ] = None,
    algo: Annotated[str | None, typer.Option(metavar="NAME", help="Algorithm; climbs the ladder.")] = None,
    env: Annotated[
        str | None, typer.Option(metavar="ID", help="Environment to check; module:ID imports a module of yours first.")
    ] = None,
    settings: Overrides = None,
    ladder: Annotated[bool, typer.Option(help="Train the algorithm on tiny problems with known answers.")] = True,
    seconds: Annotated[float, typer.Option(metavar="S", help="Limit of the checks of the environment.")] = 20.0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check an environment for faults that keep agents from learning, and train the algorithm on tiny problems.

    Give a config FILE for both, --env for the environment alone, or --algo for the ladder alone. Exit code 1 means that
    something must be fixed.
    """
    flags = [f"{name}={json.dumps(value)}" for name, value in (("algo", algo), ("env_id", env)) if value is not None]
    if file is None and not flags:
        raise ConfigError("give a config FILE, or --env for an environment, or --algo for an algorithm, or both")
    overrides = [*(settings or []), *flags]
    config = load_config(file, overrides) if file is not None else build_config(_PLACEHOLDERS, overrides)
    show = _show_json if as_json else _show_text
    broken, checked = False, file is not None or env is not None
    if checked and (config.env_id or config.env_factory):
        findings = _check(config, seconds)
        show("env", config.env_id, [_as_line(finding) for finding in findings])
        broken = any(finding.verdict == "fix" for finding in findings)
    if ladder and (file is not None or algo is not None):
        for climbed in _climb(config, same_actions=checked and not broken):
            show("ladder", climbed.rung.env_id, [_as_rung(climbed)])
            broken = broken or not climbed.solved
    if broken:
        raise typer.Exit(EXIT_FOUND)


def _check(config: TrainConfig, seconds: float) -> "list[Finding]":
    from rl_training.probing.probe import probe_env
    from rl_training.runtime.setup import RunOptions

    factory = RunOptions().factory_for(config, check=False)
    assert factory is not None  # the config names an environment
    return probe_env(factory, seconds=seconds)


def _climb(config: TrainConfig, *, same_actions: bool) -> "Iterator[Climb]":
    """Climb the rungs with the actions of the environment, or with those that the algorithm takes."""
    from rl_training.core.spaces import action_kind
    from rl_training.envs.slot import close_env
    from rl_training.probing.ladder import climb
    from rl_training.runtime.setup import RunOptions

    factory = RunOptions().factory_for(config, check=False) if same_actions else None
    if factory is None:
        return climb(config)
    env = factory()
    close_env(env)
    return climb(config, action_kind(env.action_space))


def _as_line(finding: "Finding") -> dict[str, Any]:
    return {"verdict": finding.verdict, "name": finding.name, "text": finding.text}


def _as_rung(climbed: "Climb") -> dict[str, Any]:
    rung = climbed.rung
    reached = f"mean return {climbed.mean_return:.2f} (best {rung.best:g}, enough {rung.enough:g})"
    text = reached if climbed.solved else f"{reached}: {rung.link}"
    return {"verdict": "ok" if climbed.solved else "fix", "name": rung.actions, "text": text}


def _show_text(part: str, subject: str, lines: list[dict[str, Any]]) -> None:
    for line in lines or [{"verdict": "ok", "name": "all checks", "text": f"nothing suspicious in {subject}"}]:
        name = subject.rpartition("/")[2] if part == "ladder" else line["name"]
        typer.echo(printable_lines(f"{line['verdict']:<5} {name:<26} {line['text']}"))


def _show_json(part: str, subject: str, lines: list[dict[str, Any]]) -> None:
    typer.echo(json.dumps({"part": part, "subject": subject, "findings": lines}))
