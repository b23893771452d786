"""SAC's and REDQ's updates per second on a GPU: ours in each mode, others beside it, and the bare matrix products.

    python -m benchmarks gpu sac    (or `python -m benchmarks.gpu_sac OUT.json`)

The sizes are HalfCheetah's, with 1 or 20 updates per call. Sampling and the transfer of the batch are part of the
time. Those who do the same take turns; the median and the spread over the repeats are reported. stable-baselines3's SAC
is timed where it can be imported; `plain` is an eager loop without a library.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from benchmarks.gpu import (
    MODES,
    TRANSITIONS,
    Case,
    Seconds,
    build_updater,
    describe_device,
    differences,
    figures,
    random_transitions,
    ratios,
    run_gpu,
    timed,
)
from benchmarks.launch import SCRIPTS
from rl_training.algorithms.redq import build_redq
from rl_training.algorithms.sac import build_sac
from rl_training.data.schema import Spaces
from rl_training.hparams.actor_critic import REDQHParams, SACHParams

OBS_SIZE, ACTION_SIZE = 17, 6  # HalfCheetah's
SPACES = Spaces(Box(-np.inf, np.inf, (OBS_SIZE,), np.float32), Box(-1.0, 1.0, (ACTION_SIZE,), np.float32))
SAC_HPARAMS = SACHParams(buffer_capacity=TRANSITIONS)
REDQ_HPARAMS = REDQHParams(buffer_capacity=TRANSITIONS)
CASES = {
    "sac_1": Case(build=build_sac, spaces=SPACES, hparams=SAC_HPARAMS),
    "sac_20": Case(build=build_sac, spaces=SPACES, hparams=SAC_HPARAMS, at_once=20),
    "redq_20": Case(build=build_redq, spaces=SPACES, hparams=REDQ_HPARAMS, at_once=20),
}
WARM_UP = 100  # updates: compiling and capturing


class OnlySpaces(gym.Env[np.ndarray, np.ndarray]):
    """What a learner is built for; it is never stepped."""

    observation_space, action_space = SPACES.observation, SPACES.action


def sb3_sac(case: Case, device: str) -> Seconds:
    """Give the timer of stable-baselines3's SAC, on the same transitions."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger

    hparams = case.hparams
    model = SAC(
        "MlpPolicy", OnlySpaces(), buffer_size=TRANSITIONS, batch_size=hparams.batch_size, device=device, seed=0
    )
    model.set_logger(Logger(None, []))
    rows = random_transitions(case.spaces)
    for obs, next_obs, action, reward, terminated in zip(*rows.values(), strict=True):
        model.replay_buffer.add(obs, next_obs, action, reward, np.array([terminated]), [{}])
    return timed(lambda: model.train(case.at_once, hparams.batch_size), device, case.at_once)


def plain_sac(case: Case, device: str) -> Seconds:
    """Give the timer of SAC as one plain eager loop, on the same transitions."""
    from harness import Setting
    from plain_sac import PlainLearner

    hparams = case.hparams.model_dump(mode="json")
    setting = Setting(mode="speed", env_id="HalfCheetah-v5", steps=0, hparams=hparams, device=device)
    learner = PlainLearner(setting, SimpleNamespace(envs=[OnlySpaces()]))
    rows = random_transitions(case.spaces)
    for obs, next_obs, action, reward, terminated in zip(*rows.values(), strict=True):
        learner.buffer.add(obs, action, reward, next_obs, terminated)

    def call() -> None:
        for _ in range(case.at_once):
            learner.update()

    return timed(call, device, case.at_once)


def floor_us(algo: str, hparams: SACHParams) -> float:
    """Give the time of an update's matrix products, one after another in a CUDA graph."""
    from floor import layers_of_updates, seconds_of_graph, updates_of

    values = hparams.model_dump(mode="json")
    layers = layers_of_updates(algo, values, OBS_SIZE, ACTION_SIZE)
    seconds: float = seconds_of_graph([(layer, name) for layer in layers for name in layer.products])
    return 1e6 * seconds / float(updates_of(values))


OTHERS: dict[str, Callable[[Case, str], Seconds]] = {"sb3": sb3_sac, "plain": plain_sac}


def measure_case(
    name: str, target_s: float, repeats: int, device: str, modes: Sequence[str]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Give the updates/s of each repeat, and how far each mode's actor came away from eager's in the same updates."""
    case = CASES[name]
    ours = {mode: build_updater(case, mode, device) for mode in modes}
    timers = {mode: seconds for mode, (seconds, _) in ours.items()}
    if case.build is build_sac:
        for other, build in OTHERS.items():
            try:
                timers[other] = build(case, device)
            except ImportError as error:
                print(f"{name}: without {other} ({error})", flush=True)
    for seconds in timers.values():
        seconds(WARM_UP)
    away = differences({mode: parameters() for mode, (_, parameters) in ours.items()})
    counts = {who: max(1, round(target_s / seconds(20))) * 20 for who, seconds in timers.items()}  # whole calls
    rates: dict[str, list[float]] = {who: [] for who in timers}
    for _ in range(repeats):
        for who, seconds in timers.items():
            rates[who].append(counts[who] / seconds(counts[who]))
    return rates, away


def measure(
    target_s: float = 0.5, repeats: int = 5, device: str = "cuda", modes: Sequence[str] = MODES
) -> dict[str, Any]:
    """`target_s`: about how long a single timing takes."""
    if str(SCRIPTS) not in sys.path:  # the scripts find each other by the folder they lie in
        sys.path.insert(0, str(SCRIPTS))
    floors = {} if device == "cpu" else {"sac": floor_us("sac", SAC_HPARAMS), "redq": floor_us("redq", REDQ_HPARAMS)}
    rates, away = {}, {}
    for name in CASES:
        rates[name], away[name] = measure_case(name, target_s, repeats, device, modes)
        print(f"{name}: {', '.join(f'{who} {median(values):,.0f}' for who, values in rates[name].items())}", flush=True)
    return {
        **describe_device(device),
        "setting": {
            "repeats": repeats,
            "transitions": TRANSITIONS,
            "sac": SAC_HPARAMS.model_dump(mode="json"),
            "redq": REDQ_HPARAMS.model_dump(mode="json"),
        },
        "updates_per_s": {
            f"{name} {who}": figures(values) for name, found in rates.items() for who, values in found.items()
        },
        "ratio_to_eager": {name: ratios(found, "eager") for name, found in rates.items()},
        "ratio_to_sb3": {name: ratios(found, "sb3") for name, found in rates.items() if "sb3" in found},
        # The matrix products of an update alone, and their share of the time of a whole one.
        "floor_us_per_update": floors,
        "floor_share_of_update": {
            f"{name} {who}": 1e-6 * floors[name.partition("_")[0]] * median(values)
            for name, found in rates.items()
            for who, values in found.items()
            if floors
        },
        # After the same batches. Captured equals compiled; against eager, rounding has grown.
        f"largest_difference_to_eager_after_{WARM_UP}": away,
    }


def run_gpu_sac(out: Path) -> int:
    return run_gpu(out, measure)


if __name__ == "__main__":
    sys.exit(run_gpu_sac(Path(sys.argv[1])))
