"""Updates per second on a GPU: the DQN update eager, compiled, and captured in a CUDA graph.

    python -m benchmarks gpu        (or `python benchmarks/gpu.py OUT.json` where only the library is installed)

Each mode gets the same replay memory and the same number of updates; sampling and the transfer of the batch are part
of the time. Modes alternate; the median and the spread over the repeats are reported.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Discrete

from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.experiment.registry import find_spec
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
Seconds = Callable[[int], float]  # gives the time of so many updates


@dataclass(frozen=True, kw_only=True)
class Case:
    """An algorithm of ours that learns from random transitions.

    `at_once`: updates per call. `others`: who does the same, by name: from the case and the device to a timer.
    """

    algo: str
    spaces: Spaces
    hparams: Any  # the algorithm's, with a batch_size
    at_once: int = 1
    others: Mapping[str, "Callable[[Case, str], Seconds]"] = field(default_factory=dict)


def random_transitions(spaces: Spaces) -> dict[str, np.ndarray]:
    rng, shape = np.random.default_rng(0), (TRANSITIONS, *(spaces.observation.shape or ()))
    return {
        "obs": rng.normal(size=shape),
        "next_obs": rng.normal(size=shape),
        "actions": rng.integers(int(spaces.action.n), size=TRANSITIONS)
        if isinstance(spaces.action, Discrete)
        else rng.uniform(-1.0, 1.0, (TRANSITIONS, *(spaces.action.shape or ()))),
        "rewards": np.ones(TRANSITIONS),
        "terminated": rng.random(TRANSITIONS) < 0.05,
    }


def random_dataset(spaces: Spaces) -> TransitionDataset:
    """Give the random transitions as an offline algorithm learns from them."""
    rows = random_transitions(spaces)
    single = {name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in rows.items()}
    truncated = np.zeros(TRANSITIONS, np.bool_)
    return TransitionDataset(**single, truncated=truncated, spaces=spaces, env_id="", source="random transitions")


def timed(call: Callable[[], object], device: str, at_once: int = 1) -> Seconds:
    """Give a function that times `call`, which makes `at_once` updates."""

    def seconds(updates: int) -> float:
        start = time.perf_counter()
        for _ in range(updates // at_once):
            call()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return seconds


def build_updater(case: Case, mode: str, device: str) -> tuple[Seconds, Callable[[], torch.Tensor]]:
    """Give a function that times n updates of one mode, and one that shows the parameters reached."""
    setup: Setup[Any] = Setup(
        spaces=case.spaces,
        hparams=case.hparams,
        total_timesteps=50_000,
        total_updates=find_spec(case.algo).updates_until(case.hparams, 50_000),
        streams=Streams(0),
        device=torch.device(device),
        acceleration=mode,
    )
    spec = find_spec(case.algo)
    offline = spec.loop == "offline"
    setup = replace(setup, dataset=random_dataset(case.spaces)) if offline else setup
    algorithm, memory = spec.build_algorithm(setup), spec.build_memory(setup)
    if not offline:
        memory.add(random_transitions(case.spaces))
    sample = memory.sampler(case.hparams.batch_size * case.at_once)
    seconds = timed(lambda: algorithm.update(sample()), device, case.at_once)
    return seconds, lambda: torch.cat([value.flatten() for value in algorithm.policy_state_dict().values()]).cpu()


def describe_device(device: str = "cuda") -> dict[str, Any]:
    return {
        "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0], "gymnasium": gym.__version__},
    }


def figures(rates: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(rates), "min": min(rates), "max": max(rates), "all": list(rates)}


def ratios(rates: Mapping[str, Sequence[float]], to: str) -> dict[str, float]:
    return {name: statistics.median(values) / statistics.median(rates[to]) for name, values in rates.items()}


def differences(reached: Mapping[str, torch.Tensor]) -> dict[str, float]:
    return {mode: float((values - reached["eager"]).abs().max()) for mode, values in reached.items()}


def measure(updates: int = 2_000, repeats: int = 5, device: str = "cuda") -> dict[str, Any]:
    env = gym.make("CartPole-v1")
    case = Case(algo="dqn", spaces=Spaces(env.observation_space, env.action_space), hparams=HPARAMS)
    updaters = {mode: build_updater(case, mode, device) for mode in MODES}
    for seconds, _ in updaters.values():
        seconds(100)  # compiling, capturing and warming up
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(repeats):
        for mode, (seconds, _) in updaters.items():
            rates[mode].append(updates / seconds(updates))
    reached = {mode: parameters() for mode, (_, parameters) in updaters.items()}
    return {
        **describe_device(device),
        "setting": {"updates": updates, "repeats": repeats, **HPARAMS.model_dump(mode="json")},
        "updates_per_s": {mode: figures(values) for mode, values in rates.items()},
        "ratio_to_eager": ratios(rates, "eager"),
        # The modes draw the same batches. Captured equals compiled; against eager, rounding has grown over all updates.
        "largest_difference_to_eager": differences(reached),
    }


def print_rates(updates_per_s: Mapping[str, Mapping[str, Any]]) -> None:
    for name, row in updates_per_s.items():
        print(f"{name:20s} {row['median']:10,.0f} updates/s  ({row['min']:,.0f} to {row['max']:,.0f})")


def run_gpu(out: Path, measure: Callable[[], Iterable[dict[str, Any]]] = lambda: [measure()]) -> int:
    """Measure on the GPU and write `out`, anew after each part; the `updates_per_s` of all are printed at the end."""
    if not torch.cuda.is_available():
        print("error: this benchmark needs a CUDA device, and PyTorch sees none", file=sys.stderr)
        return 2
    results: dict[str, Any] = {"updates_per_s": {}}
    out.parent.mkdir(parents=True, exist_ok=True)
    for results in measure():
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print_rates(results["updates_per_s"])
    print(f"written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(run_gpu(Path(sys.argv[1])))
