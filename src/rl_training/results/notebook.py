"""What a notebook shows of results: `_repr_html_` of runs and curves. Text is escaped by the parts of a page."""

from rl_training.errors import ConfigError
from rl_training.results.comparison import X_LABELS, compare, line_caption, line_of
from rl_training.results.figures import Figure
from rl_training.results.html import image, paragraph, table
from rl_training.results.runs import Curve, Runs


def runs_html(runs: Runs) -> str:
    """Return the tables of `compare`, one per environment."""
    if not runs:
        return paragraph("no runs")
    parts = []
    try:
        for env_id in runs.env_ids:
            rows = compare(Runs([run for run in runs if run.env_id == env_id]).groups())
            heads = [name or "notes" for name in rows[0].cells]
            parts.append(table(env_id or "offline", heads, [list(row.cells.values()) for row in rows], caption=True))
    except ConfigError as error:  # of settings that cannot be read
        parts.append(paragraph(str(error)))
    return "\n".join(parts)


def curve_html(curve: Curve) -> str:
    """Return the figure of a curve as an image, whose style does not reach the rest of the notebook."""
    line = line_of(curve, f"{curve.num_seeds} seed{'s' * (curve.num_seeds > 1)}")
    figure = Figure(curve.name, X_LABELS[curve.x], lines=[line], caption=line_caption(curve.low is not None))
    return image(figure.svg(), curve.name)
