"""Tables of scores and speed, from `benchmarks/results`."""

import json
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from rl_training.results.human_normalized import human_normalized

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
LIBRARIES = {
    "sb3": "SB3",
    "sb3_contrib": "sb3-contrib",
    "tianshou": "Tianshou",
    "sbx": "sbx",
    "torchrl": "TorchRL",
    "dopamine": "Dopamine",
    "cleanrl": "CleanRL",
    "zoo": "rl-zoo3",
    "minatar": "MinAtar's paper",
    "pgx": "Pgx's paper",
    "bbf": "BBF's paper",
    "bbf_8": "BBF's paper (8 updates per step)",
    "dreamerv3": "DreamerV3's paper",
    "redq": "the paper",
    "sac": "SAC",
    "mbpo": "the paper",
    "paper": "the paper",
}
PRODUCTS = "matrix products alone"  # an entry of the speed summaries that is no contender
Entry = Mapping[str, Any]


@cache
def summary() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / "summary.json").read_text("utf-8"))
    return loaded


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def rows(*cells: Sequence[str]) -> Iterator[str]:
    """Format a table, its header first."""
    header, *body = cells
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for each in body:
        yield f"| {' | '.join(each)} |"


def file_link(path: Path, folder: Path) -> str:
    return f"[`{path.stem}`]({os.path.relpath(path, folder)})"


def number(value: float, like: float | None = None) -> str:
    """Format a figure with digits that fit its size, or the size of `like`."""
    size = abs(value if like is None else like)
    if size >= 1_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if size > 2 else f"{value:.3f}"


def rate(value: float) -> str:
    """Format a rate or a duration with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def task_text(name: str, entry: Entry) -> str:
    """Return the environment and what distinguishes the row: a dataset, a budget, the defaults."""
    rest = name.split("-")[2:]
    detail = f", {'-'.join(rest)}" if rest and not entry["env_id"].startswith(("MinAtar", "Inverted")) else ""
    return f"{entry['env_id']}{detail}"


def steps_text(steps: float | None) -> str:
    if steps is None:
        return "never"
    return f"{steps / 1e6:g}M" if steps >= 1e6 else f"{steps / 1e3:g}k"


# --- Scores -----------------------------------------------------------------------------------------------------------


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


def mean_text(each: Entry) -> str:
    mean = number(each["mean"])
    return f"{mean} ± {number(each['std'], each['mean'])}" if len(each["scores"]) > 1 else mean


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
            played = line["final"] or line.get("after") or {}
            mean = played.get("mean_return")
            end = "not played" if mean is None else number(mean)
            normalised = "" if mean is None else f"{human_normalized(entry['env_id'], mean):.2f}"
            frames = f"{4 * line['step'] / 1e6:.3g}M of {entry['frames'] / 1e6:g}M"
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


def overview_text(each: Entry) -> str:
    return f"{mean_text(each)} ({seeds_text(len(each['scores']))})"


def seeds_text(count: int) -> str:
    return f"{count} seeds" if count > 1 else "1 seed"


def library(contender: str) -> str:
    return LIBRARIES.get(contender.partition("-")[0], contender)


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
        body.append([title, f"{min(by_seed)} to {max(by_seed)}", mean_of(scores), each])
    yield from rows([f"changes ({file_link(path, folder)})", "seeds", "mean ± std", "each seed"], *body)


def mean_of(scores: Sequence[float]) -> str:
    mean = fmean(scores)
    return f"{number(mean)} ± {number(stdev(scores), mean)}" if len(scores) > 1 else number(mean)


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
        seeds = f"{own[0]['seed']} to {own[-1]['seed']}"
        body.append([f"`{row}`", weights, seeds, mean_of(scores), f"{sum(counts)} of {len(counts)}" if counts else ""])
    header = [f"row ({file_link(path, folder)})", "weights", "seeds", "mean ± std", "seeds that fail from some starts"]
    yield from rows(header, *body)


# --- Speed ------------------------------------------------------------------------------------------------------------


def speed(task: str) -> dict[str, Entry]:
    """Return the contenders of a task, ours first."""
    entries = {name: each for name, each in summary()["speed"][task].items() if name != PRODUCTS}
    return dict(sorted(entries.items(), key=lambda each: each[0] != "ours"))


def ratio(each: Entry, figure: str) -> tuple[str, str]:
    """Return the reference library, and the ratio to it: median (smallest to largest)."""
    prefix = f"{figure}_over_"
    name = next((name for name in each if name.startswith(prefix)), None)
    if name is None:
        return "", ""
    return name.removeprefix(prefix), ratio_text(each[name])


def ratio_text(spread: Entry) -> str:
    if spread["min"] == spread["max"] == 1.0:
        return "1"
    return spread_text(spread)


def speed_table(folder: Path, tasks: list[str]) -> Iterator[str]:
    body = []
    for task in tasks:
        titles = [file_link(RESULTS / "speed" / f"{task}.jsonl", folder)]
        for name, each in speed(task).items():
            whole, steady = (rate(each[figure]["median"]) for figure in ("steps_per_s", "steady_steps_per_s"))
            ratios = [ratio(each, figure)[1] for figure in ("steps_per_s", "steady_steps_per_s")]
            title = titles.pop() if titles else ""
            body.append([title, f"`{name}`", str(each["threads"]), whole, steady, *ratios])
    references = dict.fromkeys(ratio(each, "steps_per_s")[0] for task in tasks for each in speed(task).values())
    reference = " or ".join(library(name) for name in references if name)
    whole, steady = f"ratio to {reference}, whole run", f"ratio to {reference}, once learning"
    yield from rows(["task", "contender", "threads", "steps/s, whole run", "once learning", whole, steady], *body)


def speed_overview(folder: Path, tasks: list[str]) -> Iterator[str]:
    """Describe one line per task: steps per second once learning, ours and the reference library's."""
    body = []
    for task in tasks:
        ours = speed(task)["ours"]
        reference, text = ratio(ours, "steady_steps_per_s")
        figures = [rate(each["steady_steps_per_s"]["median"]) for each in (ours, speed(task)[reference])]
        products = summary()["speed"][task].get(PRODUCTS)
        share = percent(products["share_of_our_update"]) if products else ""
        link = file_link(RESULTS / "speed" / f"{task}.jsonl", folder)
        body.append([link, figures[0], f"{library(reference)} {figures[1]}", text, share])
    yield from rows(["task", "ours, steps/s", "peer, steps/s", "ratio", "bare matrix products"], *body)


