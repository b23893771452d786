"""What plotting a run costs that run: its speed in phases in which a figure of it is drawn, and in which none is.

    python -m benchmarks plot_cost

A DQN trains in one process. At the start of every second phase another process draws its loss with `rl-training plot`.
Speed is environment steps per second of the trainer's processor time, which does not depend on how many processes share
the cores. A pair of phases, one with a figure and one without, says how much of that time the figure has cost the run.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command_line import add_out, result_folder
from benchmarks.machine import describe_run
from benchmarks.peers import ROOT
from benchmarks.results import Line, Session
from benchmarks.spread import spread
from rl_training import Callback, Run, RunOptions, load_config, train
from rl_training.results.statistics import summarize

KINDS = ("without", "with")
TICK_STEPS = 20
LONGEST_START = 600.0  # seconds until the trainer learns, on a busy machine


class Tick(NamedTuple):
    """A moment of the trainer: seconds of the clock that all processes share, processor time, and the step."""

    clock: float
    cpu_s: float
    step: int


class WriteTicks(Callback):
    """Writes a tick every few steps."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)

    def on_step(self, run: Run) -> None:
        if run.crossed(TICK_STEPS):
            self._file.write(json.dumps([time.monotonic(), time.process_time(), run.step]) + "\n")


def run_trainer(folder: Path) -> None:
    """Train until a signal ends it; nothing but learning and its records takes time."""
    config = load_config("dqn/cartpole").updated(
        total_timesteps=100_000_000,
        output_dir=folder / "runs",
        device="cpu",
        eval_interval=0,
        checkpoint_interval=0,
        checkpoint_minutes=0,
        tensorboard=False,
    )
    train(config, RunOptions(show_progress=False, callbacks=[WriteTicks(folder / "ticks.jsonl")]))


def read_ticks(file: Path) -> list[Tick]:
    lines = file.read_text("utf-8").split("\n")[:-1] if file.is_file() else []
    return [Tick(*json.loads(line)) for line in lines]


def work_between(ticks: Sequence[Tick], start: float, end: float) -> tuple[int, float]:
    """Return the steps and the processor time from the first to the last tick within a phase."""
    inside = [tick for tick in ticks if start <= tick.clock <= end]
    if len(inside) < 2:
        raise RuntimeError(f"{len(inside)} ticks within a phase of {end - start:.0f} s: use longer phases")
    return inside[-1].step - inside[0].step, round(inside[-1].cpu_s - inside[0].cpu_s, 4)


def lost_seconds(phases: Mapping[str, Sequence[tuple[int, float]]]) -> list[float]:
    """Return for each pair of phases the processor time that the steps beside a figure took longer than the others."""
    return [
        cpu_s - steps * alone_cpu_s / alone_steps
        for (steps, cpu_s), (alone_steps, alone_cpu_s) in zip(phases["with"], phases["without"], strict=True)
    ]


def phases(pairs: int) -> Iterator[str]:
    """Yield the kinds of the phases in turn; every other pair begins with the other kind."""
    for number in range(pairs):
        yield from KINDS if number % 2 else reversed(KINDS)


def plot(run_dir: Path, out: Path) -> float:
    """Draw one figure in a process of its own; return its processor time."""
    command = [sys.executable, "-m", "rl_training", "plot", str(run_dir), "--y", "train/loss", "--out", str(out)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(pairs: int, seconds: float) -> dict[str, object]:
    """Train in another process and plot in every second phase."""
    with tempfile.TemporaryDirectory(prefix="rl_training_plot_cost_") as root:
        folder = Path(root)
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        trainer = subprocess.Popen([sys.executable, "-m", "benchmarks.plot_cost", root], cwd=ROOT, env=environment)
        try:
            run_dir = wait_until_it_learns(trainer, folder)
            times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
            plot_cpu_s: list[float] = []
            for kind in phases(pairs):
                start = time.monotonic()
                if kind == "with":
                    plot_cpu_s.append(plot(run_dir, folder / "loss.svg"))
                time.sleep(max(0.0, start + seconds - time.monotonic()))
                times[kind].append((start, time.monotonic()))
        finally:
            trainer.send_signal(signal.SIGKILL)
            trainer.wait()
        ticks = read_ticks(folder / "ticks.jsonl")
    work = {kind: [work_between(ticks, *each) for each in times[kind]] for kind in KINDS}
    return {"seconds": seconds, "steps_and_cpu_s": work, "plot_cpu_s": [round(each, 3) for each in plot_cpu_s]}


def wait_until_it_learns(trainer: "subprocess.Popen[bytes]", folder: Path) -> Path:
    """Return the run folder once some losses are recorded: the update is compiled by then."""
    patience_ends = time.monotonic() + LONGEST_START
    while time.monotonic() < patience_ends and trainer.poll() is None:
        for file in folder.glob("runs/*/metrics.jsonl"):
            if file.read_text("utf-8").count('"loss"') >= 3:
                return file.parent
        time.sleep(0.5)
    raise RuntimeError("the trainer did not begin to learn")


def summarize_plot_cost(lines: Sequence[Line]) -> dict[str, Any]:
    """Return what a figure takes, and what it costs the run: the interquartile mean over pairs of phases."""
    (line,) = lines
    lost = summarize(lost_seconds(line["steps_and_cpu_s"]))
    figure = asdict(spread(line["plot_cpu_s"]))
    return {"figures": len(line["plot_cpu_s"]), "plot_cpu_s": figure, "lost_s": lost.iqm, "interval": lost.interval}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=40, help="phases with and without a figure (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a phase (default: %(default)s)")
    add_out(parser)


def run(args: argparse.Namespace) -> int:
    session = Session(result_folder(args) / "plot_cost.jsonl", describe_run())
    session.add(measure(args.pairs, args.seconds))
    (line,) = session.lines
    lost = summarize(lost_seconds(line["steps_and_cpu_s"]))
    print(f"a figure takes {spread(line['plot_cpu_s']):.2f} s of processor time, and costs the run", end=" ")
    print(f"{lost.iqm:.3f} s ({lost.interval[0]:.3f} to {lost.interval[1]:.3f})")
    return 0


if __name__ == "__main__":
    run_trainer(Path(sys.argv[1]))
