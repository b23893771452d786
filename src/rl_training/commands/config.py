"""`rl-training list` and `rl-training config show | schema`: the algorithms and their settings."""

import json
from typing import Annotated

import typer

from rl_training.commands.messages import reports_errors, show
from rl_training.commands.options import AsJson, Debug, Overrides
from rl_training.experiment.config import load_config, packaged_configs
from rl_training.experiment.registry import AlgorithmSpec, registry

config_app = typer.Typer(help="Show settings.", no_args_is_help=True)


@reports_errors
def list_algorithms(as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the algorithms and the configs that come with the package."""
    rows = [_algorithm_row(spec) for spec in registry().values()]
    configs = [f"configs/{name}" for name in packaged_configs()]
    if as_json:
        typer.echo(json.dumps({"algorithms": rows, "configs": configs}))
        return
    titles = ["algo", "class", "summary", "actions"]  # what fits into a terminal; --json has everything
    widths = [max(len(title), *(len(row[title]) for row in rows)) for title in titles]
    for cells in [titles, *([row[title] for title in titles] for row in rows)]:
        typer.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
    typer.echo("\nshipped configs")
    folders: dict[str, list[str]] = {}
    for folder, name in (name.rsplit("/", 1) for name in configs):
        folders.setdefault(f"  {folder}/", []).append(name)
    show([(folder, " ".join(names)) for folder, names in folders.items()])


def _algorithm_row(spec: AlgorithmSpec) -> dict[str, str]:
    return {
        "algo": spec.name,
        "class": spec.class_name,
        "loop": spec.loop,
        "actions": ", ".join(sorted(spec.actions)),
        "observations": ", ".join(sorted(spec.observations)),
        "reference config": f"configs/{spec.reference_config}",
        "summary": spec.summary,
    }


@config_app.command(name="show")
@reports_errors
def show_config(
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML file, as for `train --config`.")],
    settings: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show a config with every default filled in and every setting explained; the output is a valid config."""
    from rl_training.experiment.config_text import annotated_yaml

    typer.echo(annotated_yaml(load_config(file, settings or [])), nl=False)


@config_app.command(name="schema")
@reports_errors
def show_schema(
    algo: Annotated[str | None, typer.Argument(help="One algorithm; all if not given.")] = None,
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of config files, for completion and checks in an editor."""
    from rl_training.experiment.config_text import json_schema

    typer.echo(json.dumps(json_schema(algo), indent=2))
