"""H1, H3 to H6: learn an Atari game from pixels on a GPU, through the library's own API, in several sittings.

    python -m benchmarks gpu pong --seconds 500 --run FOLDER
    python -m benchmarks gpu pong --algos dqn,rainbow_dqn,qr_dqn,iqn --seconds 540 --run FOLDER

The same command continues the runs in FOLDER where the last sitting stopped: with EnvPool at an episode boundary. The
result file is written anew after each sitting, and once more with the final evaluation when all steps are taken.
Several algorithms are processes side by side, each on its share of the cores, with its output in FOLDER/<algo>/log.txt.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

import rl_training
from benchmarks.machine import describe_run
from benchmarks.speed import write_json
from rl_training import Callback, TrainConfig, load_config
from rl_training.envs.envpool_envs import available_cores
from rl_training.experiment.json_lines import read_json_lines
from rl_training.runtime.run import Run

FINAL_EPISODES = 30
FINAL_S = 120.0  # what the final evaluation may take; with less left of a sitting, it is the next one's
TARGETS = {"pong": (18.0, 20.9)}  # H1: ">= 20.9; >= 18 by 2.5M"
WINDOW = 1_000_000  # frames whose training episodes are averaged: an iteration of Dopamine's curves


@dataclass(frozen=True, kw_only=True)
class AtariSetting:
    """What a first sitting fixes; a later one only takes `seconds`."""

    run: Path
    seconds: float
    algo: str = "ppo"
    game: str = "pong"  # of the config: <algo>/<game>_atari.yaml
    steps: int | None = None
    eval_interval: int = 500_000
    eval_episodes: int = 5
    device: str = "cuda"
    overrides: Sequence[str] = ()  # "key=value", as for `rl-training train --set`

    @property
    def result_name(self) -> str:
        return f"gpu_{self.game}.json" if self.algo == "ppo" else f"gpu_{self.game}_{self.algo}.json"


class StopAfter(Callback):
    """Interrupts the run once its time is up; on-policy between two rollouts: then no half rollout has to be kept."""

    def __init__(self, seconds: float) -> None:
        self.until = time.perf_counter() + seconds

    def on_step(self, run: Run) -> None:
        if time.perf_counter() < self.until or run.stop_reason:
            return
        if run.config.spec.loop != "on_policy" or len(run.memory) == 0:
            run.stop_reason, run.interrupted = "the sitting's time is up", True


def run_side_by_side(algos: Sequence[str], arguments: Sequence[str], folder: Path) -> int:
    """Start one process per algorithm with these arguments, wait for all, and show the end of what each said."""
    processes = {}
    shares = shares_of(sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [], len(algos))
    for algo, cores in zip(algos, shares, strict=True):
        log = folder / algo / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        pin = ["taskset", "-c", ",".join(map(str, cores))] if cores and shutil.which("taskset") else []
        command = [*pin, sys.executable, "-m", "benchmarks", "gpu", *arguments, "--algos", algo]
        with log.open("ab") as output:
            environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
        processes[algo] = (process, log)
        print(f"{algo}: process {process.pid}, {len(cores) or available_cores()} cores, {log}", flush=True)
    codes = {}
    for algo, (process, log) in processes.items():
        codes[algo] = process.wait()
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        print(f"--- {algo}: exit code {codes[algo]}\n{tail}", flush=True)
    return max(codes.values())


def shares_of(cores: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Deal the cores out evenly, neighbours together; with fewer cores than parts nobody is kept to any."""
    if len(cores) < parts:
        return [()] * parts
    return [cores[len(cores) * part // parts : len(cores) * (part + 1) // parts] for part in range(parts)]


def run_atari(setting: AtariSetting, out: Path) -> int:
    if setting.device.startswith("cuda") and not torch.cuda.is_available():
        print("error: this benchmark needs a CUDA device, and PyTorch sees none", file=sys.stderr)
        return 2
    started = time.perf_counter()
    agent, folder = open_agent(setting)
    finished = folder is not None and (folder / "result.json").is_file()
    if not finished:
        result = agent.learn()
        folder, finished = result.run_dir, not result.interrupted
    assert folder is not None
    results = {**describe_run(), **collect(folder, setting), "finished": finished, "final": None}
    results["sitting_s"] = time.perf_counter() - started
    write_json(out, results)
    if finished and setting.seconds - results["sitting_s"] > FINAL_S:
        # Seeds of their own: the run's own evaluations have played on its first ones.
        episodes = agent.evaluate(seeds=range(1_000_000, 1_000_000 + FINAL_EPISODES))
        returns = [episode.ret for episode in episodes]
        results["final"] = {"mean_return": fmean(returns), "returns": returns}
        write_json(out, results)
    print_curve(results)
    print(f"written: {out}")
    return 0


def open_agent(setting: AtariSetting) -> tuple[Any, Path | None]:
    """Take up the run below `setting.run`, or set a new one up there."""
    callbacks = [StopAfter(setting.seconds)]
    runs = sorted(path.parent.parent for path in setting.run.glob("*/checkpoints/latest"))
    if runs:
        config = load_config(runs[-1] / "config.yaml")
        return agent_class(config).load(runs[-1], callbacks=callbacks), runs[-1]
    config = load_config(f"{setting.algo}/{setting.game}_atari.yaml", setting.overrides)
    on_policy = config.spec.loop == "on_policy"
    config = config.updated(
        device=setting.device,
        execution_backend="envpool",
        eval_interval=setting.eval_interval,
        eval_episodes=setting.eval_episodes,
        checkpoint_interval=setting.eval_interval if on_policy else 0,  # a replay memory is gigabytes: once a sitting
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
    """Put together what the run's own logs say."""
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
        "benchmark": f"gpu {setting.game}",
        "gpu": torch.cuda.get_device_name() if setting.device.startswith("cuda") else None,
        "versions": {
            **metadata["starts"][-1]["versions"],
            "torch": torch.__version__,
            **{name: version(name) for name in ("envpool", "opencv-python-headless")},
        },
        "config": config.model_dump(mode="json", exclude={"output_dir"}),
        "step": last["step"],
        "gradient_step": last["gradient_step"],
        "wall_s": last["wall_s"],  # of training and evaluating, over all sittings; starting up is not in it
        "steps_per_s": last["step"] / last["wall_s"] if metrics else None,
        # The median leaves the intervals out in which an evaluation was played.
        "training_steps_per_s": median(record["steps_per_s"] for record in metrics) if metrics else None,
        "updates_per_s": last["gradient_step"] / last["wall_s"] if metrics else None,
        "training_updates_per_s": median_rate(metrics, "gradient_step"),
        "training_curve": training_curve(
            read_json_lines(folder / "episodes.jsonl"), metrics, config.env_kwargs.get("frame_skip", 4)
        ),
        "first_evaluation_at": {f"{target:g}": first_at(curve, target) for target in TARGETS.get(setting.game, ())},
        "curve": curve,
        "sittings": [{"started": start["started"], "from_step": start["step"]} for start in metadata["starts"]],
        "resumes": metadata["starts"][-1]["resume"],
    }


def training_curve(
    episodes: Iterable[dict[str, Any]], metrics: Sequence[dict[str, Any]], frame_skip: int
) -> list[dict[str, Any]]:
    """Average the returns of the training episodes that ended within each million frames."""
    window = WINDOW // frame_skip
    curve = []
    for number, group in groupby(episodes, key=lambda record: (record["step"] - 1) // window):
        returns = [record["return"] for record in group]
        end = (number + 1) * window
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
    """Give the median per second over the log's intervals, most of which hold no evaluation."""
    rates = [
        (after[name] - before[name]) / (after["wall_s"] - before["wall_s"])
        for before, after in pairwise(metrics)
        if after["wall_s"] > before["wall_s"]
    ]
    return median(rates) if rates else None


def wall_at(metrics: Iterable[dict[str, Any]], step: int) -> float | None:
    """Give the seconds at the last record up to `step`."""
    return max((record["wall_s"] for record in metrics if record["step"] <= step), default=None)


def first_at(curve: Iterable[dict[str, Any]], target: float) -> dict[str, Any] | None:
    for point in curve:
        if point["mean_return"] >= target:
            return {"step": point["step"], "wall_s": point["wall_s"]}
    return None


def print_curve(results: dict[str, Any]) -> None:
    for point in results["training_curve"]:
        frames = f"{point['frames'] / 1e6:g}M frames{'' if point['complete'] else ' (not yet)'}"
        print(f"{frames:>24} {point['episodes']:6} training episodes {point['mean_return']:8.1f}")
    for point in results["curve"]:
        print(f"{point['step']:12,} steps {point['wall_s'] or 0:8.0f} s {point['mean_return']:8.1f}")
    rates = f"{results['steps_per_s'] or 0:,.0f} steps/s with evaluations, {results['training_steps_per_s'] or 0:,.0f}"
    print(f"{results['step']:12,} steps {results['wall_s']:8.0f} s: {rates} without")
    if results["final"]:
        print(f"final, {len(results['final']['returns'])} episodes: {results['final']['mean_return']:.2f}")
    else:
        left = "the final evaluation is left" if results["finished"] else "not at its end"
        print(f"{left}: give the same command again")
