"""Write `results/summary.json` from the result lines; documents are generated from it.

Also write `src/rl_training/assets/scores.json`, what each shipped config reached: `rl-training list` shows it.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks import measurements
from benchmarks.command_line import add_out, result_folder
from benchmarks.compile_times import summarize_compile_times
from benchmarks.env_speed import summarize_env_speed
from benchmarks.plot_cost import summarize_plot_cost
from benchmarks.results import RESULTS, Line, read_lines, to_line, write_text
from benchmarks.rows import ROWS, SUITES
from benchmarks.rows.atari import ATARI_ROWS
from benchmarks.speed_tasks import TASKS
from benchmarks.suites import summarize_suite
from benchmarks.summaries import summarize_atari, summarize_rows, summarize_scores
from benchmarks.versions import summarize_versions
from benchmarks.wheel import summarize_wheel
from rl_training.experiment.config_files import SHIPPED_SCORES

DIGITS = 6  # significant ones; more would differ between machines
SINGLE_FILES = {
    "replay": measurements.summarize_replay,
    "dynamics": measurements.summarize_dynamics,
    "exactness": measurements.summarize_exactness,
    "kills": measurements.summarize_kills,
    "kills_cuda": measurements.summarize_kills,
    "sweep_kills": measurements.summarize_sweep_kills,
    "population_kills": measurements.summarize_population_kills,
    "tune_kills": measurements.summarize_tune_kills,
    "tune_search": measurements.summarize_tune_search,
    "end_to_end": measurements.summarize_end_to_end,
    "launchers": measurements.summarize_launchers,
    "env_speed": summarize_env_speed,
    "slow_simulator": measurements.summarize_slow_simulator,
    "probe": measurements.summarize_probe,
    "fuzz": measurements.summarize_fuzz,
    "packages": measurements.summarize_packages,
    "trackers": measurements.summarize_trackers,
    "tracking_cost": measurements.summarize_tracking_cost,
    "plot_cost": summarize_plot_cost,
    "export": measurements.summarize_export,
    "deterministic_cuda": measurements.summarize_deterministic,
    "gpu_checks": measurements.summarize_gpu_checks,
    "whole_runs": measurements.summarize_whole_runs,
    "populations": measurements.summarize_populations,
    "device_loop": measurements.summarize_device_loop,
    "compile_times": summarize_compile_times,
    "versions": summarize_versions,
    "versions_cuda": summarize_versions,
    "wheel": summarize_wheel,
}


def summarize(results: Path) -> dict[str, Any]:
    """Summarise all result files of a folder, except for tuning records, which are no results."""
    scores = files(results / "scores")
    atari = {name: atari_entry(name, lines) for name, lines in files(results / "atari").items()}
    summary: dict[str, Any] = {
        "scores": {name: score_entry(lines) for name, lines in scores.items()},
        "suites": {name: summarize_suite(suite, scores) for name, suite in SUITES.items()},
        "atari": atari,
        "speed": {
            name: measurements.summarize_speed(lines, TASKS[lines[0]["task"]].reference)
            for name, lines in files(results / "speed").items()
        },
        "gpu": {name: measurements.summarize_gpu(lines) for name, lines in files(results / "gpu").items()},
    }
    if suites := over_games(atari):
        summary["atari_suites"] = suites
    for name, function in SINGLE_FILES.items():
        if lines := read_lines(results / f"{name}.jsonl"):
            summary[name] = function(lines)
    rounded: dict[str, Any] = round_floats(summary)
    return rounded


def files(folder: Path) -> dict[str, list[Line]]:
    return {path.stem: read_lines(path) for path in sorted(folder.glob("*.jsonl"))}


def score_entry(lines: list[Line]) -> dict[str, Any]:
    row = ROWS[lines[0]["row"]]
    return {
        "row": lines[0]["row"],
        "env_id": row.env_id,
        "budget": row.steps,
        "target": row.target,
        "threshold": row.threshold,
        "published": dict(row.published),
        "chosen_on": row.chosen_on,
        **({"changed_since": row.changed_since} if row.changed_since else {}),
        "contenders": summarize_scores(lines, row),
    }


def atari_entry(name: str, lines: list[Line]) -> dict[str, Any]:
    row = ATARI_ROWS[name]
    facts = {"env_id": row.env_id, "frames": row.frames, "target": row.target, "published": dict(row.published)}
    return {**facts, "runs": summarize_atari(lines, row.env_id)}


def over_games(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Summarise the human-normalised scores of our final policies over the games of each config that has several."""
    games: dict[str, list[dict[int, float]]] = {}
    for name, entry in entries.items():
        scores = {run["seed"]: run["human_normalized"] for run in entry["runs"] if run["final"] is not None}
        if scores:
            games.setdefault(ATARI_ROWS[name].config, []).append(scores)
    return {config: summarize_rows({"ours": each}) for config, each in games.items() if len(each) > 1}


