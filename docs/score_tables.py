"""Tables of scores: every contender of a row, one line per row, Atari runs."""

from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from result_cells import (
    RESULTS,
    Entry,
    file_link,
    library,
    mean_text,
    number,
    overview_text,
    read_lines,
    rows,
    steps_text,
    summary,
)

from rl_training.results.human_normalized import human_normalized


def score_tables(folder: Path, algos: list[str]) -> Iterator[str]:
    """Describe every row of these algorithms, then their Atari runs."""
    named = {name: entry for algo in algos for name, entry in of_algo(summary()["scores"], algo)}
    atari = {name: entry for algo in algos for name, entry in of_algo(summary()["atari"], algo)}
    if not named and not atari:
        yield f"Not scored yet: `python -m benchmarks scores {' '.join(algos)}` runs its rows."
    if named:
        yield from score_table(folder, named)
    if named and atari:
        yield ""
    if atari:
        yield from atari_table(folder, atari)


def of_algo(entries: Mapping[str, Entry], algo: str) -> Iterator[tuple[str, Entry]]:
    """Return the entries of an algorithm: small budgets first, variants of a row after it."""
    named = [(name, entry) for name, entry in entries.items() if name.partition("-")[0] == algo]
    yield from sorted(named, key=lambda each: (each[1].get("budget", 0), each[1].get("row", ""), each[0]))


def score_table(folder: Path, named: Mapping[str, Entry]) -> Iterator[str]:
    header = ["row", "contender", "steps", "seeds", "mean ± std", "IQM (95 % interval)", "worst seed", "held from"]
    body: list[list[str]] = []
    for name, entry in named.items():
        titles = [row_title(folder, name, entry)]
        for each in entry["contenders"]:
            body.append([titles.pop() if titles else "", *contender_cells(each, entry.get("threshold"))])
        published = entry["published"] if name == entry["row"] else {}  # a variant of a row does not repeat them
        body += [["", f"{library(source)}, published", "", "", text, "", "", ""] for source, text in published.items()]
    filled = [index for index in range(len(header)) if any(cells[index] for cells in body)]
    yield from rows(*([cells[index] for index in filled] for cells in (header, *body)))


def row_title(folder: Path, name: str, entry: Entry) -> str:
    path = RESULTS / "scores" / f"{name}.jsonl"
    dataset = read_lines(path)[0].get("dataset")
    data = f"; mean return of the data: {number(dataset['mean_return'])}" if dataset else ""
    target = "" if entry["target"].startswith("none set") else f"; target: {entry['target']}"
    older = f"; taken before a change: {entry['changed_since']}" if "changed_since" in entry else ""
    return f"{file_link(path, folder)}{target}{data}{older}"


def contender_cells(each: Entry, threshold: float | None) -> list[str]:
    mean, scores = each["mean"], each["scores"]
    low, high = (number(end, mean) for end in each["interval"])
    held = ", ".join(map(steps_text, each["first_held"])) if "first_held" in each else ""
    several = len(scores) > 1
    return [
        f"`{each['contender']}`",
        f"{each['steps']:,}",
        str(len(scores)),
        mean_text(each),
        f"{number(each['iqm'], mean)} ({low} to {high})" if several else "",
        number(min(scores), mean) if several else "",
        f"{threshold:g}: {held}" if held and threshold is not None else held,
    ]


def atari_table(folder: Path, named: Mapping[str, Entry]) -> Iterator[str]:
    """Describe every run of these rows, then the games that share a config together."""
    header = ["row", "frames", "seed", "training return at the end", "final policy", "human-normalised", "published"]
    body = []
    for name, entry in named.items():
        path = RESULTS / "atari" / f"{name}.jsonl"
        published = "; ".join(entry["published"].values())
        for line in read_lines(path):
            curve = line.get("training_curve") or {"complete": []}
            whole = [
                number(value)
                for value, done in zip(curve.get("mean_return", ()), curve["complete"], strict=True)
                if done
            ]
            played = line["final"] or line.get("after", {}).get("sampled", {})
            mean = played.get("mean_return")
            end = "not played" if mean is None else number(mean)
            normalised = "" if mean is None else f"{human_normalized(entry['env_id'], mean):.2f}"
            frames = f"{4 * line['step'] / 1e6:.3g}M of {4 * line['steps'] / 1e6:g}M"  # its own budget
            title = f"{file_link(path, folder)}; target: {entry['target']}"
            trained = whole[-1] if whole else "not recorded"
            body.append([title, frames, str(line["seed"]), trained, end, normalised, published])
    yield from rows(header, *body)
    yield from games_table({name.partition("-")[0] for name in named})


def games_table(algos: Container[str]) -> Iterator[str]:
    """Describe the human-normalised scores of these algorithms over several games."""
    body = []
    for config, contenders in summary().get("atari_suites", {}).items():
        for each in contenders.values() if config.partition("/")[0] in algos else ():
            low, high = each["interval"]
            figures = [f"{each['iqm']:.2f} ({low:.2f} to {high:.2f})", f"{each['mean']:.2f}", f"{each['median']:.2f}"]
            body.append([f"`{config}`", str(each["rows"]), str(len(each["seeds"])), *figures])
    if body:
        yield ""
        yield from rows(["human-normalised", "games", "seeds", "IQM (95 % interval)", "mean", "median"], *body)


def score_overview(folder: Path, names: list[str]) -> Iterator[str]:
    """Describe one line per row: ours and the best peer."""
    body = []
    for name in names:
        entry = summary()["scores"][name]
        ours = next(each for each in entry["contenders"] if each["contender"] == "ours")
        peers = [each for each in entry["contenders"] if not each["contender"].startswith("ours")]
        peer = ""
        if peers:
            # "sb3" before "sb3-td3": the same algorithm before another one of that library.
            best = max(peers, key=lambda each: ("-" not in each["contender"], float(each["mean"])))
            peer = f"{library(best['contender'])} {overview_text(best)}"
        elif entry["published"]:
            source, text = next(iter(entry["published"].items()))
            peer = f"{library(source)} {text.partition(' (')[0]}, published"
        path = RESULTS / "scores" / f"{name}.jsonl"
        older = ", before a later change" if "changed_since" in entry else ""
        body.append([file_link(path, folder), overview_text(ours) + older, peer, f"{ours['steps']:,}"])
    yield from rows(["algorithm and task", "ours", "peer", "steps"], *body)
