"""The part of `train` and `resume` that is about populations: --stacked and --vary."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rl_training.commands.messages import EXIT_USER_ERROR, show
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import parse_yaml
from rl_training.experiment.population import PopulationConfig
from rl_training.results.return_text import return_text

if TYPE_CHECKING:
    from rl_training.launching.populations import PopulationResult
    from rl_training.runtime.setup import RunOptions


def parse_vary(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Read settings and their values, such as "algo_kwargs.gamma=0.98,0.99"."""
    vary: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, separator, values = text.partition("=")
        if not separator or not name or not values:
            raise ConfigError(f"--vary is given as KEY=V1,V2, such as algo_kwargs.gamma=0.98,0.99, got {text!r}")
        if name in vary:
            raise ConfigError(f"--vary {name} is given twice: list all its values once")
        vary[name] = tuple(parse_yaml(f"[{values}]", f"--vary {text}"))
    return vary


def train_members(
    base: TrainConfig, seeds: str, vary: Sequence[str], *, stacked: bool | None, options: "RunOptions"
) -> None:
    """Train a population. `stacked`: None to choose by the device and the algorithm."""
    from rl_training.core.seeding import parse_seeds
    from rl_training.launching.populations import train_population

    config = PopulationConfig(
        base=base,
        seeds=tuple(parse_seeds(seeds)),
        vary=parse_vary(vary),
        run="auto" if stacked is None else "stacked" if stacked else "looped",
    )
    _show_population(train_population(config, options))


def resume_members(path: Path, options: "RunOptions") -> None:
    from rl_training.launching.populations import resume_population

    _show_population(resume_population(path.absolute(), options))


def _show_population(result: "PopulationResult") -> None:
    """Show how each member ended; the exit code is that of an error only if no member finished."""
    from rl_training.runtime.signals import EXIT_INTERRUPTED

    rows = []
    for name, state in result.states.items():
        score = f"{return_text(result.scores[name])}, " if name in result.scores else ""
        reason = f": {state.reason}" if state.reason else ""
        rows.append((f"member {name}", f"{score}{state.state} at step {state.step:,}{reason}"))
    if result.summary is not None:
        rows.append(("all members", str(result.summary)))
    rows.append(("folder", str(result.folder)))
    if result.interrupted:
        rows.append(("continue", "the same command again, or resume with this folder"))
    show(rows)
    if result.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not any(state.state == "done" for state in result.states.values()):
        raise typer.Exit(EXIT_USER_ERROR)
