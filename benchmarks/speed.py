"""Speed: the same training run, with the same hyperparameters, by every contender in turn, on as many cores as threads.

Contenders alternate (A B C A B C ...), so that a slow spell of the machine hits all of them. Two figures per run: env
steps/s over the whole of `learn()`, and over its steady part, which starts some steps after learning does (500, where a
task says nothing else), or after 4 rollouts. Where a dataset is learnt from, steps are updates.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.launch import (
    DQN_CONTENDERS,
    FLOOR,
    HEAD_CONTENDERS,
    IQL_CONTENDERS,
    IQN_CONTENDERS,
    PPO_CONTENDERS,
    QR_DQN_CONTENDERS,
    REDQ_CONTENDERS,
    SAC_CONTENDERS,
    TD3_CONTENDERS,
    TWO_THREADS,
    Contender,
    ContenderError,
    run_contender,
)
from benchmarks.machine import describe_run
from benchmarks.spread import Spread, spread

PROFILED = {"ours": "time_per_step_us", "ours-envpool": "time_per_step_us_envpool"}  # and its key in the results


@dataclass(frozen=True, kw_only=True)
class SpeedTask:
    """One setting for all contenders.

    `reference`: the contender that the others are divided by. `floor`: whether the matrix products of our update are
    timed alone, too. `warm_up`: env steps with updates before the steady part. `dataset_rows`: random ones, of
    HalfCheetah's sizes, that are learnt from instead of an env. `note`: what a reader of the result must know.
    """

    algo: str
    env_id: str
    steps: int
    num_envs: int = 1
    hparams: dict[str, Any]
    contenders: dict[str, Contender]
    reference: str
    floor: bool = False
    warm_up: int = 500
    dataset_rows: int = 0
    note: str = ""

    @property
    def updates_per_step(self) -> float:
        """Of the tasks with a floor: theirs are one per env step, where it is not said how many."""
        return float(self.hparams.get("gradient_updates_per_step", 1))

    def whole(self, steps: int) -> int:
        """Round up to whole rollouts, where there are any: only then have all contenders done the same work."""
        rollout: int = self.hparams.get("num_steps", 1) * self.num_envs
        return -(-steps // rollout) * rollout


# One update per env step, as CleanRL's DQN has its sizes.
Q_LEARNING = {
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
    # What ours has by default and the peers have not.
    "layer_norm": False,
    "learning_rate_schedule": "constant",
}
CARTPOLE_ATOMS = {"num_atoms": 51, "v_min": 0.0, "v_max": 100.0}


def head_task(
    algo: str, hparams: dict[str, Any], contenders: dict[str, Contender], *, steps: int = 10_000, reference: str
) -> SpeedTask:
    """Give DQN's setting with another head: fewer steps, since the peers take minutes for 10,000."""
    return SpeedTask(
        algo=algo,
        env_id="CartPole-v1",
        steps=steps,
        hparams={**Q_LEARNING, "adam_eps": 1e-8, **hparams},
        contenders=contenders,
        reference=reference,
        floor=True,
        note="fewer steps than DQN's 50000, for all contenders: the steady figures are the ones to compare",
    )


# As the SAC paper has them, but for the first random steps, which are fewer.
ACTOR_CRITIC = {
    "learning_starts": 300,
    "train_frequency": 1,
    "gradient_updates_per_step": 1,
    "policy_delay": 1,
    "batch_size": 256,
    "buffer_capacity": 100_000,
    "hidden_sizes": [256, 256],
    "learning_rate": 3e-4,
    "tau": 0.005,
    "gamma": 0.99,
    "adam_eps": 1e-8,
}


def actor_critic_task(
    algo: str, env_id: str, contenders: dict[str, Contender], *, reference: str = "sb3", **hparams: Any
) -> SpeedTask:
    """Give an update per env step, after few random steps: the peers make fewer than a hundred a second."""
    return SpeedTask(
        algo=algo,
        env_id=env_id,
        steps=800,
        hparams={**ACTOR_CRITIC, **hparams},
        contenders=contenders,
        reference=reference,
        floor=True,
        warm_up=100,
        note="runs are short, a good part of them compiling and random steps: compare the steady figures",
    )


