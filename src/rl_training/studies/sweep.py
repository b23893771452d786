"""Run a sweep: every combination of its file with every seed, in run folders that the same command continues.

sweep = read_sweep(Path("sweeps/lr.yaml"))
run_sweep(sweep, LaunchOptions(root=sweep.folder, jobs=2))

sweeps/lr/
  sweep.yaml                                     a copy of the file
  dqn-CartPole-v1-learning_rate=0.001__1a2b3c4d/
    seed0/  seed1/  ...                          ordinary run folders
  table.csv  table.md  report.html               written at the end, and after an interruption
"""

import csv
import html
import io
import json
import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_training.core.durable_files import make_folder, write_atomic
from rl_training.envs.factory import check_backend
from rl_training.envs.hang_watch import hangs_end
from rl_training.errors import ConfigError, UserError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_dir import create_run_dir, read_result
from rl_training.experiment.space_checks import check_spaces
from rl_training.launching.marks import ask_to_stop
from rl_training.launching.pool import Ended, LaunchOptions, run_all
from rl_training.results.comparison import Row, compare
from rl_training.results.report import write_report
from rl_training.results.run_record import RunRecord
from rl_training.results.runs import Runs, find_runs
from rl_training.runtime.run_spaces import spaces_of
from rl_training.runtime.setup import RunOptions
from rl_training.studies.sweep_file import Combination, Sweep, refuse

_ENV_SETTINGS = ("algo", "env_id", "env_factory", "env_kwargs", "wrappers", "max_episode_steps", "execution_backend")

log = logging.getLogger("rl_training")


@dataclass(frozen=True)
class SweepResult:
    """What a sweep has reached; `rows`: the comparison of the combinations, by environment."""

    rows: Mapping[str, Sequence[Row]]
    failed: Mapping[Path, str]  # the run folders and why
    unfinished: int  # runs that are neither finished nor failed
    not_in_file: Sequence[Path]  # run folders of values that the file no longer has


def check_environments(sweep: Sweep) -> None:
    """Make each environment once and raise `ConfigError` for combinations whose algorithm cannot learn in it."""
    answers: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for combination in sweep.combinations:
        settings = combination.config.model_dump(mode="json", include=set(_ENV_SETTINGS))
        key = json.dumps(settings, sort_keys=True)
        if key not in answers:
            answers[key] = env_refusal(combination.config)
        if answers[key]:
            reasons[combination.label] = answers[key]
    refuse(reasons, len(sweep.combinations))


def env_refusal(config: TrainConfig) -> str:
    """Return why the algorithm cannot learn in the environment; empty if it can."""
    try:
        with hangs_end(config.worker_timeout):
            factory = RunOptions().factory_for(config)
            assert factory is not None  # a sweep file without environments is refused
            check_backend(factory, config.execution_backend)
            check_spaces(config.spec, spaces_of(factory, config), config.env_id)
    except UserError as error:
        return str(error)
    return ""


def run_folders(sweep: Sweep) -> dict[Combination, list[Path]]:
    """Return the run folders of each combination, one for each seed.

    The digest alone decides: a combination keeps its folder if its label changes, as it does when the grid gets one
    more setting whose first value is the default.
    """
    existing = {folder.name.rpartition("__")[2]: folder for folder in sorted(sweep.folder.glob("*__*"))}
    folders = {}
    for combination in sweep.combinations:
        new = sweep.folder / combination.folder_name
        folder = existing.get(combination.digest, new)
        folders[combination] = [folder / f"seed{seed}" for seed in sweep.seeds]
    return folders


def run_sweep(sweep: Sweep, options: LaunchOptions, *, command: str = "") -> SweepResult:
    """Run what is not finished yet, seed by seed over all combinations, and write the tables and the report."""
    folders = run_folders(sweep)
    make_folder(sweep.folder)
    write_atomic(sweep.folder / "sweep.yaml", sweep.text)
    waiting: dict[Path, str] = {}
    for number, seed in enumerate(sweep.seeds):
        for combination, of_seeds in folders.items():
            folder = of_seeds[number]
            if read_result(folder) is None:
                waiting[folder] = f"{combination.label} seed {seed}"
                if not (folder / "config.yaml").is_file():
                    create_run_dir(combination.config.updated(seed=seed).resolved(), folder)
    for folder in _not_in_file(sweep, folders):
        if read_result(folder) is None:
            ask_to_stop(folder)  # workers take what they find
    ended: list[Ended] = []
    try:
        ended = run_all(list(waiting), options, labels=list(waiting.values()))
    finally:
        result = _summarize(sweep, folders, ended)
        _write_tables(sweep, folders, result, command)
    return result


