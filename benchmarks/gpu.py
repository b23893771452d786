"""Updates per second on a GPU: the DQN update eager, compiled, and captured in a CUDA graph.

    python -m benchmarks gpu        (or `python benchmarks/gpu.py OUT.json` where only the library is installed)

Each mode gets the same replay memory and the same number of updates; sampling and the transfer of the batch are part
of the time. Modes alternate; the median and the spread over the repeats are reported.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.base import Setup
from rl_training.algorithms.dqn import build_dqn
from rl_training.data.replay_buffer import build_replay_buffer
from rl_training.data.schema import Spaces
from rl_training.experiment.seeding import Streams
from rl_training.hparams.dqn import DQNHParams

MODES = ("eager", "compile", "cuda_graph")
HPARAMS = DQNHParams(
    batch_size=128,
    hidden_sizes=(120, 84),
    target_update_interval=500,
    learning_rate=2.5e-4,
    learning_rate_schedule="constant",
    layer_norm=False,
)
TRANSITIONS = 10_000


def build_updater(mode: str, device: str) -> tuple[Callable[[int], float], Callable[[], torch.Tensor]]:
    """Give a function that times n updates of one mode, and one that shows the parameters reached."""
    env = gym.make("CartPole-v1")
    setup = Setup(
        spaces=Spaces(env.observation_space, env.action_space),
        hparams=HPARAMS,
        total_timesteps=50_000,
        streams=Streams(0),
        device=torch.device(device),
        acceleration=mode,
    )
    algorithm, memory = build_dqn(setup), build_replay_buffer(setup)
    rng = np.random.default_rng(0)
    memory.add(
        {
            "obs": rng.normal(size=(TRANSITIONS, 4)),
            "next_obs": rng.normal(size=(TRANSITIONS, 4)),
            "actions": rng.integers(2, size=TRANSITIONS),
            "rewards": np.ones(TRANSITIONS),
            "terminated": rng.random(TRANSITIONS) < 0.05,
        }
    )
    sample = memory.sampler(HPARAMS.batch_size)

    def seconds(updates: int) -> float:
        start = time.perf_counter()
        for _ in range(updates):
            algorithm.update(sample())
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return seconds, lambda: torch.cat([value.flatten() for value in algorithm.policy_state_dict().values()]).cpu()


def measure(updates: int = 2_000, repeats: int = 5, device: str = "cuda") -> dict[str, Any]:
    updaters = {mode: build_updater(mode, device) for mode in MODES}
    for seconds, _ in updaters.values():
        seconds(100)  # compiling, capturing and warming up
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(repeats):
        for mode, (seconds, _) in updaters.items():
            rates[mode].append(updates / seconds(updates))
    reached = {mode: parameters() for mode, (_, parameters) in updaters.items()}
    return {
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0], "gymnasium": gym.__version__},
        "setting": {"updates": updates, "repeats": repeats, **HPARAMS.model_dump(mode="json")},
        "updates_per_s": {
            mode: {"median": statistics.median(values), "min": min(values), "max": max(values), "all": values}
            for mode, values in rates.items()
        },
        "ratio_to_eager": {
            mode: statistics.median(values) / statistics.median(rates["eager"]) for mode, values in rates.items()
        },
        # The modes draw the same batches. Captured equals compiled; against eager, rounding has grown over all updates.
        "largest_difference_to_eager": {
            mode: float((values - reached["eager"]).abs().max()) for mode, values in reached.items()
        },
    }


def run_gpu(out: Path) -> int:
    if not torch.cuda.is_available():
        print("error: this benchmark needs a CUDA device, and PyTorch sees none", file=sys.stderr)
        return 2
    results = measure()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for mode, figures in results["updates_per_s"].items():
        print(f"{mode:12s} {figures['median']:10,.0f} updates/s  ({figures['min']:,.0f} to {figures['max']:,.0f})")
    print(f"written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(run_gpu(Path(sys.argv[1])))
