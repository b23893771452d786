"""Tables of training speed: beside other libraries, on a GPU, of populations."""

from collections.abc import Iterator
from pathlib import Path

from result_cells import (
    RESULTS,
    Entry,
    file_link,
    library,
    overview_text,
    percent,
    rate,
    read_lines,
    rows,
    spread_text,
    summary,
)

PRODUCTS = "matrix products alone"  # an entry of the speed summaries that is no contender


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
