"""Updates per second on a GPU: cases of ours in each mode, others beside them, and the bare matrix products.

Sampling and the transfer of the batch are part of the time. Those who do the same take turns; the median and the spread
over the repeats are reported. The sizes are HalfCheetah's.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
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
    ratios,
    run_gpu,
    timed,
)
from benchmarks.launch import SCRIPTS
from rl_training.core.spaces import Spaces

OBS_SIZE, ACTION_SIZE = 17, 6  # HalfCheetah's
SPACES = Spaces(Box(-np.inf, np.inf, (OBS_SIZE,), np.float32), Box(-1.0, 1.0, (ACTION_SIZE,), np.float32))
WARM_UP = 100  # updates: compiling and capturing


@dataclass(frozen=True, kw_only=True)
class Family:
    """Cases that are measured in one command. `reference`: whom the others are divided by, besides our eager mode."""

    cases: Mapping[str, Case]
    reference: str


class OnlySpaces(gym.Env[np.ndarray, np.ndarray]):
    """What a learner is built for; it is never stepped."""

    observation_space, action_space = SPACES.observation, SPACES.action


def repeated(update: Callable[[], object], case: Case, device: str) -> Seconds:
    """Give the timer of a learner that makes one update per call."""

    def call() -> None:
        for _ in range(case.at_once):
            update()

    return timed(call, device, case.at_once)


def floor_us(case: Case) -> float:
    """Give the time of an update's matrix products, one after another in a CUDA graph."""
    from floor import layers_of_updates, seconds_of_graph, updates_of

    values = case.hparams.model_dump(mode="json")
    layers = layers_of_updates(case.algo, values, OBS_SIZE, ACTION_SIZE)
    seconds: float = seconds_of_graph([(layer, name) for layer in layers for name in layer.products])
    return 1e6 * seconds / float(updates_of(values))


def measure_case(
    name: str, case: Case, *, target_s: float, repeats: int, device: str, modes: Sequence[str]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Give the updates/s of each repeat, and how far each mode's actor came away from eager's in the same updates."""
    ours = {mode: build_updater(case, mode, device) for mode in modes}
    timers = {mode: seconds for mode, (seconds, _) in ours.items()}
    for seconds in timers.values():
        seconds(WARM_UP)
    for other, build in case.others.items():
        try:
            seconds = build(case, device)
            seconds(WARM_UP)
        except Exception as error:  # it is not here, or does not work here: whatever other libraries raise
            print(f"{name}: without {other} ({error})", flush=True)
        else:
            timers[other] = seconds
    reached = {mode: parameters() for mode, (_, parameters) in ours.items()}
    counts = {who: max(1, round(target_s / seconds(20))) * 20 for who, seconds in timers.items()}  # whole calls
    rates: dict[str, list[float]] = {who: [] for who in timers}
    for _ in range(repeats):
        for who, seconds in timers.items():
            rates[who].append(counts[who] / seconds(counts[who]))
    return rates, differences(reached) if "eager" in reached else {}


def measure(
    family: Family, *, target_s: float = 0.5, repeats: int = 5, device: str = "cuda", modes: Sequence[str] = MODES
) -> Iterator[dict[str, Any]]:
    """Give all results so far after each case. `target_s`: about how long a single timing takes."""
    if str(SCRIPTS) not in sys.path:  # the scripts find each other by the folder they lie in
        sys.path.insert(0, str(SCRIPTS))
    floors: dict[str, float] = {}
    rates: dict[str, dict[str, list[float]]] = {}
    away: dict[str, dict[str, float]] = {}
    for name, case in family.cases.items():
        if case.algo not in floors and device != "cpu":
            floors[case.algo] = floor_us(case)
        rates[name], away[name] = measure_case(
            name, case, target_s=target_s, repeats=repeats, device=device, modes=modes
        )
        print(f"{name}: {', '.join(f'{who} {median(values):,.0f}' for who, values in rates[name].items())}", flush=True)
        yield {
            **describe_device(device),
            "setting": {
                "repeats": repeats,
                "transitions": TRANSITIONS,
                "modes": list(modes),
                **{case.algo: case.hparams.model_dump(mode="json") for case in family.cases.values()},
            },
            "updates_per_s": {
                f"{name} {who}": figures(values) for name, found in rates.items() for who, values in found.items()
            },
            **{
                f"ratio_to_{to}": {name: ratios(found, to) for name, found in rates.items() if to in found}
                for to in ("eager", family.reference)
            },
            # The matrix products of an update alone, and their share of the time of a whole one.
            "floor_us_per_update": dict(floors),
            "floor_share_of_update": {
                f"{name} {who}": 1e-6 * floors[family.cases[name].algo] * median(values)
                for name, found in rates.items()
                for who, values in found.items()
                if floors
            },
            # After the same batches. Captured equals compiled; against eager, rounding has grown.
            f"largest_difference_to_eager_after_{WARM_UP}": dict(away),
        }


def run_family(family: Family, out: Path, modes: Sequence[str] = MODES) -> int:
    return run_gpu(out, lambda: measure(family, modes=modes))
