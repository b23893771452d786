"""Speed: the same training run, with the same hyperparameters, by every contender in turn, on one core per thread.

Contenders alternate (A B C A B C ...), so that a slow phase of the machine affects all of them. Two figures per run:
environment steps/s over the whole of `learn()`, and over its steady part, which starts some steps after learning does
(500 unless the task says otherwise), or after 4 rollouts. Where a dataset is learned from, steps are updates.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import command_line
from benchmarks.launch import FLOOR, Contender, ContenderError, run_contender
from benchmarks.machine import describe_run
from benchmarks.measurements import summarize_speed
from benchmarks.results import Line, Session, named
from benchmarks.speed_tasks import TASKS, SpeedTask
from benchmarks.spread import Spread

PROFILED = ("ours", "ours-envpool")


def write_random_rows(file: Path, rows: int) -> None:
    """Write random numbers of HalfCheetah's sizes, in episodes of its length, to measure speed with."""
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(rows + 1, 17)).astype(np.float32)
    np.savez(
        file,
        observations=observations[:-1],
        actions=rng.uniform(-1.0, 1.0, (rows, 6)).astype(np.float32),
        rewards=rng.normal(size=rows).astype(np.float32),
        next_observations=observations[1:],
        terminations=np.zeros(rows, np.bool_),
        truncations=np.arange(1, rows + 1) % 1_000 == 0,
    )


class CompiledSteps:
    """The caches of our compiled steps: one is emptied before every cold run, the other is shared by the warm runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.filled: set[str] = set()  # names of the contenders that have filled it

    def environ(self, contender: Contender) -> dict[str, str]:
        folder = self.folder / ("cold" if contender.name == "ours-cold" else "warm")
        return {
            "RL_TRAINING_CACHE": str(folder / "rl_training"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }

    def empty(self) -> None:
        shutil.rmtree(self.folder / "cold", ignore_errors=True)


def cores_for(contender: Contender, first: int | None) -> list[int]:
    """Return the cores to run on: one per thread, starting with `first`."""
    if first is None:
        return []
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [first]
    return [first, *(core for core in available if core != first)][: contender.setting.get("threads", 1)]


def measure(contender: Contender, setting: dict[str, Any], compiled: CompiledSteps, core: int | None) -> dict[str, Any]:
    """Run a contender once. For ours, the cache is emptied or filled first, as the name says."""
    cores = cores_for(contender, core)
    if contender.script != "ours.py":
        return run_contender(contender, setting, cores=cores)
    environ = compiled.environ(contender)
    if contender.name == "ours-cold":
        compiled.empty()
    elif contender.name not in compiled.filled:
        print(f"  {contender.name:15} filling the cache of compiled steps (not measured)", flush=True)
        run_contender(contender, setting, cores=cores, environ=environ)
        compiled.filled.add(contender.name)
    return run_contender(contender, setting, cores=cores, environ=environ)


def build_setting(task: SpeedTask, steps: int, acceleration: str) -> dict[str, Any]:
    return {
        "mode": "speed",
        "algo": task.algo,
        "env_id": task.env_id,
        "num_envs": task.num_envs,
        "steps": task.whole(steps),
        "seed": 0,
        "threads": 1,
        "hparams": task.hparams,
        "acceleration": acceleration,
        "warm_up": task.warm_up,
        # A policy trained on random numbers is not worth evaluating.
        "eval_seeds": [] if task.dataset_rows else list(range(1_000_000, 1_000_010)),
    }


def run_speed(
    name: str, *, contenders: Sequence[str], repeats: int, setting: dict[str, Any], core: int | None, out: Path
) -> bool:
    """Measure, print, and write `out` after every measurement. Return whether every contender ran."""
    task = TASKS[name]
    shared = {key: value for key, value in setting.items() if key not in ("seed", "threads")}
    session = Session(out, {"task": name, **describe_run(), "setting": shared, "core": core, "note": task.note})
    print(f"speed {name}: {task.env_id}, {setting['steps']} steps, {repeats} repeats, core {core}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rl-training-speed-") as temporary:
        compiled = CompiledSteps(Path(temporary))
        if task.dataset_rows:
            setting = {**setting, "dataset": str(Path(temporary) / "random.npz")}
            write_random_rows(Path(setting["dataset"]), task.dataset_rows)
        for repeat in range(repeats):
            for contender in contenders:
                if not named(session.lines, measurement="failure", contender=contender):
                    seeded = {**setting, "seed": repeat}
                    add_run(session, task.contenders[contender], seeded, repeat, compiled, core)
        for contender in PROFILED:
            if named(session.lines, measurement="run", contender=contender):
                add_profile(session, task.contenders[contender], setting, compiled, core)
        if task.floor and named(session.lines, measurement="profile", contender="ours"):
            add_floor(session, task, setting, core)
    print_tables(session.lines, task.reference)
    print(f"written: {out}")
    return not named(session.lines, measurement="failure")


def add_run(
    session: Session,
    contender: Contender,
    setting: dict[str, Any],
    repeat: int,
    compiled: CompiledSteps,
    core: int | None,
) -> None:
    head = {"measurement": "run", "contender": contender.name, "repeat": repeat}
    try:
        result = measure(contender, setting, compiled, core)
    except ContenderError as error:
        session.add({**head, "measurement": "failure", "failed": str(error)})
        print(f"  {contender.name:15} FAILED: {error}", flush=True)
        return
    threads = result.pop("setting")["threads"]
    changed = {"changed_hparams": dict(contender.hparams)} if contender.hparams else {}
    session.add({**head, "threads": threads, **changed, **result})
    print(f"  {contender.name:15} {_one_line(result)}", flush=True)


def add_profile(
    session: Session, ours: Contender, setting: dict[str, Any], compiled: CompiledSteps, core: int | None
) -> None:
    """Add where our time goes, from a separate, instrumented run."""
    cores, environ = cores_for(ours, core), compiled.environ(ours)
    profile = run_contender(ours, {**setting, "mode": "profile"}, cores=cores, environ=environ)
    head = {"measurement": "profile", "contender": ours.name}
    session.add({**head, "time_per_step_us": profile["time_per_step_us"], "versions": profile["versions"]})


def add_floor(session: Session, task: SpeedTask, setting: dict[str, Any], core: int | None) -> None:
    """Add the time of an update's matrix products alone, and its share of our whole update."""
    (profile,) = named(session.lines, measurement="profile", contender="ours")
    update_us = profile["time_per_step_us"]["update"] / task.updates_per_step
    floor = run_contender(FLOOR, {**setting, "mode": "floor"}, cores=cores_for(FLOOR, core))
    session.add({"measurement": "floor", **share_of_floor(floor, update_us)})