def _summarize(sweep: Sweep, folders: Mapping[Combination, Sequence[Path]], ended: Sequence[Ended]) -> SweepResult:
    by_env: dict[str, dict[str, Runs]] = defaultdict(dict)
    for combination, of_seeds in folders.items():
        by_env[combination.config.env_id][combination.label] = Runs([RunRecord(folder) for folder in of_seeds])
    planned = {folder for of_seeds in folders.values() for folder in of_seeds}
    failed = {end.folder: end.message for end in ended if end.status == "failed"}
    finished = sum(read_result(folder) is not None for folder in planned)
    return SweepResult(
        rows={env_id: compare(groups) for env_id, groups in by_env.items()},
        failed=failed,
        unfinished=len(planned) - finished - len(failed),
        not_in_file=_not_in_file(sweep, folders),
    )


def _not_in_file(sweep: Sweep, folders: Mapping[Combination, Sequence[Path]]) -> list[Path]:
    planned = {folder for of_seeds in folders.values() for folder in of_seeds}
    return [run.path for run in find_runs(sweep.folder) if run.path not in planned]


# --- Files -----------------------------------------------------------------------------------------------------------


def _write_tables(
    sweep: Sweep, folders: Mapping[Combination, Sequence[Path]], result: SweepResult, command: str
) -> None:
    rows = [row for of_env in result.rows.values() for row in of_env]
    write_atomic(sweep.folder / "table.csv", _as_csv(folders, rows))
    write_atomic(sweep.folder / "table.md", _as_markdown(sweep, result))
    runs = Runs([run for row in rows for run in row.runs])
    groups = {row.label: row.runs for row in rows}
    title = f"Sweep: {sweep.folder.name}"
    try:
        write_report(runs, sweep.folder / "report.html", title=title, command=command, groups=groups)
    except ConfigError as error:  # such as one that is too large
        (sweep.folder / "report.html").unlink(missing_ok=True)  # one of earlier runs would mislead
        log.warning("no report was written: %s", error)


def _as_csv(folders: Mapping[Combination, Sequence[Path]], rows: Sequence[Row]) -> str:
    """Return one line per combination; times are left out, so that an interrupted sweep ends with the same table."""
    swept = dict.fromkeys(name for combination in folders for name in combination.chosen)
    names = [name for name in swept if name not in ("algo", "env_id")]
    by_label = {row.label: row for row in rows}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    scores = ("mean", "std", "iqm", "low", "high")
    writer.writerow(["combination", "algo", "env_id", *names, "finished", "seeds", *scores, "folder"])
    for combination, of_seeds in folders.items():
        row, config = by_label[combination.label], combination.config
        found = row.summary
        numbers = [found.mean, found.std, found.iqm, *found.interval] if found else [""] * len(scores)
        writer.writerow(
            [
                combination.label,
                config.algo,
                config.env_id,
                *(combination.chosen.get(name, "") for name in names),
                sum(run.status == "finished" for run in row.runs),
                len(row.runs),
                *numbers,
                of_seeds[0].parent.name,
            ]
        )
    return text.getvalue()


def _as_markdown(sweep: Sweep, result: SweepResult) -> str:
    lines = [f"# Sweep {_escaped(sweep.folder.name)}", ""]
    for env_id, rows in result.rows.items():
        columns = [name for name in rows[0].cells if name != "wall time"]
        lines += [f"## {_escaped(env_id)}", "", _line([name or "notes" for name in columns])]
        lines.append(_line(["---"] * len(columns)))
        lines += [_line([row.cells[name] for name in columns]) for row in rows]
        lines.append("")
    if result.not_in_file:
        paths = [path.relative_to(sweep.folder).as_posix() for path in result.not_in_file]
        lines += ["Not in the file:", "", *(f"- {_escaped(path)}" for path in paths), ""]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    plain = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([|*`\[\\])", r"\\\1", plain)