# As the paper has them. All values are here: d3rlpy is told each.
IQL = {
    "batch_size": 256,
    "hidden_sizes": [256, 256],
    "network": "mlp",
    "layer_norm": False,
    "learning_rate": 3e-4,
    "learning_rate_schedule": "cosine",
    "adam_eps": 1e-8,
    "max_grad_norm": None,
    "gamma": 0.99,
    "tau": 0.005,
    "expectile": 0.7,
    "beta": 3.0,
    "max_advantage_weight": 100.0,
    "reward_scale": "none",
    "reward_shift": 0.0,
    "normalize_observations": False,
}


TASKS = {
    "dqn": SpeedTask(
        algo="dqn",
        env_id="CartPole-v1",
        steps=50_000,
        hparams=Q_LEARNING,
        contenders=DQN_CONTENDERS,
        reference="sb3",
        floor=True,
    ),
    "ppo": SpeedTask(
        algo="ppo",
        env_id="CartPole-v1",
        steps=100_000,
        num_envs=8,
        hparams={
            "num_steps": 128,
            "update_epochs": 4,
            "minibatch_size": 256,
            "hidden_sizes": [64, 64],
            "learning_rate": 2.5e-4,
            "learning_rate_schedule": "constant",
            "clip_coef": 0.2,
            "clip_schedule": "constant",
            "max_grad_norm": 0.5,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "ent_coef": 0.01,
            "vf_coef": 0.5,
        },
        contenders=PPO_CONTENDERS,
        reference="sb3",
    ),
    "qr_dqn": head_task("qr_dqn", {"num_quantiles": 51}, QR_DQN_CONTENDERS, reference="sb3_contrib"),
    # The peers' default number of quantiles; they take 40 to 90 ms for an update.
    "qr_dqn_200": head_task("qr_dqn", {"num_quantiles": 200}, QR_DQN_CONTENDERS, steps=3_000, reference="sb3_contrib"),
    "c51_dqn": head_task("c51_dqn", {**CARTPOLE_ATOMS, "double_q": True}, HEAD_CONTENDERS, reference="tianshou"),
    "iqn": head_task(
        "iqn",
        {"num_quantiles": 32, "num_tau_samples": 8, "embedding_dim": 64, "double_q": True},
        IQN_CONTENDERS,
        reference="tianshou",
    ),
    "fqf": head_task(
        "fqf",
        {
            "num_quantiles": 32,
            "embedding_dim": 64,
            "entropy_coef": 1e-3,
            "fraction_learning_rate": 2.5e-9,
            "double_q": True,
        },
        HEAD_CONTENDERS,
        reference="tianshou",
    ),
    "rainbow_dqn": head_task(
        "rainbow_dqn",
        {
            **CARTPOLE_ATOMS,
            "double_q": True,
            "dueling": True,
            "noisy": True,
            "noisy_sigma": 0.5,
            "n_step": 3,
            "prioritized": True,
            "prioritized_alpha": 0.5,
            "prioritized_beta_start": 0.4,
            "prioritized_beta_end": 1.0,
            # Ours has no random actions with noise; neither shall the peer.
            "epsilon_start": 0.0,
            "epsilon_end": 0.0,
        },
        HEAD_CONTENDERS,
        reference="tianshou",
    ),
    "sac_pendulum": actor_critic_task("sac", "Pendulum-v1", SAC_CONTENDERS),
    "sac_halfcheetah": actor_critic_task("sac", "HalfCheetah-v5", SAC_CONTENDERS),
    "td3_pendulum": actor_critic_task(
        "td3",
        "Pendulum-v1",
        TD3_CONTENDERS,
        policy_delay=2,
        exploration_noise=0.1,
        target_noise=0.2,
        target_noise_clip=0.5,
    ),
    "redq": replace(
        actor_critic_task(
            "redq",
            "HalfCheetah-v5",
            REDQ_CONTENDERS,
            reference="tianshou",
            gradient_updates_per_step=20,
            policy_delay=20,
            num_critics=10,
            subset_size=2,
        ),
        steps=320,
        warm_up=4,
        note="320 env steps, of which the last 20 have 20 updates each: compare the steady figures. "
        "sbx-sac is no REDQ: the target and the actor take the least of all ten critics",
    ),
    "iql": SpeedTask(
        algo="iql",
        env_id="HalfCheetah-v5",
        steps=1_500,
        hparams=IQL,
        contenders=IQL_CONTENDERS,
        reference="d3rlpy",
        floor=True,
        warm_up=200,
        dataset_rows=100_000,
        note="steps are updates, on random numbers of HalfCheetah-v5's sizes: compare the steady figures. d3rlpy by "
        "fit(), without its log files and progress bar",
    ),
}