def matrix_products_table(folder: Path, tasks: list[str]) -> Iterator[str]:
    body = []
    for task in tasks:
        each = summary()["speed"][task][PRODUCTS]
        times = [f"{each[name] / 1e3:.1f}" for name in ("us_per_update", "our_update_us")]
        link = file_link(RESULTS / "speed" / f"{task}.jsonl", folder)
        body.append([link, *times, percent(each["share_of_our_update"])])
    yield from rows(["task", "products of an update, ms", "our update, ms", "share"], *body)


def time_per_step_table(folder: Path, tasks: list[str]) -> Iterator[str]:
    """Split the time of an env step into its parts, one pair of columns per instrumented run."""
    runs = {
        f"`{task}`, `{name}`": each["time_per_step_us"]
        for task in tasks
        for name, each in speed(task).items()
        if "time_per_step_us" in each
    }
    header = ["part", *(cell for name in runs for cell in (f"{name}: us", "share"))]
    body = [
        [
            part,
            *(cell for run in runs.values() for cell in (f"{run[part]:.1f}", percent(run[part] / sum(run.values())))),
        ]
        for part in next(iter(runs.values()))
    ]
    yield from rows(header, *body)


BFLOAT16_TASKS = ("iql", "sac-pendulum-bfloat16", "redq-bfloat16")
BFLOAT16_ROWS = ("sac-pendulum", "iql-pendulum-medium-replay")


def bfloat16_speed(folder: Path, arguments: list[str]) -> Iterator[str]:
    body = []
    for task in BFLOAT16_TASKS:
        cells = [file_link(RESULTS / "speed" / f"{task}.jsonl", folder)]
        for name in ("ours", "ours-bfloat16"):
            each = speed(task)[name]
            reference, text = ratio(each, "steady_steps_per_s")
            cells += [rate(each["steady_steps_per_s"]["median"]), text]
        peer = speed(task)[reference]["steady_steps_per_s"]["median"]
        body.append([*cells, f"{library(reference)} {rate(peer)}"])
    yield from rows(["task", "float32", "ratio to the peer", "bfloat16", "ratio to the peer", "peer"], *body)


