"""Scores: train over several seeds, play the final policy greedily on shared reset seeds, compare with the peer.

Two runs at a time, one thread and one core each. A finished run is kept under `runs/benchmarks/` and not repeated while
its setting, the library's source and the peer's versions stay as they are; so an interrupted benchmark goes on where it
stopped.
"""

import hashlib
import json
import os
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.launch import DQN_CONTENDERS, PPO_CONTENDERS, Contender, ContenderError, run_contender
from benchmarks.machine import describe_run, source_digest
from benchmarks.peers import REQUIREMENTS, ROOT
from benchmarks.speed import write_json
from rl_training.experiment.manager import summarize

KEPT_RUNS = ROOT / "runs" / "benchmarks"
HELD_EVALUATIONS = 3

# The values of rl-zoo3 for stable-baselines3's DQN, in our names. SB3 counts `target_update_interval` in env steps.
ZOO_CARTPOLE = {
    "learning_starts": 1_000,
    "train_frequency": 256,
    "gradient_steps": 128,
    "batch_size": 64,
    "buffer_capacity": 100_000,
    "hidden_sizes": [256, 256],
    "target_update_interval": 10,
    "learning_rate": 2.3e-3,
    "max_grad_norm": 10.0,
    "gamma": 0.99,
    "epsilon_start": 1.0,
    "epsilon_end": 0.04,
    "exploration_fraction": 0.16,
}
ZOO_LUNAR_LANDER = {
    **ZOO_CARTPOLE,
    "learning_starts": 0,
    "train_frequency": 4,
    "gradient_steps": -1,
    "batch_size": 128,
    "buffer_capacity": 50_000,
    "target_update_interval": 250,
    "learning_rate": 6.3e-4,
    "epsilon_end": 0.1,
    "exploration_fraction": 0.12,
}

