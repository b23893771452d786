"""Export every algorithm to ONNX and compare the time of one action with `predict`.

    python -m benchmarks export

The policies are those of the reference configs and of some with images, with their first weights: neither the check
against the agent nor the time depends on what they have learned. Times are those of the processor, on one thread:
medians over rounds of calls that take turns.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.command_line import add_out, check_names, result_folder
from benchmarks.machine import describe_run
from benchmarks.results import Session
from rl_training.experiment.config_files import load_config
from rl_training.experiment.registry import ROWS
from rl_training.exporting.check import check_policy
from rl_training.exporting.contract import PAIRS, POLICY_FILES
from rl_training.exporting.onnx_file import OnnxPolicy
from rl_training.exporting.writing import Source, export_policy
from rl_training.runtime.predicting import make_player
from rl_training.runtime.run_spaces import network_spaces, spaces_of
from rl_training.runtime.saved_policy import config_for_acting, env_factory_of
from rl_training.runtime.setup import RunOptions, make_setup

# By config: the reference of each algorithm, then other observations and heads.
CASES = {
    **{spec.name: spec.reference_config for spec in ROWS},
    "dqn, MinAtar": "dqn/minatar.yaml",
    "dqn, Atari": "dqn/pong_atari.yaml",
    "ppo, Pendulum": "ppo/pendulum.yaml",
    "ppo, Atari": "ppo/pong_atari.yaml",
    "sac, HalfCheetah": "sac/halfcheetah.yaml",
    "dreamer, Atari": "dreamer/breakout_atari.yaml",
}
ROUNDS, CALLS = 9, 40


def source_of(config_file: str) -> Source:
    """Return the agent of a config with its first weights."""
    config = config_for_acting(load_config(f"configs/{config_file}").updated(device="cpu"))
    factory = env_factory_of(config, RunOptions())
    spaces = spaces_of(factory)
    if config.obs_max == "auto":
        config = config.updated(obs_max=255)
    setup = make_setup(config, factory, spaces=network_spaces(spaces, config))
    algorithm = config.spec.build_algorithm(setup)
    return Source(config=config, algorithm=algorithm, spaces=spaces, factory=factory, step=0)


def measure(name: str, folder: Path, pairs: int) -> dict[str, Any]:
    """Export one policy, check the folder, and time one action."""
    source = source_of(CASES[name])
    start = time.perf_counter()
    contract = export_policy(source, folder, pairs=pairs)
    export_s = time.perf_counter() - start
    max_error = check_policy(folder)[1]
    policy = OnnxPolicy(
        (folder / POLICY_FILES["onnx"]).read_bytes(), contract.inputs, contract.outputs, what="benchmarks export"
    )
    recorded = np.load(folder / PAIRS)
    inputs = {port.name: recorded[port.name][:1] for port in contract.inputs}
    player = make_player(source.algorithm, source.spaces, source.config.spec)
    times = take_turns({"onnx_us": lambda: policy(inputs), "predict_us": lambda: player(inputs["obs"])})
    return {
        "case": name,
        "env_id": contract.env_id,
        "pairs": contract.pairs,
        "max_error": max_error,
        "file_kb": round((folder / POLICY_FILES["onnx"]).stat().st_size / 1024, 1),
        "export_s": round(export_s, 2),
        **times,
    }


def take_turns(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the processor time of each call in microseconds: the median over rounds of the mean of a round."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS + 1):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(CALLS):
                call()
            found[name].append((time.process_time() - start) / CALLS * 1e6)
    return {name: round(median(times[1:]), 1) for name, times in found.items()}  # the first round warms up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--pairs", type=int, default=256, help="pairs to record and compare (default: 256)")
    add_out(parser)


def run(args: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    session = Session(result_folder(args) / "export.jsonl", describe_run())
    for name in check_names(args.cases, list(CASES), "case"):
        folder = Path(tempfile.mkdtemp()) / "policy"
        try:
            line = measure(name, folder, args.pairs)
        finally:
            shutil.rmtree(folder.parent)
        session.add(line)
        print(
            f"{name}: largest error {line['max_error']:.1g}, {line['file_kb']:,} KB, onnxruntime {line['onnx_us']} us, "
            f"predict {line['predict_us']} us, exported in {line['export_s']} s",
            flush=True,
        )
    return 0