def write_random_rows(file: Path, rows: int) -> None:
    """Write numbers that mean nothing, of HalfCheetah's sizes and in episodes of its length: to measure speed."""
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
    """Our compiled steps: a folder that is emptied before every cold run, and one that the warm runs share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.filled: set[str] = set()  # by the contenders of these names

    def environ(self, contender: Contender) -> dict[str, str]:
        folder = self.folder / ("cold" if contender.name == "ours-cold" else "warm")
        return {
            "RL_TRAINING_CACHE": str(folder / "rl_training"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }

    def empty(self) -> None:
        shutil.rmtree(self.folder / "cold", ignore_errors=True)


def cores_for(contender: Contender, first: int | None) -> list[int]:
    """Give the cores to run on: as many as threads, `first` and those after it."""
    if first is None:
        return []
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [first]
    return [first, *(core for core in available if core != first)][: contender.setting.get("threads", 1)]


def measure(contender: Contender, setting: dict[str, Any], compiled: CompiledSteps, core: int | None) -> dict[str, Any]:
    """Run a contender once; for ours, see to it that the cache is empty or filled, as the name says."""
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


def run_speed(
    task_name: str,
    *,
    contenders: Sequence[str],
    repeats: int,
    steps: int,
    acceleration: str,
    core: int | None,
    out: Path,
) -> bool:
    """Measure, print, and write `out`, anew after every measurement. Give whether every contender ran."""
    task = TASKS[task_name]
    setting = {
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
        # Nothing is learnt from random numbers that could be played.
        "eval_seeds": [] if task.dataset_rows else list(range(1_000_000, 1_000_010)),
    }
    results: dict[str, Any] = {
        "benchmark": f"speed {task_name}",
        **describe_run(),
        "note": task.note,
        "setting": setting,
        "changed_hparams": {name: dict(task.contenders[name].hparams) for name in contenders},
        "reference": task.reference,
        "core": core,
        "repeats": repeats,
        "summary": {},
        "failures": {},
        **dict.fromkeys((key for name, key in PROFILED.items() if name in task.contenders), None),
        **({"floor": None} if task.floor else {}),
        "measurements": [],
    }
    print(f"speed {task_name}: {task.env_id}, {setting['steps']} steps, {repeats} repeats, core {core}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rl-training-speed-") as temporary:
        compiled = CompiledSteps(Path(temporary))
        if task.dataset_rows:
            setting["dataset"] = str(Path(temporary) / "random.npz")
            write_random_rows(Path(setting["dataset"]), task.dataset_rows)
        for repeat in range(repeats):
            for name in contenders:
                if name in results["failures"]:
                    continue
                try:
                    result = measure(task.contenders[name], {**setting, "seed": repeat}, compiled, core)
                except ContenderError as error:
                    results["failures"][name] = str(error)
                    print(f"  {name:15} FAILED: {error}", flush=True)
                    continue
                # The setting is the same for all but for the threads and the seed, which is the number of the repeat.
                threads = result.pop("setting")["threads"]
                results["measurements"].append({"contender": name, "repeat": repeat, "threads": threads, **result})
                print(f"  {name:15} {_one_line(result)}", flush=True)
                results["summary"] = summarize_speed(results["measurements"], task.reference)
                write_json(out, results)
        for name in PROFILED:
            if name in contenders and name not in results["failures"]:
                ours = task.contenders[name]
                profile = run_contender(
                    ours, {**setting, "mode": "profile"}, cores=cores_for(ours, core), environ=compiled.environ(ours)
                )
                results[PROFILED[name]] = profile["time_per_step_us"]
        if task.floor and results["time_per_step_us"]:
            floor = run_contender(FLOOR, {**setting, "mode": "floor"}, cores=cores_for(FLOOR, core))
            update_us = results["time_per_step_us"]["update"] / task.updates_per_step
            results["floor"] = share_of_floor(floor, update_us)
    write_json(out, results)
    print_tables(results)
    print(f"written: {out}")
    return not results["failures"]


def share_of_floor(floor: dict[str, Any], update_us: float) -> dict[str, Any]:
    """Put the bare products beside the time of our whole update."""
    bare_us = floor["us_per_update"]
    return {
        "us_per_update": bare_us,
        "our_update_us": update_us,
        "share_of_our_update": bare_us / update_us,
        "products": floor["products"],
        "versions": floor["versions"],
    }


def rate_format(rate: float) -> str:
    """Give the format of rates such as this one: REDQ's, of which there are one or two a second, need decimals."""
    return ".0f" if rate >= 20 else ".2f"