# The values of rl-zoo3 for stable-baselines3's PPO. What the zoo leaves out is stable-baselines3's default.
ZOO_PPO = {
    "minibatch_size": 64,
    "learning_rate": 3e-4,
    "learning_rate_schedule": "constant",
    "clip_coef": 0.2,
    "clip_schedule": "constant",
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "hidden_sizes": [64, 64],
}
ZOO_PPO_CARTPOLE = {
    **ZOO_PPO,
    "num_steps": 32,
    "minibatch_size": 256,
    "update_epochs": 20,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "clip_schedule": "linear",
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "ent_coef": 0.0,
}
ZOO_PPO_LUNAR_LANDER = {
    **ZOO_PPO,
    "num_steps": 1_024,
    "update_epochs": 4,
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "ent_coef": 0.01,
}
ZOO_PPO_PENDULUM = {
    **ZOO_PPO,
    "num_steps": 1_024,
    "update_epochs": 10,
    "learning_rate": 1e-3,
    "gamma": 0.9,
    "gae_lambda": 0.95,
    "ent_coef": 0.0,
    "use_sde": True,
    "sde_sample_freq": 4,
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the score table.

    `threshold`: the return whose first holding over 3 evaluations is reported. `by`: the step at which the target wants
    to see the training evaluation, too. `quoted`: scores of peers that are not run, with their source.
    """

    env_id: str
    steps: int
    target: str
    config: str
    peer_hparams: dict[str, Any] = field(default_factory=dict)
    peer_num_envs: int = 1
    threshold: float
    by: int | None = None
    track_every: int
    eval_episodes: int = 20
    track_episodes: int = 10
    seeds: int = 5
    contenders: Sequence[str] = ("ours", "sb3")
    table: dict[str, Contender] = field(default_factory=lambda: DQN_CONTENDERS)
    quoted: Mapping[str, str] = field(default_factory=dict)

    def setting(self, contender: str, seed: int, *, steps: int) -> dict[str, Any]:
        ours = contender == "ours"
        vector = {} if ours or self.peer_num_envs == 1 else {"num_envs": self.peer_num_envs}
        return {
            **vector,
            "mode": "score",
            "env_id": self.env_id,
            "steps": steps,
            "seed": seed,
            "threads": 1,
            "hparams": {} if ours else self.peer_hparams,
            "config": self.config if ours else None,
            "eval_seeds": list(range(1_000_000, 1_000_000 + self.eval_episodes)),
            "track_every": self.track_every,
            "track_seeds": list(range(2_000_000, 2_000_000 + self.track_episodes)),
        }


ROWS = {
    "C1": Row(
        env_id="CartPole-v1",
        steps=50_000,
        target="500 on 5/5 seeds; first held at 475+ by 20k",
        config="dqn/cartpole.yaml",
        peer_hparams=ZOO_CARTPOLE,
        threshold=475.0,
        track_every=1_000,
    ),
    "C13": Row(
        env_id="LunarLander-v3",
        steps=100_000,
        target=">= 215",
        config="dqn/lunarlander.yaml",
        peer_hparams=ZOO_LUNAR_LANDER,
        threshold=200.0,
        track_every=5_000,
    ),
    "C8": Row(
        env_id="CartPole-v1",
        steps=100_000,
        target="500 on 5/5 seeds by 50k",
        config="ppo/cartpole.yaml",
        peer_hparams=ZOO_PPO_CARTPOLE,
        peer_num_envs=8,
        threshold=475.0,
        by=50_000,
        track_every=1_000,
        table=PPO_CONTENDERS,
    ),
    "C16": Row(
        env_id="LunarLander-v3",
        steps=1_000_000,
        target=">= 250, or >= 200 by 300k",
        config="ppo/lunarlander.yaml",
        peer_hparams=ZOO_PPO_LUNAR_LANDER,
        peer_num_envs=16,
        threshold=200.0,
        by=300_000,
        track_every=20_000,
        table=PPO_CONTENDERS,
    ),
    "C21": Row(
        env_id="Pendulum-v1",
        steps=100_000,
        target=">= -165",
        config="ppo/pendulum.yaml",
        peer_hparams=ZOO_PPO_PENDULUM,
        peer_num_envs=4,
        threshold=-165.0,
        track_every=5_000,
        eval_episodes=100,
        track_episodes=100,
        table=PPO_CONTENDERS,
    ),
    "M6": Row(
        env_id="HalfCheetah-v5",
        steps=1_000_000,
        target=">= 5900",
        config="ppo/halfcheetah.yaml",
        threshold=5_900.0,
        track_every=50_000,
        eval_episodes=10,
        seeds=3,
        contenders=("ours",),
        table=PPO_CONTENDERS,
        quoted={
            "tianshou": "5783.9 ± 1244 (Tianshou's benchmark page: best point of the evaluation curve, 10 seeds)",
            "sb3": "5819 ± 664 (rl-zoo3's table: HalfCheetah-v3, one run, deviation over episodes)",
            "cleanrl": "1442.6 ± 46 (CleanRL's documentation: HalfCheetah-v4, training episodes, 3 seeds)",
        },
    ),
}


def run_scores(
    name: str, *, contenders: Sequence[str], seeds: Sequence[int], steps: int | None, jobs: int, out: Path
) -> bool:
    """Run what is missing of a row, print, and write `out`. Give whether every run ended well."""
    row = ROWS[name]
    steps = steps or row.steps
    header = {
        "benchmark": f"scores {name}",
        **describe_run(),
        "env_id": row.env_id,
        "steps": steps,
        "target": row.target,
        "threshold": row.threshold,
        "seeds": list(seeds),
        "quoted": dict(row.quoted),
    }
    cells = [(contender, seed) for seed in seeds for contender in contenders]
    print(f"scores {name}: {row.env_id}, {steps} steps, {len(cells)} runs, {jobs} at a time", flush=True)
    finished: dict[tuple[str, int], dict[str, Any]] = {}
    failures: list[str] = []
    pool = ThreadPoolExecutor(jobs)
    cores = FreeCores(jobs)
    pending = {
        pool.submit(run_or_recall, row.table[contender], row.setting(contender, seed, steps=steps), name, cores): (
            contender,
            seed,
        )
        for contender, seed in cells
    }
    try:
        for future in as_completed(pending):
            contender, seed = pending[future]
            try:
                result = future.result()
            except ContenderError as error:
                failures.append(str(error))
                print(f"  {contender:9} seed {seed}: FAILED: {error}", flush=True)
                continue
            finished[contender, seed] = result
            print(f"  {contender:9} seed {seed}: {fmean(result['returns']):8.1f} {result['kept']}", flush=True)
            write_json(out, {**header, "failures": failures, **collect(finished, contenders, row)})
    finally:
        pool.shutdown(cancel_futures=True)  # on Ctrl-C, do not start the runs that still wait
    results = {**header, "failures": failures, **collect(finished, contenders, row)}
    write_json(out, results)
    print_table(results)
    print(f"written: {out}")
    return not failures


class FreeCores:
    """The cores this process may use, dealt out to `jobs` runs: one each as long as there are enough."""

    def __init__(self, jobs: int) -> None:
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._free: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()
        for job in range(jobs):
            self._free.put((allowed[job % len(allowed)],) if allowed else ())

    def run(self, contender: Contender, setting: Mapping[str, Any]) -> dict[str, Any]:
        cores = self._free.get()
        try:
            return run_contender(contender, setting, cores=cores)
        finally:
            self._free.put(cores)


def run_or_recall(
    contender: Contender, setting: Mapping[str, Any], row_name: str, free_cores: FreeCores
) -> dict[str, Any]:
    """Give the kept result of this very run, or run it and keep the result."""
    code = (REQUIREMENTS / f"{contender.peer}.txt").read_text() if contender.peer else source_digest()
    identity = hashlib.sha256(json.dumps([setting, code], sort_keys=True).encode()).hexdigest()[:12]
    path = KEPT_RUNS / row_name / contender.name / f"seed{setting['seed']}_{identity}.json"
    if path.is_file():
        return {**json.loads(path.read_text()), "kept": "(kept from before)"}
    result = free_cores.run(contender, setting)
    result["code"] = None if contender.peer else code
    write_json(path, result)
    return {**result, "kept": ""}


def first_held(tracked: Sequence[dict[str, Any]], threshold: float) -> int | None:
    """Give the step of the first of 3 consecutive evaluations with a mean return of `threshold` or more."""
    good = [fmean(evaluation["returns"]) >= threshold for evaluation in tracked]
    for start in range(len(good) - HELD_EVALUATIONS + 1):
        if all(good[start : start + HELD_EVALUATIONS]):
            return int(tracked[start]["step"])
    return None


def return_at(tracked: Sequence[dict[str, Any]], step: int) -> float | None:
    """Give the mean return of the evaluation during training at `step`."""
    return next((fmean(evaluation["returns"]) for evaluation in tracked if evaluation["step"] == step), None)


def collect(finished: dict[tuple[str, int], dict[str, Any]], contenders: Sequence[str], row: Row) -> dict[str, Any]:
    """Put the runs together per contender: summary over seeds first, then every seed."""
    per_contender: dict[str, Any] = {}
    for contender in contenders:
        runs = [finished[key] for key in sorted(finished) if key[0] == contender]
        if not runs:
            continue
        means = [fmean(run["returns"]) for run in runs]
        per_contender[contender] = {
            **asdict(summarize(means)),
            "seeds_at_threshold": sum(mean >= row.threshold for mean in means),
            "first_held_steps": [first_held(run["tracked"], row.threshold) for run in runs],
            **({f"mean_returns_at_{row.by}": [return_at(run["tracked"], row.by) for run in runs]} if row.by else {}),
            "versions": runs[0]["versions"],
            "hparams": runs[0].get("resolved_config")
            or {"num_envs": runs[0]["setting"].get("num_envs", 1), **runs[0]["setting"]["hparams"]},
            "code": sorted({run["code"] for run in runs if run["code"]}),
            "per_seed": [
                {
                    "seed": run["setting"]["seed"],
                    "mean_return": mean,
                    "first_held_step": first_held(run["tracked"], row.threshold),
                    "returns": run["returns"],
                    "tracked": [
                        {"step": evaluation["step"], "mean_return": fmean(evaluation["returns"])}
                        for evaluation in run["tracked"]
                    ],
                    "env_steps": run["env_steps"],
                    "updates": run["updates"],
                    "learn_s": run["learn_s"],
                    "date": run.get("date"),  # of its start; this command may have found it kept from before
                }
                for run, mean in zip(runs, means, strict=True)
            ],
        }
    return {"contenders": per_contender}


def print_table(results: dict[str, Any]) -> None:
    threshold = results["threshold"]
    print(f"\ntarget: {results['target']}")
    held_title = f"first held at {threshold:g}+ (per seed)"
    print(f"{'contender':9} {'mean':>8} {'std':>7} {'IQM':>8} {'95 % interval':>18}  {held_title}")
    for name, row in results["contenders"].items():
        low, high = row["interval"]
        held = " ".join("-" if step is None else f"{step / 1000:g}k" for step in row["first_held_steps"])
        interval = f"{low:.1f}..{high:.1f}"
        print(f"{name:9} {row['mean']:8.1f} {row['std']:7.1f} {row['iqm']:8.1f} {interval:>18}  {held}")
    for name, score in results["quoted"].items():
        print(f"{name:9} quoted: {score}")
