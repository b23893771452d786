"""Speed: the same training run, with the same hyperparameters, by every contender in turn, on one core.

Contenders alternate (A B C A B C ...), so that a slow spell of the machine hits all of them. Two figures per run: env
steps/s over the whole of `learn()`, and over its steady part, which starts 500 steps after learning does.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.launch import DQN_CONTENDERS, Contender, ContenderError, run_contender
from benchmarks.machine import describe_run
from benchmarks.spread import Spread, spread

REFERENCE = "sb3"


@dataclass(frozen=True, kw_only=True)
class SpeedTask:
    env_id: str
    steps: int
    hparams: dict[str, Any]
    contenders: dict[str, Contender]


TASKS = {
    "dqn": SpeedTask(
        env_id="CartPole-v1",
        steps=50_000,
        hparams={
            "learning_starts": 1_000,
            "train_frequency": 1,
            "gradient_steps": 1,
            "batch_size": 128,
            "buffer_capacity": 10_000,
            "hidden_sizes": [120, 84],
            "target_update_interval": 500,
            "learning_rate": 2.5e-4,
            "max_grad_norm": 10.0,
            "gamma": 0.99,
            "epsilon_start": 1.0,
            "epsilon_end": 0.05,
            "exploration_fraction": 0.5,
        },
        contenders=DQN_CONTENDERS,
    ),
}


class CompiledStepCache:
    """Folder of our compiled steps: emptied before a cold run, kept for the warm runs that follow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warm = False

    def environ(self) -> dict[str, str]:
        return {
            "RL_TRAINING_CACHE": str(self.folder / "rl_training"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
        }

    def empty(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)


def measure(
    contender: Contender, setting: dict[str, Any], cache: CompiledStepCache, core: int | None
) -> dict[str, Any]:
    """Run a contender once; for ours, see to it that the cache is empty or filled, as the name says."""
    if contender.script != "ours.py":
        return run_contender(contender, setting, core=core)
    if contender.name == "ours-cold":
        cache.empty()
    elif not cache.warm:
        print("  ours        filling the cache of compiled steps (not measured)", flush=True)
        run_contender(contender, setting, core=core, environ=cache.environ())
    result = run_contender(contender, setting, core=core, environ=cache.environ())
    cache.warm = True
    return result


def run_speed(
    task_name: str,
    *,
    contenders: Sequence[str],
    repeats: int,
    steps: int | None,
    acceleration: str,
    core: int | None,
    out: Path,
) -> bool:
    """Measure, print, and write `out`, anew after every measurement. Give whether every contender ran."""
    task = TASKS[task_name]
    setting = {
        "mode": "speed",
        "env_id": task.env_id,
        "steps": steps or task.steps,
        "seed": 0,
        "threads": 1,
        "hparams": task.hparams,
        "acceleration": acceleration,
        "eval_seeds": list(range(1_000_000, 1_000_010)),
    }
    results: dict[str, Any] = {
        "benchmark": f"speed {task_name}",
        **describe_run(),
        "setting": setting,
        "core": core,
        "repeats": repeats,
        "summary": {},
        "failures": {},
        "time_per_step_us": None,
        "measurements": [],
    }
    print(f"speed {task_name}: {task.env_id}, {setting['steps']} steps, {repeats} repeats, core {core}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rl-training-speed-") as temporary:
        cache = CompiledStepCache(Path(temporary) / "cache")
        for repeat in range(repeats):
            for name in contenders:
                if name in results["failures"]:
                    continue
                try:
                    result = measure(task.contenders[name], {**setting, "seed": repeat}, cache, core)
                except ContenderError as error:
                    results["failures"][name] = str(error)
                    print(f"  {name:11} FAILED: {error}", flush=True)
                    continue
                del result["setting"]  # the same for all but for the seed, which is the number of the repeat
                results["measurements"].append({"contender": name, "repeat": repeat, **result})
                print(f"  {name:11} {_one_line(result)}", flush=True)
                results["summary"] = summarize_speed(results["measurements"])
                write_json(out, results)
        if "ours" in contenders and "ours" not in results["failures"]:
            profile_setting = {**setting, "mode": "profile"}
            profile = run_contender(task.contenders["ours"], profile_setting, core=core, environ=cache.environ())
            results["time_per_step_us"] = profile["time_per_step_us"]
    write_json(out, results)
    print_tables(results)
    print(f"written: {out}")
    return not results["failures"]


def _one_line(result: dict[str, Any]) -> str:
    return (
        f"{result['steps_per_s']:7.0f} steps/s whole, {result['steady_steps_per_s']:7.0f} steady, "
        f"{result['learn_s']:6.1f} s, compile {result['compile_s']:5.1f} s, "
        f"{100 * result['share_of_core']:3.0f} % of the core"
    )


FIGURES = ("steps_per_s", "steady_steps_per_s", "learn_s", "compile_s", "share_of_core")


def summarize_speed(measurements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per contender: median and spread of each figure, and the ratios to the reference of the same repeat."""
    summary: dict[str, Any] = {}
    reference = {row["repeat"]: row for row in measurements if row["contender"] == REFERENCE}
    for name in dict.fromkeys(row["contender"] for row in measurements):
        rows = [row for row in measurements if row["contender"] == name]
        figures = {figure: asdict(spread([row[figure] for row in rows])) for figure in FIGURES}
        paired = [row for row in rows if row["repeat"] in reference]
        for figure in ("steps_per_s", "steady_steps_per_s") if paired else ():
            ratios = [row[figure] / reference[row["repeat"]][figure] for row in paired]
            figures[f"{figure}_over_{REFERENCE}"] = asdict(spread(ratios))
        summary[name] = {"versions": rows[0]["versions"], **figures}
    return summary


def print_tables(results: dict[str, Any]) -> None:
    titles = ("steps/s, whole learn()", f"whole / {REFERENCE}", "steps/s, steady", f"steady / {REFERENCE}", "compile s")
    print("\n" + f"{'contender':11}" + "".join(f"{title:>24}" for title in titles))
    ranked = sorted(results["summary"].items(), key=lambda item: -item[1]["steady_steps_per_s"]["median"])
    for name, figures in ranked:
        columns = (
            ("steps_per_s", ".0f"),
            (f"steps_per_s_over_{REFERENCE}", ".2f"),
            ("steady_steps_per_s", ".0f"),
            (f"steady_steps_per_s_over_{REFERENCE}", ".2f"),
            ("compile_s", ".1f"),
        )
        cells = (format(Spread(**figures[key]), spec) if key in figures else "-" for key, spec in columns)
        print(f"{name:11}" + "".join(f"{cell:>24}" for cell in cells))
    parts = results["time_per_step_us"]
    if parts:
        total = sum(parts.values())
        print("\nours, time per env step (a separate, instrumented run)")
        for part, microseconds in parts.items():
            print(f"  {part:8} {microseconds:8.1f} us {100 * microseconds / total:5.1f} %")
        print(f"  {'all':8} {total:8.1f} us")


def write_json(path: Path, value: Any) -> None:
    """Write beside the file, then rename: an interrupted benchmark leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)