def _one_line(result: dict[str, Any]) -> str:
    whole, steady = result["steps_per_s"], result["steady_steps_per_s"]
    return (
        f"{whole:7{rate_format(whole)}} steps/s whole, {steady:7{rate_format(steady)}} steady, "
        f"{result['learn_s']:6.1f} s, compile {result['compile_s']:5.1f} s, "
        f"{100 * result['share_of_core']:3.0f} % of the core"
    )


FIGURES = ("steps_per_s", "steady_steps_per_s", "learn_s", "compile_s", "share_of_core")


def summarize_speed(measurements: Sequence[dict[str, Any]], reference: str) -> dict[str, Any]:
    """Per contender: median and spread of each figure, and the ratios to the reference of that repeat and threads."""
    summary: dict[str, Any] = {}
    others = {
        (row["repeat"], row["threads"]): row
        for row in measurements
        if row["contender"].removesuffix(TWO_THREADS) == reference
    }
    for name in dict.fromkeys(row["contender"] for row in measurements):
        rows = [row for row in measurements if row["contender"] == name]
        figures = {figure: asdict(spread([row[figure] for row in rows])) for figure in FIGURES}
        pairs = [(row, others.get((row["repeat"], row["threads"]))) for row in rows]
        for figure in ("steps_per_s", "steady_steps_per_s"):
            ratios = [row[figure] / other[figure] for row, other in pairs if other]
            if ratios:
                figures[f"{figure}_over_{reference}"] = asdict(spread(ratios))
        summary[name] = {"versions": rows[0]["versions"], "threads": rows[0]["threads"], **figures}
    return summary


def print_tables(results: dict[str, Any]) -> None:
    reference = results["reference"]
    titles = ("steps/s, whole learn()", f"whole / {reference}", "steps/s, steady", f"steady / {reference}", "compile s")
    print("\n" + f"{'contender':15}" + "".join(f"{title:>24}" for title in titles))
    ranked = sorted(results["summary"].items(), key=lambda item: -item[1]["steady_steps_per_s"]["median"])
    for name, figures in ranked:
        columns = (
            ("steps_per_s", rate_format(figures["steps_per_s"]["median"])),
            (f"steps_per_s_over_{reference}", ".2f"),
            ("steady_steps_per_s", rate_format(figures["steady_steps_per_s"]["median"])),
            (f"steady_steps_per_s_over_{reference}", ".2f"),
            ("compile_s", ".1f"),
        )
        cells = (format(Spread(**figures[key]), spec) if key in figures else "-" for key, spec in columns)
        print(f"{name:15}" + "".join(f"{cell:>24}" for cell in cells))
    for name, key in PROFILED.items():
        if parts := results.get(key):
            total = sum(parts.values())
            print(f"\n{name}, time per env step (a separate, instrumented run)")
            for part, microseconds in parts.items():
                print(f"  {part:10} {microseconds:8.1f} us {100 * microseconds / total:5.1f} %")
            print(f"  {'all':10} {total:8.1f} us")
    if floor := results.get("floor"):
        share = f"{100 * floor['share_of_our_update']:.0f} % of our update's {floor['our_update_us']:.1f} us"
        print(f"\nbare matrix products of an update: {floor['us_per_update']:.1f} us, {share}")


def write_json(path: Path, value: Any) -> None:
    """Write beside the file, then rename: an interrupted benchmark leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)