def round_floats(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: round_floats(each) for name, each in value.items()}
    return [round_floats(each) for each in value] if isinstance(value, list | tuple) else value


def scores_by_config(summary: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what our final policies reached with each shipped config, one entry per task.

    Runs with other matrix products than the config's do not count, and of shorter runs than the row asks for only the
    longest, if there is no full one: `budget` then holds the row's steps.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for name, entry in summary["scores"].items():
        row = ROWS[entry["row"]]
        runs = [each for each in entry["contenders"] if each["contender"] == "ours" and each["steps"] <= row.steps]
        if not (row.config and runs and name == entry["row"]):
            continue
        steps = max(each["steps"] for each in runs)
        each = next(each for each in reversed(runs) if each["steps"] == steps)  # on the latest dataset
        source = {"dataset": row.dataset.partition("/")[2]} if row.dataset else {}
        shorter = {"budget": row.steps} if steps < row.steps else {}
        older = {"changed_since": row.changed_since} if row.changed_since else {}
        facts = {"env_id": row.env_id, **source, "steps": steps, **shorter, "seeds": each["seeds"], **older}
        found.setdefault(row.config, []).append({**facts, "mean": each["mean"], "std": each["std"]})
    for name, entry in summary["atari"].items():
        scores = {run["seed"]: run["final"] for run in entry["runs"] if run["finished"] and run["final"] is not None}
        if scores:
            row_facts = {"env_id": ATARI_ROWS[name].env_id, "steps": ATARI_ROWS[name].steps, "seeds": list(scores)}
            std = stdev(scores.values()) if len(scores) > 1 else 0.0
            score = {"mean": fmean(scores.values()), "std": std}
            found.setdefault(ATARI_ROWS[name].config, []).append({**row_facts, **round_floats(score)})
    return dict(sorted(found.items()))


def to_text(summary: Mapping[str, Any]) -> str:
    """Format the summary with one line per result file, and one per contender of a score row."""
    kinds = []
    for kind, entries in summary.items():
        body = ",\n".join(f"  {to_line(name)}: {_entry(entry)}" for name, entry in entries.items())
        kinds.append(f" {to_line(kind)}: {{\n{body}\n }}")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def shipped_scores_text(summary: Mapping[str, Any]) -> str:
    lines = [f" {to_line(config)}: {to_line(scores)}" for config, scores in scores_by_config(summary).items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entry(entry: Any) -> str:
    if not isinstance(entry, Mapping) or "contenders" not in entry:
        return to_line(entry)
    head = to_line({name: value for name, value in entry.items() if name != "contenders"})
    contenders = ",\n".join(f"   {to_line(each)}" for each in entry["contenders"])
    return f'{head[:-1]},"contenders":[\n{contenders}\n  ]}}'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_out(parser)


def run(args: argparse.Namespace) -> int:
    folder = result_folder(args)
    summary = summarize(folder)
    write_text(folder / "summary.json", to_text(summary))
    print(f"written: {folder / 'summary.json'}")
    if folder == RESULTS:
        write_text(SHIPPED_SCORES, shipped_scores_text(summary))
        print(f"written: {SHIPPED_SCORES}")
    return 0
