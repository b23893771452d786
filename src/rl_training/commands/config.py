"""`rl-training list` and `rl-training config show | schema`: the algorithms and their settings."""

import json
from typing import Annotated, Any

import typer

from rl_training.commands.messages import reports_errors, show
from rl_training.commands.options import AsJson, Debug, Overrides
from rl_training.experiment.config_files import load_config, packaged_configs, shipped_scores
from rl_training.experiment.registry import AlgorithmSpec, registry
from rl_training.results.return_text import seed_ranges

config_app = typer.Typer(help="Show settings.", no_args_is_help=True)


@reports_errors
def list_algorithms(as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the algorithms and the configs that come with the package."""
    rows = [_algorithm_row(spec) for spec in registry().values()]
    configs, scores = packaged_configs(), shipped_scores()
    if as_json:
        by_config = {f"configs/{name}": scores.get(name, []) for name in configs}
        typer.echo(json.dumps({"algorithms": rows, "configs": list(by_config), "scores": by_config}))
        return
    titles = ["algo", "class", "summary", "actions"]  # what fits into a terminal; --json has everything
    widths = [max(len(title), *(len(row[title]) for row in rows)) for title in titles]
    for cells in [titles, *([row[title] for title in titles] for row in rows)]:
        typer.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
    typer.echo("\nshipped configs, and the return of their final policies: mean ± deviation over the seeds")
    for name in configs:
        first, *others = [score_text(score) for score in scores.get(name, [])] or ["not scored"]
        show([(f"  {f'configs/{name}':<42}", first), *((" " * 44, text) for text in others)])


def score_text(score: dict[str, Any]) -> str:
    """Describe one score: `500.0 ± 0.0 on CartPole-v1, 50,000 steps, seeds 0-9`."""
    figures = f"{score['mean']:,.1f}" + (f" ± {score['std']:,.1f}" if len(score["seeds"]) > 1 else "")
    task = f"{score['env_id']} {score.get('dataset', '')}".rstrip()
    seeds = f"seed{'s' if len(score['seeds']) > 1 else ''} {seed_ranges(score['seeds'])}"
    older = ", before a later change" if "changed_since" in score else ""
    budget = f" of {score['budget']:,}" if "budget" in score else ""
    return f"{figures} on {task}, {score['steps']:,}{budget} steps, {seeds}{older}"


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