def bfloat16_scores(folder: Path, arguments: list[str]) -> Iterator[str]:
    body = []
    for row in BFLOAT16_ROWS:
        cells = [f"`{row}`"]
        for name in (row, f"{row}-bfloat16"):
            ours = next(each for each in summary()["scores"][name]["contenders"] if each["contender"] == "ours")
            devices = {
                line["device"]
                for line in read_lines(RESULTS / "scores" / f"{name}.jsonl")
                if line["contender"] == "ours"
            }
            cells.append(f"{overview_text(ours)}, on {' and '.join(sorted(devices))}")
        body.append(cells)
    yield from rows(["row", "float32", "bfloat16"], *body)


def gpu_table(folder: Path, names: list[str]) -> Iterator[str]:
    body = []
    for file in names:
        for case, contenders in summary()["gpu"][file].items():
            titles = [f"{file_link(RESULTS / 'gpu' / f'{file}.jsonl', folder)}: `{case}`"]
            for name, each in contenders.items():
                peer = next((other for other in each if other.startswith("over_") and other != "over_eager"), None)
                cells = [rate(each["median"]), f"{rate(each['over_eager'])}"]
                cells.append(f"{rate(each[peer])} ({library(peer.removeprefix('over_'))})" if peer else "")
                share = percent(each["floor_share"]) if "floor_share" in each else ""
                body.append([titles.pop() if titles else "", f"`{name}`", *cells, share])
    yield from rows(["case", "contender", "updates/s", "over eager", "over the peer", "matrix products"], *body)


REPLAY_COLUMNS = {
    "floats: add": ("floats", "add"),
    "sample": ("floats", "sample"),
    "prioritized": ("floats-prioritized", "sample_and_update"),
    "frames: add": ("images", "add"),
    "sample ": ("images", "sample"),
    "prioritized ": ("images-prioritized", "sample_and_update"),
}


VERSIONS = ("before", "after")


