"""H1: PPO learns Pong from pixels on a GPU, through the library's own API, in as many sittings as the machine allows.

    python -m benchmarks gpu pong --seconds 500 --run FOLDER

The same command continues the run in FOLDER where the last sitting stopped: with EnvPool at an episode boundary. The
result file is written anew after each sitting, and once more with the final evaluation when all steps are taken.
"""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

import rl_training
from benchmarks.machine import describe_run
from benchmarks.speed import write_json
from rl_training import Callback, load_config
from rl_training.experiment.metrics import read_json_lines
from rl_training.runtime.run import Run

CONFIG = "ppo/pong_atari.yaml"
FINAL_EPISODES = 30
FINAL_S = 120.0  # what the final evaluation may take; with less left of a sitting, it is the next one's
TARGETS = (18.0, 20.9)  # ">= 20.9; >= 18 by 2.5M"


@dataclass(frozen=True, kw_only=True)
class PongSetting:
    """What a first sitting fixes; a later one only takes `seconds`."""

    run: Path
    seconds: float
    steps: int | None = None
    eval_interval: int = 500_000
    eval_episodes: int = 5
    device: str = "cuda"
    overrides: Sequence[str] = ()  # "key=value", as for `rl-training train --set`


class StopAfter(Callback):
    """Interrupts the run once its time is up, between two rollouts: then no half rollout has to be kept."""

    def __init__(self, seconds: float) -> None:
        self.until = time.perf_counter() + seconds

    def on_step(self, run: Run) -> None:
        if time.perf_counter() > self.until and len(run.memory) == 0 and not run.stop_reason:
            run.stop_reason, run.interrupted = "the sitting's time is up", True


def run_pong(setting: PongSetting, out: Path) -> int:
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


def open_agent(setting: PongSetting) -> tuple[Any, Path | None]:
    """Take up the run below `setting.run`, or set a new one up there."""
    callbacks = [StopAfter(setting.seconds)]
    runs = sorted(path.parent.parent for path in setting.run.glob("*/checkpoints/latest"))
    if runs:
        return rl_training.PPO.load(runs[-1], callbacks=callbacks), runs[-1]
    config = load_config(CONFIG, setting.overrides).updated(
        device=setting.device,
        execution_backend="envpool",
        eval_interval=setting.eval_interval,
        eval_episodes=setting.eval_episodes,
        checkpoint_interval=setting.eval_interval,
        keep_checkpoints=1,
        tensorboard=False,
        output_dir=setting.run,
    )
    if setting.steps:
        config = config.updated(total_timesteps=setting.steps)
    return rl_training.PPO(config, callbacks=callbacks), None


def collect(folder: Path, setting: PongSetting) -> dict[str, Any]:
    """Put together what the run's own logs say."""
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    metrics = list(read_json_lines(folder / "metrics.jsonl"))
    evaluations = list(read_json_lines(folder / "eval.jsonl"))
    curve = [
        {"step": step, "wall_s": wall_at(metrics, step), "mean_return": fmean(returns), "returns": returns}
        for step, returns in (
            (step, [record["return"] for record in records])
            for step, records in groupby(evaluations, key=lambda record: record["step"])
        )
    ]
    last = metrics[-1] if metrics else {"step": 0, "gradient_step": 0, "wall_s": 0.0}
    return {
        "benchmark": "gpu pong",
        "gpu": torch.cuda.get_device_name() if setting.device.startswith("cuda") else None,
        "versions": {
            **metadata["starts"][-1]["versions"],
            "torch": torch.__version__,
            **{name: version(name) for name in ("envpool", "opencv-python-headless")},
        },
        "config": load_config(folder / "config.yaml").model_dump(mode="json", exclude={"output_dir"}),
        "step": last["step"],
        "gradient_step": last["gradient_step"],
        "wall_s": last["wall_s"],  # of training and evaluating, over all sittings; starting up is not in it
        "steps_per_s": last["step"] / last["wall_s"] if metrics else None,
        # The median leaves the intervals out in which an evaluation was played.
        "training_steps_per_s": median(record["steps_per_s"] for record in metrics) if metrics else None,
        "first_evaluation_at": {f"{target:g}": first_at(curve, target) for target in TARGETS},
        "curve": curve,
        "sittings": [{"started": start["started"], "from_step": start["step"]} for start in metadata["starts"]],
        "resumes": metadata["starts"][-1]["resume"],
    }


def wall_at(metrics: Iterable[dict[str, Any]], step: int) -> float | None:
    """Give the seconds at the last record up to `step`."""
    return max((record["wall_s"] for record in metrics if record["step"] <= step), default=None)


def first_at(curve: Iterable[dict[str, Any]], target: float) -> dict[str, Any] | None:
    for point in curve:
        if point["mean_return"] >= target:
            return {"step": point["step"], "wall_s": point["wall_s"]}
    return None


def print_curve(results: dict[str, Any]) -> None:
    for point in results["curve"]:
        print(f"{point['step']:12,} steps {point['wall_s'] or 0:8.0f} s {point['mean_return']:8.1f}")
    rates = f"{results['steps_per_s'] or 0:,.0f} steps/s with evaluations, {results['training_steps_per_s'] or 0:,.0f}"
    print(f"{results['step']:12,} steps {results['wall_s']:8.0f} s: {rates} without")
    if results["final"]:
        print(f"final, {len(results['final']['returns'])} episodes: {results['final']['mean_return']:.2f}")
    else:
        left = "the final evaluation is left" if results["finished"] else "not at its end"
        print(f"{left}: give the same command again")
