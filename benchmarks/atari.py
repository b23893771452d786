"""Train on an Atari game from pixels on a GPU, through the library's own API, in several sittings.

    python -m benchmarks atari ppo-pong --seconds 500 --run FOLDER
    python -m benchmarks atari bbf-boxing bbf-pong --seeds 0-1 --seconds 540 --run FOLDER

The same command continues the runs in FOLDER where the last sitting stopped; with EnvPool, at an episode boundary. The
line of a run is replaced after each sitting, and again after the final evaluation, once all steps are taken. Several
rows and seeds run in parallel processes, each with its share of the cores and its log in FOLDER/<row>/seed<seed>.txt.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

import rl_training
from benchmarks import command_line
from benchmarks.launch import KEPT_RUNS
from benchmarks.machine import describe_run
from benchmarks.results import Line, read_lines, to_line, write_text
from benchmarks.rows.atari import ATARI_ROWS, FRAME_SKIP, AtariRow
from rl_training import TrainConfig, load_config
from rl_training.envs.envpool_envs import available_cores
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.run_dir import locked_file
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run

FINAL_EPISODE_S = 4.0  # reserved for each final episode; with less time left, the next sitting plays them


@dataclass(frozen=True, kw_only=True)
class AtariSetting:
    """What the first sitting fixes; a later one takes only `seconds`."""

    name: str
    run: Path
    seconds: float
    seed: int = 0
    steps: int | None = None
    eval_interval: int | None = None  # None: the row's
    eval_episodes: int = 5
    device: str = "cuda"
    overrides: Sequence[str] = ()  # "key=value", as for `rl-training train --set`

    @property
    def row(self) -> AtariRow:
        return ATARI_ROWS[self.name]


class StopAfter(Callback):
    """Interrupt the run when its time is up; on-policy runs between two rollouts, so that no partial one is stored."""

    def __init__(self, seconds: float) -> None:
        self.until = time.perf_counter() + seconds

    def on_step(self, run: Run) -> None:
        if time.perf_counter() < self.until or run.stop_reason:
            return
        if run.config.spec.loop != "on_policy" or len(run.memory) == 0:
            run.stop_reason, run.interrupted = "the sitting's time is up", True


def run_side_by_side(cells: Sequence[tuple[str, int]], options: Sequence[str], folder: Path) -> int:
    """Start one process per row and seed with these options, wait for all, and print the end of each log."""
    processes = {}
    shares = shares_of(sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [], len(cells))
    for (name, seed), cores in zip(cells, shares, strict=True):
        log = folder / name / f"seed{seed}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        pin = ["taskset", "-c", ",".join(map(str, cores))] if cores and shutil.which("taskset") else []
        command = [*pin, sys.executable, "-m", "benchmarks", "atari", name, *options, "--seeds", str(seed)]
        with log.open("ab") as output:
            environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
        processes[f"{name} seed {seed}"] = (process, log)
        print(f"{name} seed {seed}: process {process.pid}, {len(cores) or available_cores()} cores, {log}", flush=True)
    codes = {}
    for name, (process, log) in processes.items():
        codes[name] = process.wait()
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        print(f"--- {name}: exit code {codes[name]}\n{tail}", flush=True)
    return max(codes.values())


def shares_of(cores: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Split the cores evenly, neighbours together; with fewer cores than parts, no part is pinned."""
    if len(cores) < parts:
        return [()] * parts
    return [cores[len(cores) * part // parts : len(cores) * (part + 1) // parts] for part in range(parts)]


def run_atari(setting: AtariSetting, out: Path) -> int:
    if setting.device.startswith("cuda") and not torch.cuda.is_available():
        print("error: this benchmark needs a CUDA device, and PyTorch finds none", file=sys.stderr)
        return 2
    started = time.perf_counter()
    agent, folder = open_agent(setting)
    finished = folder is not None and (folder / "result.json").is_file()
    if not finished:
        result = agent.learn()
        folder, finished = result.run_dir, not result.interrupted
    assert folder is not None
    results = {**collect(folder, setting), "finished": finished, "final": None, **describe_run()}
    results["sitting_s"] = time.perf_counter() - started
    write_run(out, results)
    final_episodes = setting.row.final_episodes
    if finished and setting.seconds - results["sitting_s"] > FINAL_EPISODE_S * final_episodes:
        # Other seeds than those of the evaluations during training.
        episodes = agent.evaluate(seeds=range(1_000_000, 1_000_000 + final_episodes))
        returns = [episode.ret for episode in episodes]
        results["final"] = {"mean_return": fmean(returns), "returns": returns}
        write_run(out, results)
    print_curve(results)
    print(f"written: {out}")
    return 0


def write_run(out: Path, results: Line) -> None:
    """Replace the line of this run, which its seed and its first sitting identify; keep those of other runs."""
    line = {**results, "training_curve": columns(results["training_curve"]), "curve": columns(results["curve"])}
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked_file(out.parent / ".lock", wait=True):  # the seeds of a row share the file
        others = [other for other in read_lines(out) if identity(other) != identity(line)]
        write_text(out, "".join(to_line(each) + "\n" for each in [*others, line]))


def identity(line: Line) -> tuple[Any, ...]:
    return line["seed"], line["sittings"][0]


def columns(records: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Turn records with the same keys into one list per key."""
    return {key: [record[key] for record in records] for key in (records[0] if records else ())}


def open_agent(setting: AtariSetting) -> tuple[Any, Path | None]:
    """Continue the run of this seed in `setting.run`, or set up a new one there."""
    callbacks = [StopAfter(setting.seconds)]
    runs = sorted(path.parent.parent for path in setting.run.glob(f"*__seed{setting.seed}__*/checkpoints/latest"))
    if runs:
        config = load_config(runs[-1] / "config.yaml")
        return agent_class(config).load(runs[-1], callbacks=callbacks), runs[-1]
    row = setting.row
    config = load_config(row.config, [f"env_id={row.env_id}", *setting.overrides])
    on_policy = config.spec.loop == "on_policy"
    eval_interval = setting.eval_interval or row.eval_interval
    config = config.updated(
        seed=setting.seed,
        device=setting.device,
        execution_backend=row.execution_backend,
        eval_interval=eval_interval,
        eval_episodes=setting.eval_episodes,
        eval_envs=available_cores(),
        checkpoint_interval=eval_interval if on_policy else 0,  # a replay memory takes gigabytes: once per sitting
        keep_checkpoints=1,
        tensorboard=False,
        output_dir=setting.run,
    )
    if setting.steps:
        config = config.updated(total_timesteps=setting.steps)
    return agent_class(config)(config, callbacks=callbacks), None


def agent_class(config: TrainConfig) -> Any:
    return getattr(rl_training, config.spec.class_name)


def collect(folder: Path, setting: AtariSetting) -> dict[str, Any]:
    """Collect the results from the logs of the run."""
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    metrics = list(read_json_lines(folder / "metrics.jsonl"))
    evaluations = list(read_json_lines(folder / "eval.jsonl"))
    config = load_config(folder / "config.yaml")
    curve = [
        {"step": step, "wall_s": wall_at(metrics, step), "mean_return": fmean(returns), "returns": returns}
        for step, returns in (
            (step, [record["return"] for record in records])
            for step, records in groupby(evaluations, key=lambda record: record["step"])
        )
    ]
    last = metrics[-1] if metrics else {"step": 0, "gradient_step": 0, "wall_s": 0.0}
    return {
        "row": setting.name,
        "contender": "ours",
        "seed": config.seed,
        "steps": config.total_timesteps,
        "gpu": torch.cuda.get_device_name() if setting.device.startswith("cuda") else None,
        "versions": {
            **metadata["starts"][-1]["versions"],
            "torch": torch.__version__,
            **installed("envpool", "opencv-python-headless"),
        },
        "config": config.model_dump(mode="json", exclude={"output_dir"}),
        "step": last["step"],
        "gradient_step": last["gradient_step"],
        "wall_s": last["wall_s"],  # training and evaluation over all sittings, without start-up
        "steps_per_s": last["step"] / last["wall_s"] if metrics else None,
        # The median is not affected by the intervals with an evaluation.
        "training_steps_per_s": median(record["steps_per_s"] for record in metrics) if metrics else None,
        "updates_per_s": last["gradient_step"] / last["wall_s"] if metrics else None,
        "training_updates_per_s": median_rate(metrics, "gradient_step"),
        "training_curve": training_curve(
            read_json_lines(folder / "episodes.jsonl"),
            metrics,
            config.env_kwargs.get("frame_skip", FRAME_SKIP),
            setting.row.window,
        ),
        "first_evaluation_at": {f"{target:g}": first_at(curve, target) for target in setting.row.evaluations},
        "curve": curve,
        "sittings": [{"started": start["started"], "from_step": start["step"]} for start in metadata["starts"]],
        "resumes": metadata["starts"][-1]["resume"],
    }


def installed(*packages: str) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def training_curve(
    episodes: Iterable[dict[str, Any]], metrics: Sequence[dict[str, Any]], frame_skip: int, window: int
) -> list[dict[str, Any]]:
    """Average the returns of the training episodes that ended within each `window` of frames."""
    steps = window // frame_skip
    curve = []
    for number, group in groupby(episodes, key=lambda record: (record["step"] - 1) // steps):
        returns = [record["return"] for record in group]
        end = (number + 1) * steps
        complete = bool(metrics) and metrics[-1]["step"] >= end
        curve.append(
            {
                "frames": end * frame_skip,
                "complete": complete,
                "wall_s": wall_at(metrics, end),
                "episodes": len(returns),
                "mean_return": fmean(returns),
            }
        )
    return curve


def median_rate(metrics: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the median rate per second over the log intervals, most of which contain no evaluation."""
    rates = [
        (after[name] - before[name]) / (after["wall_s"] - before["wall_s"])
        for before, after in pairwise(metrics)
        if after["wall_s"] > before["wall_s"]
    ]
    return median(rates) if rates else None


def wall_at(metrics: Iterable[dict[str, Any]], step: int) -> float | None:
    """Return the wall time of the last record up to `step`."""
    return max((record["wall_s"] for record in metrics if record["step"] <= step), default=None)


def first_at(curve: Iterable[dict[str, Any]], target: float) -> dict[str, Any] | None:
    for point in curve:
        if point["mean_return"] >= target:
            return {"step": point["step"], "wall_s": point["wall_s"]}
    return None


def print_curve(results: dict[str, Any]) -> None:
    for point in results["training_curve"]:
        frames = f"{point['frames'] / 1e6:g}M frames{'' if point['complete'] else ' (incomplete)'}"
        print(f"{frames:>24} {point['episodes']:6} training episodes {point['mean_return']:8.1f}")
    for point in results["curve"]:
        print(f"{point['step']:12,} steps {point['wall_s'] or 0:8.0f} s {point['mean_return']:8.1f}")
    rates = f"{results['steps_per_s'] or 0:,.0f} steps/s with evaluations, {results['training_steps_per_s'] or 0:,.0f}"
    print(f"{results['step']:12,} steps {results['wall_s']:8.0f} s: {rates} without")
    if results["final"]:
        print(f"final, {len(results['final']['returns'])} episodes: {results['final']['mean_return']:.2f}")
    else:
        left = "the final evaluation is missing" if results["finished"] else "unfinished"
        print(f"{left}: run the same command again")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="ROW",
        help=f"of {', '.join(ATARI_ROWS)}; several run in parallel (default: ppo-pong)",
    )
    parser.add_argument(
        "--run", type=Path, help="folder of the runs, which are continued (default: runs/benchmarks/atari)"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop and save after this time")
    parser.add_argument("--steps", type=int, help="environment steps of the whole run, instead of the config's")
    parser.add_argument("--seeds", type=command_line.parse_seeds, default=[0], help="0-4 or 0,2,5 (default: 0)")
    parser.add_argument("--eval-interval", type=int, help="environment steps (default: the row's own)")
    parser.add_argument("--eval-episodes", type=int, default=5, help="per evaluation (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="(default: %(default)s)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the config; can be repeated"
    )
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    names = command_line.check_names(args.names or ["ppo-pong"], list(ATARI_ROWS), "row")
    folder = args.run or KEPT_RUNS / "atari"
    for change in args.set:
        name, _, value = change.partition("=")
        if name.strip() == "seed":
            raise command_line.UsageError(f"--set {change}: give --seeds {value}, by which the run is found again")
    cells = [(name, seed) for name in names for seed in args.seeds]
    if len(cells) > 1:
        return run_side_by_side(cells, [part for part in sys.argv[2:] if part not in names], folder)
    ((name, seed),) = cells
    setting = AtariSetting(
        name=name,
        run=folder / name,
        seconds=args.seconds,
        seed=seed,
        steps=args.steps,
        eval_interval=args.eval_interval,
        eval_episodes=args.eval_episodes,
        device=args.device,
        overrides=args.set,
    )
    return run_atari(setting, command_line.result_folder(args) / "atari" / f"{name}.jsonl")
