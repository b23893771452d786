"""Tables of what one part costs: replay, environments, trackers, figures, exported policies, compilation."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from result_cells import RESULTS, rate, read_lines, rows, spread_text, summary

REPLAY_COLUMNS = {
    "floats: add": ("floats", "add"),
    "sample": ("floats", "sample"),
    "prioritized": ("floats-prioritized", "sample_and_update"),
    "frames: add": ("images", "add"),
    "sample ": ("images", "sample"),
    "prioritized ": ("images-prioritized", "sample_and_update"),
}


def replay_table(folder: Path, arguments: list[str]) -> Iterator[str]:
    replay = summary()["replay"]
    columns = [replay[case][operation] for case, operation in REPLAY_COLUMNS.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    body = []
    for name in names:
        cells = [rate(column[name]["cpu_us"]["median"]) if name in column else "" for column in columns]
        body.append([f"`{name}`", *cells])
    yield from rows(["contender", *REPLAY_COLUMNS], *body)


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


def env_speed_table(folder: Path, env_ids: list[str]) -> Iterator[str]:
    """Show the env steps per second of processor time, by environment and backend: median, smallest and largest."""
    found = {env_id: summary()["env_speed"][env_id] for env_id in env_ids}
    backends = dict.fromkeys(backend for each in found.values() for backend in each)
    yield from rows(
        ["environment", *(f"`{backend}`" for backend in backends)],
        *([f"`{env_id}`", *(spread_text(each[backend]) for backend in backends)] for env_id, each in found.items()),
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


VERSIONS = ("before", "after")


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
