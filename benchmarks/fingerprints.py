"""Fingerprints of short seeded runs: equal before and after a change that must change no result.

    python -m benchmarks fingerprints --out before.json      (on the one commit)
    python -m benchmarks fingerprints --against before.json  (on the other)

Every algorithm trains a few hundred steps on the CPU, eagerly and compiled. A fingerprint hashes the tensors of its
last checkpoint and its logs; times and paths are left out.
"""

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from safetensors.numpy import load_file

from benchmarks.command_line import check_names
from rl_training import ManagedAlgorithm, TrainConfig
from rl_training.api.algorithms import managed_class
from rl_training.core.counted import counted
from rl_training.experiment.registry import registry

Fingerprints: TypeAlias = dict[str, dict[str, str]]  # of each run, by tensor and log

MODES = ("eager", "compile")
TIMES = ("wall_s", "steps_per_s")
PARTS = ("policy", "training", "memory")

# Settings of all algorithms; each takes those that it has.
SMALL: dict[str, Any] = {
    "hidden_sizes": [16, 16],
    "batch_size": 16,
    "buffer_capacity": 500,
    "learning_starts": 50,
    "train_frequency": 2,
    "num_atoms": 11,
    "num_quantiles": 6,
    "num_tau_samples": 4,
    "embedding_dim": 8,
    "num_critics": 4,
    "critic_hidden_sizes": [16, 16],
    "num_ensembles": 3,
    "num_elites": 2,
    "model_hidden_sizes": [16],
    "model_batch_size": 16,
    "model_max_epochs": 3,
    "model_train_frequency": 50,
    "rollout_batch_size": 40,
    "rollout_refresh_interval": 50,
    "sequence_length": 8,
    "unroll_length": 8,
    "train_ratio": 64.0,
    "imagination_horizon": 4,
    "deter_size": 16,
    "num_blocks": 2,
    "num_latents": 4,
    "num_classes": 4,
    "hidden_size": 16,
    "cnn_depth": 2,
    "num_bins": 21,
    "symlog_limit": 5.0,
    "dataset_kind": "random",
    "dataset_size": 900,
    "expert_dataset_kind": "random",
    "expert_dataset_size": 200,
    "discriminator_updates": 2,
    "discriminator_batch_size": 16,
    "discriminator_hidden_sizes": [16],
    "num_steps": 32,
    "minibatch_size": 16,
    "update_epochs": 2,
}
# Runs that reach code which the plain settings leave out.
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn-mse-nstep-linear": ("dqn", {"loss": "mse", "n_step": 3, "double_q": True, "dueling": True}),
    "dqn-simba": ("dqn", {"network": "simba"}),
    "fqf-prioritized": ("fqf", {"prioritized": True}),
    "iqn-noisy": ("iqn", {"noisy": True, "dueling": True}),
    "ppo-normalized": (
        "ppo",
        {"normalize": "both", "value_clip": True, "recompute_advantages": True, "target_kl": 0.02},
    ),
    "sac-linear-clipped": ("sac", {"learning_rate_schedule": "linear", "max_grad_norm": 1.0, "layer_norm": True}),
    "sac-fixed-alpha": ("sac", {"alpha": 0.1, "n_step": 3, "prioritized": True, "gradient_updates_per_step": 3.0}),
    "iql-normalized": ("iql", {"normalize_observations": True, "reward_scale": "return", "held_out": 0.2}),
    "gail-absorbing": ("gail", {"absorbing_state": True, "reward_form": "airl", "normalize": "both"}),
    "mopo-disagreement": ("mopo", {"uncertainty": "disagreement", "termination": "learned"}),
}


def digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def tensors_of(checkpoint: Path) -> dict[str, str]:
    """Return a hash of every tensor in the checkpoint, by part and name."""
    hashes = {}
    for part in PARTS:
        for name, tensor in sorted(load_file(checkpoint / f"{part}.safetensors").items()):
            content = f"{tensor.dtype} {tensor.shape}".encode() + np.ascontiguousarray(tensor).tobytes()
            hashes[f"{part}/{name}"] = hashlib.sha256(content).hexdigest()[:16]
    return hashes


def logs_of(run_dir: Path) -> dict[str, str]:
    """Return a hash of each log without its times."""
    hashes = {}
    for name in ("metrics", "episodes", "eval"):
        file = run_dir / f"{name}.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
        hashes[name] = digest([{key: value for key, value in r.items() if key not in TIMES} for r in records])
    return hashes


def fingerprint(algo: str, changes: dict[str, Any], mode: str, folder: Path) -> dict[str, str]:
    agent_class: type[ManagedAlgorithm] = managed_class(algo)
    spec = registry()[algo]
    env_id = "CartPole-v1" if "discrete" in spec.actions else "Pendulum-v1"
    known = spec.hparams.model_fields
    config = TrainConfig(
        algo=algo,
        env_id=env_id,
        total_timesteps=200,
        seed=3,
        num_envs=2 if spec.loop != "offline" else 1,
        eval_interval=100,
        eval_episodes=2,
        log_interval=50,
        threads=1,
        device="cpu",
        acceleration=mode,
        tensorboard=False,
        output_dir=folder,
        algo_kwargs={name: value for name, value in SMALL.items() if name in known} | changes,
    )
    result = agent_class(config, show_progress=False).learn()
    return tensors_of(result.checkpoint) | logs_of(result.run_dir)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="write the fingerprints to this file")
    parser.add_argument("--against", type=Path, help="compare with the fingerprints in this file")
    parser.add_argument("--only", nargs="*", help="the runs to make; all if not given")
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)


def run(args: argparse.Namespace) -> int:
    runs: dict[str, tuple[str, dict[str, Any]]] = {algo: (algo, {}) for algo in registry()}
    runs |= MORE
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in check_names(args.only, list(runs), "run"):
            for mode in args.modes:
                key = f"{name} {mode}"
                found[key] = fingerprint(*runs[name], mode, Path(folder))
                print(f"{key}: {digest(found[key])}", flush=True)
                if args.out:
                    args.out.write_text(json.dumps(found, indent=1))
    return compare(found, json.loads(args.against.read_text())) if args.against else 0


def compare(found: Fingerprints, before: Fingerprints) -> int:
    """Print which runs differ and where; return 1 if any does."""
    different = 0
    for name, hashes in found.items():
        wrong = sorted(key for key in hashes.keys() | before[name].keys() if hashes.get(key) != before[name].get(key))
        different += bool(wrong)
        if wrong:
            print(f"{name} differs: {', '.join(wrong[:8])}{' ...' if len(wrong) > 8 else ''}")
    print(f"{counted(len(found), 'run')} compared, {different} differ")
    return 1 if different else 0
