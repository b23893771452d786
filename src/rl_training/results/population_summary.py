"""What the evaluations of a population say: statistics over its members."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.core.durable_files import write_atomic
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.population import PopulationDir
from rl_training.results.statistics import summarize


def write_summary(population: PopulationDir) -> None:
    """Write the statistics over the members of each evaluation to summary.jsonl."""
    returns: dict[int, dict[str, list[float]]] = {}
    for folder in population.members():
        file = folder / "eval.jsonl"
        for record in read_json_lines(file) if file.is_file() else ():
            if "return" in record:
                returns.setdefault(record["step"], {}).setdefault(folder.name, []).append(record["return"])
    lines = [_statistics(step, of_members) for step, of_members in sorted(returns.items())]
    write_atomic(population.summary, "".join(json.dumps(line) + "\n" for line in lines))


def _statistics(step: int, of_members: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    means = [sum(episodes) / len(episodes) for episodes in of_members.values()]
    summary = summarize(means, resamples=1)
    return {
        "step": step,
        "members": len(means),
        "mean": summary.mean,
        "std": summary.std,
        "min": min(means),
        "max": max(means),
        "iqm": summary.iqm,
    }