def replay_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    replay = summary()["replay"]
    columns = [replay[case][operation] for case, operation in REPLAY_COLUMNS.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    body = []
    for name in names:
        cells = [rate(column[name]["cpu_us"]["median"]) if name in column else "" for column in columns]
        body.append([f"`{name}`", *cells])
    yield from rows(["contender", *REPLAY_COLUMNS], *body)


def exactness_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    exact, fuzz = summary()["exactness"], summary()["fuzz"]
    resumes = f"{exact['resumes']} resumes in {exact['cases']} cases"
    yield from rows(
        ["check", "made", "result"],
        [
            f"{file_link(RESULTS / 'exactness.jsonl', folder)}: stop and resume",
            resumes,
            f"{exact['differences']} differences",
        ],
        *(
            [
                f"{file_link(RESULTS / f'{name}.jsonl', folder)}: SIGKILL, {device}",
                f"{kills['kills']} kills",
                f"{kills['runs_lost']} runs lost, {kills['runs_that_differ']} that differ",
            ]
            for name, device in (("kills", "CPU"), ("kills_cuda", "GPU"))
            for kills in [summary()[name]]
        ),
        [
            f"{file_link(RESULTS / 'fuzz.jsonl', folder)}: damaged and hostile files, bad settings, faulty envs",
            f"{fuzz['cases']:,} cases",
            f"{fuzz['wrong']} wrong outcomes",
        ],
    )


def packages_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """List the environments of other packages, with the seeds of a learning run in one row."""
    cases: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines(RESULTS / "packages.jsonl"):
        cases.setdefault(line["case"], []).append(line)
    yield from rows(
        ["package", "environment", "algorithm", "outcome", "resume said", "resume was"],
        *(_package_cells(lines) for lines in cases.values()),
    )


def _package_cells(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    first = lines[0]
    outcome = first["outcome"]
    if outcome == "learns":
        returns = ", ".join(f"{line['return']:.3f}" for line in lines)
        outcome = f"learns: return {returns} after {steps_text(first['steps'])} steps (seeds 0-{len(lines) - 1})"
    elif outcome == "refused":
        outcome = f"refused: {first['message'].rpartition('could not be built: ')[2].partition('(in ')[0].strip()}"
    elif "remedy" in first:
        (remedy,) = (name for name, value in first["remedy"].items() if value)
        outcome = f"refused; works with `{remedy}`"
    exact = {True: "exact", False: "not exact", None: ""}[first.get("resume_exact")]
    return [
        first["package"],
        f"`{first['env_id']}`",
        f"`{first['algo']}`",
        outcome,
        claim(first.get("resume_said", ""), first.get("resume_said_later", "")),
        exact,
    ]


def claim(said: str, later: str) -> str:
    """Shorten what `metadata.json` said before training and after a resume: `exact, 8 of 8 trials`."""
    trials = re.search(r"\d+ of \d+ trials", said)
    head = f"{said.partition(':')[0]}{f', {trials[0]}' if trials else ''}"
    return head if said.startswith("exact") == later.startswith("exact") else f"{head}; later: {later}"


def deterministic_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show updates per second with and without deterministic kernels on a GPU: medians of rounds by turns."""
    yield from rows(
        ["algorithm", "`deterministic: false`", "`deterministic: true`", "ratio"],
        *(
            [f"`{algo}`", rate(fast), rate(repeatable), f"{repeatable / fast:.2f}"]
            for algo, found in summary()["deterministic_cuda"].items()
            for fast, repeatable in [(found["fast"], found["deterministic"])]
        ),
    )


def whole_runs_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show updates per second of whole runs on a GPU, and of their updates alone."""
    yield from rows(
        ["algorithm", "environment", "device", "updates/s, whole run", "updates/s, without environments"],
        *(
            [f"`{algo}`", f"`{run['env_id']}`", run["device"], rate(run["updates_per_s"]), rate(run["alone_per_s"])]
            for algo, run in summary()["whole_runs"].items()
        ),
    )


def populations_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show member updates per second of populations on a GPU."""
    yield from rows(
        ["algorithm", "members", "updates of each", "`matmul_precision`", "device", "member updates/s", "ready, s"],
        *(
            [
                f"`{run['algo']}`",
                f"{run['members']} {run['run']}",
                f"{run['updates']:,}",
                f"`{run['matmul_precision']}`",
                run["device"],
                rate(run["member_updates_per_s"]),
                f"{run['ready_s']:.0f}",
            ]
            for run in summary()["populations"].values()
        ),
    )


def device_loop_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show environment steps per second of PPO on the tensor CartPole, beside the same work in JAX."""
    yield from rows(
        ["program", "environments", "members", "env steps/s", "ms per iteration", "ready, s"],
        *(
            [
                {"ours": "this library", "jax": "JAX"}[run["contender"]],
                f"{run['envs']:,}",
                str(run["members"]),
                rate(run["steps_per_s"]),
                f"{run['ms_per_iteration']:.1f}",
                f"{run['ready_s']:.0f}",
            ]
            for run in summary()["device_loop"].values()
        ),
    )


def tracking_cost_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show the speed of training with a tracker over that without, and the time of the thread that sends."""
    yield from rows(
        ["tracker", "speed with / without, median (range)", "processor time of sending / of training"],
        *(
            [
                f"`{tracker}`",
                f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})",
                f"{100 * found['thread_share']['median']:.2f} %",
            ]
            for tracker, found in summary()["tracking_cost"].items()
            for ratio in [found["with_over_without"]]
        ),
    )


def plot_cost_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show what a figure takes and what it costs the run, in seconds of processor time."""
    found = summary()["plot_cost"]
    figure, (low, high) = found["plot_cpu_s"], found["interval"]
    yield from rows(
        ["figures", "one takes, s", "one costs the run, s (95 % interval)", "one a minute costs the run"],
        [
            str(found["figures"]),
            f"{figure['median']:.2f} ({figure['min']:.2f} to {figure['max']:.2f})",
            f"{found['lost_s']:.3f} ({low:.3f} to {high:.3f})",
            f"{100 * found['lost_s'] / 60:.2f} % ({100 * low / 60:.2f} to {100 * high / 60:.2f} %)",
        ],
    )


def launchers_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show what became of six runs per launcher whose workers were killed."""
    yield from rows(
        ["launcher", "runs that ended", "workers killed", "training processes killed", "starts of runs", "differences"],
        *(
            [
                f"`{line['launcher']}`",
                f"{line['finished']} of {line['runs']}",
                str(line["kills"].get("worker", 0)),
                str(line["kills"].get("trainer", 0)),
                str(line["starts"]),
                str(len(line["differences"])),
            ]
            for line in read_lines(RESULTS / "launchers.jsonl")
        ),
    )


def pythons_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show with which Pythons the built wheel was installed into an empty environment and used."""
    yield from rows(
        ["Python", "wheel in an empty environment", "PyTorch", "Gymnasium", "NumPy"],
        *(
            [python, found["outcome"], *(found.get(name, "") for name in ("torch", "gymnasium", "numpy"))]
            for python, found in summary()["wheel"].items()
        ),
    )


def env_speed_table(folder: Path, env_ids: list[str]) -> Iterator[str]:
    """Show the env steps per second of processor time, by environment and backend: median, smallest and largest."""
    found = {env_id: summary()["env_speed"][env_id] for env_id in env_ids}
    backends = dict.fromkeys(backend for each in found.values() for backend in each)
    yield from rows(
        ["environment", *(f"`{backend}`" for backend in backends)],
        *([f"`{env_id}`", *(spread_text(each[backend]) for backend in backends)] for env_id, each in found.items()),
    )


def spread_text(spread: Entry) -> str:
    return f"{rate(spread['median'])} ({rate(spread['min'])} to {rate(spread['max'])})"


def end_to_end_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show what the newest full run of examples/end_to_end.py left."""
    (line,) = read_lines(RESULTS / "end_to_end.jsonl")
    yield from rows(
        ["step", "result"],
        [
            "sweep",
            f"{line['finished']} of {line['runs']} runs finished after {line['kills']} kills, {line['starts']} starts",
        ],
        *(
            [f"score of `{row['algo']}` on {row['env_id']}", f"{float(row['mean']):.1f} ± {float(row['std']):.1f}"]
            for row in line["scores"]
        ),
        ["report", f"{line['report_bytes'] / 1e6:.1f} MB with {line['films']} films"],
        [f"study of `{line['tuned']['algo']}`", f"{line['trials']} trials; {line['verdict'][-2]}"],
        ["exported policy", f"{line['policy']['pairs']} pairs equal, largest error {line['policy']['max_error']:.0e}"],
    )


def tune_search_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show what the tuner found from a learning rate of 0.1: interquartile means over ten fresh seeds."""

    def iqm(found: Entry, start: str) -> str:
        low, high = found[f"{start}interval"]
        return f"{found[f'{start}iqm']:,.1f} [{low:,.1f}, {high:,.1f}]"

    yield from rows(
        ["task", "env steps of a run", "trials", "config found", "config with the default learning rate"],
        *(
            [task, f"{found['steps']:,}", str(found["trials"]), iqm(found, ""), iqm(found, "reference_")]
            for task, found in summary()["tune_search"].items()
        ),
    )


def slow_simulator_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show the steps per second of a simulator that sleeps, by execution backend: median, smallest and largest."""
    lines = read_lines(RESULTS / "slow_simulator.jsonl")
    found = {
        line["backend"]: sorted(each["steps_per_s"] for each in lines if each["backend"] == line["backend"])
        for line in lines
    }
    yield from rows(
        ["backend", "env steps/s", "times `local_sync`"],
        *(
            [
                f"`{backend}`",
                f"{rate(median(rates))} ({rate(rates[0])} to {rate(rates[-1])})",
                f"{median(rates) / median(found['local_sync']):.1f}",
            ]
            for backend, rates in found.items()
        ),
    )


def export_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show the time of one action in onnxruntime and by `predict`, the size of the file and the largest error."""
    yield from rows(
        ["policy", "environment", "onnxruntime, us", "`predict`, us", "ratio", "file, KB", "largest error"],
        *(
            [
                f"`{line['case']}`",
                line["env_id"],
                f"{line['onnx_us']:,.0f}",
                f"{line['predict_us']:,.0f}",
                f"{line['predict_us'] / line['onnx_us']:.1f}",
                f"{line['file_kb']:,.0f}",
                f"{line['max_error']:.0e}",
            ]
            for line in read_lines(RESULTS / "export.jsonl")
        ),
    )


def compile_times_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    """Show what compiling adds to the first run on a machine: medians, in version 0.2.0 and now."""
    found = summary()["compile_times"]
    yield from rows(
        ["algorithm", "0.2.0, s", "now, s", "0.2.0, processor s", "now, processor s"],
        *(
            [
                f"`{algo}`",
                *(f"{found[f'{algo}, {version}'][unit]:.1f}" for unit in ("wall_s", "cpu_s") for version in VERSIONS),
            ]
            for algo in dict.fromkeys(name.partition(",")[0] for name in found)
        ),
    )
