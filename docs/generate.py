"""Write the generated tables and pictures of the documentation.

    python docs/generate.py            write
    python docs/generate.py --check    change nothing; exit code 1 if something is stale

A page marks a table with `<!-- begin generated: NAME -->` and `<!-- end generated -->`; `TABLES` lists the names.
tests/test_docs.py runs the check.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from cost_tables import (
    compile_times_table,
    env_speed_table,
    export_table,
    plot_cost_table,
    replay_table,
    slow_simulator_table,
    tracking_cost_table,
)
from learning_curves import CURVES, curves_block, pictures
from metric_tables import metrics_table
from probe_tables import probe_table
from score_list import atari_list, missed_targets, page_scores, score_list
from score_tables import score_overview
from settings_tables import action_spaces_table, algorithms_table, config_table, hparams_table, setting_links
from speed_tables import (
    bfloat16_scores,
    bfloat16_speed,
    deterministic_table,
    device_loop_table,
    gpu_table,
    matrix_products_table,
    populations_table,
    speed_overview,
    speed_table,
    time_per_step_table,
    whole_runs_table,
)
from suite_tables import five_tasks_table
from trial_tables import (
    end_to_end_table,
    exactness_table,
    launchers_table,
    packages_table,
    pythons_table,
    tune_search_table,
)
from tuning_tables import tuning_table

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- begin generated: (?P<name>[^>]+) -->\n).*?(<!-- end generated -->)", re.DOTALL)

# Each takes the folder of the page, from which links are relative, and the words after its name in the mark.
Table = Callable[[Path, list[str]], Iterator[str]]
TABLES: dict[str, Table] = {
    "config": config_table,
    "hparams": hparams_table,
    "setting links": setting_links,
    "algorithms": algorithms_table,
    "metrics": metrics_table,
    "action spaces": action_spaces_table,
    "scores": page_scores,
    "score overview": score_overview,
    "curves": curves_block,
    "score list": score_list,
    "five tasks": five_tasks_table,
    "missed targets": missed_targets,
    "atari": atari_list,
    "tuning": tuning_table,
    "speed": speed_table,
    "speed overview": speed_overview,
    "time per step": time_per_step_table,
    "matrix products": matrix_products_table,
    "bfloat16 speed": bfloat16_speed,
    "bfloat16 scores": bfloat16_scores,
    "gpu": gpu_table,
    "replay": replay_table,
    "exactness": exactness_table,
    "deterministic": deterministic_table,
    "whole runs": whole_runs_table,
    "populations": populations_table,
    "device loop": device_loop_table,
    "tracking cost": tracking_cost_table,
    "plot cost": plot_cost_table,
    "launchers": launchers_table,
    "pythons": pythons_table,
    "env speed": env_speed_table,
    "end to end": end_to_end_table,
    "tune search": tune_search_table,
    "slow simulator": slow_simulator_table,
    "compile times": compile_times_table,
    "packages": packages_table,
    "export": export_table,
    "probe": probe_table,
}


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def table(name: str, folder: Path) -> str:
    """Return the lines between two marks. The longest name in `TABLES` counts, the rest are its arguments."""
    known = max((each for each in TABLES if f"{name} ".startswith(f"{each} ")), key=len, default=None)
    if known is None:
        raise ValueError(f"unknown table {name!r}; known: {', '.join(TABLES)}")
    lines = TABLES[known](folder, name.removeprefix(known).split())
    return "".join(f"{line}\n" for line in lines)


def regenerated(text: str, folder: Path) -> str:
    return MARKED.sub(lambda match: match[1] + table(match["name"], folder) + match[3], text)


def stale_files() -> dict[Path, str]:
    """Return the new text of each page and picture that is not up to date."""
    texts = {page: regenerated(page.read_text("utf-8"), page.parent) for page in pages()}
    texts |= pictures()
    return {path: text for path, text in texts.items() if not path.is_file() or path.read_text("utf-8") != text}


def left_over_pictures() -> list[Path]:
    """Return the pictures of rows that no longer exist."""
    return sorted(set(CURVES.glob("*")) - set(pictures()))


def main() -> int:
    check_only = "--check" in sys.argv[1:]
    stale, left_over = stale_files(), left_over_pictures()
    for path in left_over:
        print(f"{'left over' if check_only else 'removed'}: {path.relative_to(ROOT)}")
        if not check_only:
            path.unlink()
    for path, text in stale.items():
        print(f"{'stale' if check_only else 'written'}: {path.relative_to(ROOT)}")
        if not check_only:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
    return 1 if (stale or left_over) and check_only else 0


if __name__ == "__main__":
    sys.exit(main())
