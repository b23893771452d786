"""Tables of what was tried to choose the settings of a row."""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from result_cells import LIBRARIES, RESULTS, file_link, mean_of, number, read_lines, rows

from rl_training.results.return_text import seed_ranges


def tuning_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    special = {"mopo-halfcheetah": mopo_tuning, "iql-first-weights": iql_weights}.get(arguments[0])
    yield from special(folder) if special else changes_table(folder, arguments[0])


def changes_table(folder: Path, row: str) -> Iterator[str]:
    """Describe what `benchmarks tuning` tried for a row: one line per change, with the score of each seed."""
    path = RESULTS / "tuning" / f"{row}.jsonl"
    tried: dict[str, dict[int, float]] = {}
    for line in read_lines(path):
        tried.setdefault(line["contender"], {})[line["seed"]] = line["score"]  # the last run of a seed counts
    body = []
    for name, by_seed in sorted(tried.items(), key=lambda each: -fmean(each[1].values())):
        changes = ", ".join(f"`{change}`" for change in name.split())
        title = "none" if name == "ours" else f"{LIBRARIES[name]}'s defaults" if name in LIBRARIES else changes
        scores = [by_seed[seed] for seed in sorted(by_seed)]
        each = ", ".join(number(score, fmean(scores)) for score in scores)
        body.append([title, seed_ranges(sorted(by_seed)), mean_of(scores), each])
    yield from rows([f"changes ({file_link(path, folder)})", "seeds", "mean ± std", "each seed"], *body)


def mopo_tuning(folder: Path) -> Iterator[str]:
    path = RESULTS / "tuning" / "mopo-halfcheetah.jsonl"
    lines = read_lines(path)
    kinds = ("mopo-halfcheetah-medium", "mopo-halfcheetah-medium-replay")
    body = []
    for changes in dict.fromkeys(tuple(line["changes"]) for line in lines):
        cells = [", ".join(f"`{change}`" for change in changes) or "none"]
        for kind in kinds:
            curve = next(line["curve"] for line in lines if line["row"] == kind and tuple(line["changes"]) == changes)
            cells += [number(curve["returns"][0]), number(curve["returns"][-1])]
        body.append(cells)
    titles = ["medium, 20k updates", "100k", "medium-replay, 20k updates", "100k"]
    means = {line["row"]: number(line["dataset"]["mean_return"]) for line in lines}
    body.append(["mean return of the data", "", means[kinds[0]], "", means[kinds[1]]])
    yield from rows([f"changes ({file_link(path, folder)})", *titles], *body)


def iql_weights(folder: Path) -> Iterator[str]:
    path = RESULTS / "tuning" / "iql-first-weights.jsonl"
    lines = read_lines(path)
    body = []
    for row, weights in dict.fromkeys((line["row"], line["weights"]) for line in lines):
        own = [line for line in lines if (line["row"], line["weights"]) == (row, weights)]
        scores = [line["score"] for line in own]
        counts = [line["returns_below_-800"] > 0 for line in own if "returns_below_-800" in line]
        seeds = seed_ranges([line["seed"] for line in own])
        body.append([f"`{row}`", weights, seeds, mean_of(scores), f"{sum(counts)} of {len(counts)}" if counts else ""])
    header = [f"row ({file_link(path, folder)})", "weights", "seeds", "mean ± std", "seeds that fail from some starts"]
    yield from rows(header, *body)