def share_of_floor(floor: dict[str, Any], update_us: float) -> dict[str, Any]:
    bare_us = floor["us_per_update"]
    return {
        "us_per_update": bare_us,
        "our_update_us": update_us,
        "share_of_our_update": bare_us / update_us,
        "products": floor["products"],
        "versions": floor["versions"],
    }


def rate_format(rate: float) -> str:
    """Return the format of a rate: REDQ makes one or two steps per second, which needs decimals."""
    return ".0f" if rate >= 20 else ".2f"


def _one_line(result: dict[str, Any]) -> str:
    whole, steady = result["steps_per_s"], result["steady_steps_per_s"]
    return (
        f"{whole:7{rate_format(whole)}} steps/s whole, {steady:7{rate_format(steady)}} steady, "
        f"{result['learn_s']:6.1f} s, compile {result['compile_s']:5.1f} s, "
        f"{100 * result['share_of_core']:3.0f} % of the core"
    )


def print_tables(lines: Sequence[Line], reference: str) -> None:
    titles = ("steps/s, whole learn()", f"whole / {reference}", "steps/s, steady", f"steady / {reference}", "compile s")
    print("\n" + f"{'contender':15}" + "".join(f"{title:>24}" for title in titles))
    summary = {name: each for name, each in summarize_speed(lines, reference).items() if "steps_per_s" in each}
    for name, figures in sorted(summary.items(), key=lambda item: -item[1]["steady_steps_per_s"]["median"]):
        columns = (
            ("steps_per_s", rate_format(figures["steps_per_s"]["median"])),
            (f"steps_per_s_over_{reference}", ".2f"),
            ("steady_steps_per_s", rate_format(figures["steady_steps_per_s"]["median"])),
            (f"steady_steps_per_s_over_{reference}", ".2f"),
            ("compile_s", ".1f"),
        )
        cells = (format(Spread(**figures[key]), spec) if key in figures else "-" for key, spec in columns)
        print(f"{name:15}" + "".join(f"{cell:>24}" for cell in cells))
    for line in named(lines, measurement="profile"):
        parts, total = line["time_per_step_us"], sum(line["time_per_step_us"].values())
        print(f"\n{line['contender']}, time per environment step (a separate, instrumented run)")
        for part, microseconds in parts.items():
            print(f"  {part:10} {microseconds:8.1f} us {100 * microseconds / total:5.1f} %")
        print(f"  {'all':10} {total:8.1f} us")
    for line in named(lines, measurement="floor"):
        share = f"{100 * line['share_of_our_update']:.0f} % of our update's {line['our_update_us']:.1f} us"
        print(f"\nbare matrix products of an update: {line['us_per_update']:.1f} us, {share}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--contenders", type=command_line.parse_names, metavar="A,B", help="only these contenders")
    parser.add_argument("--steps", type=int, help="steps per run instead of the task's own")
    parser.add_argument("--repeats", type=int, default=3, help="rounds over all contenders (default: %(default)s)")
    parser.add_argument(
        "--acceleration",
        choices=["auto", "eager", "compile"],
        help="how our update step runs (default: auto, with --quick: compile)",
    )
    command_line.add_core(parser)
    command_line.add_quick(parser)
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    well = True
    acceleration = args.acceleration or ("compile" if args.quick else "auto")
    for name in command_line.check_names(args.names, list(TASKS), "task"):
        task = TASKS[name]
        well &= run_speed(
            name,
            contenders=command_line.check_names(args.contenders, list(task.contenders), "contender"),
            repeats=args.repeats,
            setting=build_setting(task, command_line.steps_of(args, task.steps), acceleration),
            core=args.core,
            out=command_line.result_folder(args) / "speed" / f"{name}.jsonl",
        )
    return 0 if well else 1
