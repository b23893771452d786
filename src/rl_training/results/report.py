"""One HTML file about runs: tables, charts, settings, system, checksums and the raw numbers.

write_report(find_runs("runs"), Path("report.html"))
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rl_training.core.counted import counted
from rl_training.core.durable_files import make_folder, read_text, write_atomic
from rl_training.errors import ConfigError
from rl_training.results.comparison import (
    ROUGH,
    Row,
    compare,
    curve_figure,
    improvement_figure,
    profile_figure,
)
from rl_training.results.figures import Figure
from rl_training.results.html import chart, code, folded, heading, page, paragraph, table
from rl_training.results.report_data import checksums, data_block
from rl_training.results.report_videos import Film, film_groups, videos
from rl_training.results.run_record import RunRecord
from rl_training.results.runs import EVAL_RETURN, NOT_COMPARED, Runs
from rl_training.results.statistics import probability_of_improvement

_MANY_SETTINGS = 20
_VIDEOS = "<!--videos-->"  # their place in the page until it is known how much room they have; other text is escaped

Training = Literal["all", "charts", "none"]  # what of the training metrics the page holds


@dataclass(frozen=True)
class _Report:
    """What the page is made from."""

    title: str
    created: str
    command: str
    folder: Path  # of the page: runs are named by their path from there
    groups: Mapping[str, Runs]
    unreadable: Sequence[tuple[Path, str]]  # folders and what is wrong with them
    opening: Sequence[str] = ()  # parts of the page in place of its verdicts

    @property
    def runs(self) -> list[tuple[str, RunRecord]]:
        return [(label, run) for label, runs in self.groups.items() for run in runs]

    @property
    def by_env(self) -> dict[str, dict[str, Runs]]:
        """The groups by environment: returns of different ones have no common scale."""
        found: dict[str, dict[str, Runs]] = defaultdict(dict)
        for label, runs in self.groups.items():
            found[runs[0].env_id][label] = runs
        return dict(sorted(found.items()))

    def name(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.folder)).as_posix()


def write_report(
    runs: Runs,
    out: Path,
    *,
    title: str = "",
    command: str = "",
    max_mb: float = 10.0,
    groups: Mapping[str, Runs] | None = None,
    opening: Sequence[str] = (),
    film: Film | None = None,
) -> Path:
    """Write the page about these runs; one that would be larger than `max_mb` has less of the training metrics.

    `groups`: the runs by the label of their group, if not by their settings; `opening`: HTML in place of the sentences
    about scores; `film`: makes a film of a run, and the page has one of each group.
    """
    readable, unreadable = [], []
    for run in runs:
        try:
            _ = run.settings
            readable.append(run)
        except (ConfigError, OSError) as error:
            unreadable.append((run.path, str(error)))
    if not readable:
        raise ConfigError(f"no run can be read: {unreadable[0][1]}")
    known = Runs(readable)
    given = {label: Runs([run for run in of_label if run in readable]) for label, of_label in (groups or {}).items()}
    report = _Report(
        title=title or f"Training report: {', '.join(filter(None, known.env_ids)) or 'offline runs'}",
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=command,
        folder=out.parent,
        groups={label: found for label, found in given.items() if found} or known.groups(),
        unreadable=unreadable,
        opening=opening,
    )
    clips = film_groups(report.groups, film) if film is not None else []
    size = 0
    levels: tuple[Training, ...] = ("all", "charts", "none")
    for training in levels:
        text = _page(report, training)
        size = len(text.encode())
        if size <= max_mb * 1e6:
            make_folder(out.parent)
            films = "\n".join(videos(clips, out, max_mb * 1e6 - size)) if clips else ""
            write_atomic(out, text.replace(_VIDEOS, films, 1))
            return out
    raise ConfigError(
        f"the report would have {size / 1e6:.1f} MB, more than --max-mb {max_mb:g}: give fewer runs or a larger limit"
    )


# --- The page --------------------------------------------------------------------------------------------------------


def _page(report: _Report, training: Training) -> str:
    rows = {env_id: compare(groups) for env_id, groups in report.by_env.items()}
    finished = sum(run.status == "finished" for _, run in report.runs)
    parts = [
        heading(report.title, 1),
        paragraph(f"{report.created}. {finished} of {len(report.runs)} runs are finished.", "soft"),
        *(report.opening or [paragraph(_verdict(env_id, of_env), "verdict") for env_id, of_env in rows.items()]),
        heading("Summary"),
        *(_summary(env_id, of_env) for env_id, of_env in rows.items()),
        paragraph(_EXPLANATION, "soft"),
        heading("Learning curves"),
        _charts(_learning_curves(groups) for groups in report.by_env.values()),
        *_settings(report),
        *_final_scores(report, rows),
        heading("Training metrics"),
        *_training_metrics(report, training),
        *_unfinished(report),
        _VIDEOS,
        heading("System"),
        *_systems(report),
        heading("Files"),
        *_files(report),
        *([heading("Command"), code(report.command)] if report.command else []),
        data_block(
            report.created,
            [(report.name(run.path), label, run) for label, run in report.runs],
            with_training=training == "all",
        ),
    ]
    return page(report.title, "\n".join(parts))


_EXPLANATION = (
    "score: mean and standard deviation over seeds of the final evaluation. IQM: mean without the lowest and the "
    "highest quarter of the seeds, with its 95 % bootstrap interval. better: probability that a run scores higher than "
    f"one of the first group, ties half. rough: with fewer than {ROUGH} seeds, intervals are too narrow."
)


def _verdict(env_id: str, rows: Sequence[Row]) -> str:
    """Return one sentence about the scores in an environment."""
    scored = sorted((row for row in rows if row.summary), key=lambda row: row.summary.iqm if row.summary else 0.0)
    where = f" on {env_id}" if env_id else ""
    if not scored:
        return f"No run{where} was evaluated yet."
    best = scored[-1]
    score = f"{best.cells['score']} over {counted(len(best.runs.scores), 'seed')}"
    if len(scored) == 1:
        return f"{best.label}{'' if env_id in best.label else where} scores {score}."
    second = scored[-2]
    probability, (low, high) = probability_of_improvement([best.runs.scores], [second.runs.scores])
    few = min(len(best.runs.scores), len(second.runs.scores)) < ROUGH
    clear = "not clearly better" if low <= 0.5 else "better in these few seeds" if few else "clearly better"
    return (
        f"{best.label} scores highest{where}: {score}. A run of it scores higher than one of {second.label} "
        f"with probability {probability:.2f} ({low:.2f} to {high:.2f}): {clear}."
    )


def _summary(env_id: str, rows: Sequence[Row]) -> str:
    cells = []
    for row in rows:
        *numbers, notes = row.cells.values()
        seconds = sum(run.wall_s for run in row.runs)
        speed = f"{sum(run.steps for run in row.runs) / seconds:,.0f}" if seconds else "-"
        cells.append((*numbers, speed, notes))
    *heads, last = rows[0].cells
    return table(f"Scores: {env_id or 'offline'}", (*heads, "steps/s", last or "notes"), cells, caption=True)


def _charts(charts: Iterator[str]) -> str:
    return "\n".join(['<div class="charts">', *charts, "</div>"])


def _or_reason(draw: Callable[[], Figure], *below: str) -> str:
    """Return a chart, or why there is none."""
    try:
        return chart(draw(), *below)
    except ConfigError as error:
        return paragraph(f"No chart: {error}.", "soft")


def _recorded(groups: Mapping[str, Runs], name: str) -> dict[str, Runs]:
    """Return the groups with the runs that have a record; empty ones keep their place, and so their colour."""
    return {label: Runs([run for run in runs if run.records.get(name)]) for label, runs in groups.items()}


def _learning_curves(groups: Mapping[str, Runs]) -> str:
    recorded = _recorded(groups, EVAL_RETURN)
    if not any(recorded.values()):
        return paragraph(f"No chart: no run of {', '.join(groups)} was evaluated yet.", "soft")
    seeds = _or_reason(partial(curve_figure, recorded, per_seed=True))
    return _or_reason(partial(curve_figure, recorded), folded("Each seed", seeds))


def _settings(report: _Report) -> list[str]:
    of_groups = [runs[0].settings for runs in report.groups.values()]
    names = sorted({name for settings in of_groups for name in settings} - set(NOT_COMPARED))
    rows = [(name, *(settings.get(name, "-") for settings in of_groups)) for name in names]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    heads = ("setting", *report.groups)
    parts = [heading("Settings that differ")]
    if differing:
        shown = table("Settings that differ", heads, differing)
        many = len(differing) > _MANY_SETTINGS  # of different algorithms
        parts.append(folded(f"{len(differing)} settings that differ", shown) if many else shown)
    else:
        parts.append(paragraph("None: the runs differ only in their seeds."))
    return [*parts, folded(f"All {len(rows)} settings", table("All settings", heads, rows))]


def _final_scores(report: _Report, rows: Mapping[str, Sequence[Row]]) -> list[str]:
    parts = []
    for env_id, of_env in rows.items():
        scored = {row.label: row.runs for row in of_env if row.summary}
        if len(scored) > 1:
            parts.append(chart(profile_figure(report.by_env[env_id], None)))
            parts.append(_or_reason(partial(improvement_figure, of_env)))
    return [heading("Final scores"), _charts(iter(parts))] if parts else []


def _training_metrics(report: _Report, training: Training) -> Iterator[str]:
    if training != "all":
        what = "raw numbers of these" if training == "charts" else "training metrics"
        yield paragraph(f"The {what} are left out: with them the page would be larger than --max-mb.", "soft")
    if training == "none":
        return
    for env_id, groups in report.by_env.items():
        names = sorted({name for runs in groups.values() for run in runs for name in run.records} - {EVAL_RETURN})
        charts = [_or_reason(partial(curve_figure, _recorded(groups, name), name, title=name)) for name in names]
        yield folded(f"{len(charts)} charts: {env_id or 'offline'}", _charts(iter(charts)))


def _unfinished(report: _Report) -> Iterator[str]:
    rows = [
        (report.name(run.path), label, str(run.seed), run.status, f"{run.steps:,}", _last_error(run))
        for label, run in report.runs
        if run.status != "finished"
    ]
    yield heading("Seeds that are not finished")
    if rows:
        yield table(
            "Seeds that are not finished", ("run", "group", "seed", "status", "steps", "error"), rows, wrap=True
        )
    else:
        yield paragraph("None.")
    if report.unreadable:
        yield heading("Folders that cannot be read", 3)
        damaged = [(report.name(path), message) for path, message in report.unreadable]
        yield table("Folders that cannot be read", ("folder", "error"), damaged, wrap=True)


def _last_error(run: RunRecord) -> str:
    """Return the last line of the traceback of a failed run."""
    if run.status != "failed":
        return ""
    try:
        return read_text(run.path / "crash" / "traceback.txt").strip().rpartition("\n")[2]
    except (OSError, ValueError):
        return ""


def _systems(report: _Report) -> Iterator[str]:
    """Yield one table per system that runs were trained on, by their latest start."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for run in (run for _, run in report.runs if run.status != "not started"):
        found[tuple(_system(run.starts[-1] if run.starts else {}).items())].append(report.name(run.path))
    for facts, names in found.items():
        yield table(f"System of {names[0]}", ("property", "value"), [("runs", ", ".join(names)), *facts], wrap=True)
    if not found:
        yield paragraph("No run has started yet.")


def _system(start: Mapping[str, Any]) -> dict[str, str]:
    """Return what a record of metadata.json says about the system, as text."""
    shown = {"device": "device", "resume": "resume", "git_commit": "git commit"}
    nested = {"versions": "versions", "host": "host", "env_packages": "packages of the environment"}
    facts = {name: str(start[key]) for key, name in shown.items() if start.get(key)}
    for key, name in nested.items():
        values = start.get(key)
        if isinstance(values, dict) and values:
            facts[name] = ", ".join(f"{each} {value}" for each, value in values.items())
    return facts or {"system": "unknown: metadata.json is missing or damaged"}


def _files(report: _Report) -> list[str]:
    rows = [
        (f"{report.name(run.path)}/{name}", digest) for _, run in report.runs for name, digest in checksums(run).items()
    ]
    return [folded(f"SHA-256 of the {len(rows)} files read", table("SHA-256", ("file", "SHA-256"), rows))]
