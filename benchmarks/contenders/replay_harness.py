"""What the contenders of the replay benchmark share: the transitions, the clock, and the JSON line they print.

Every contender receives transitions in the form that its `add` takes, prepared in advance. A batch counts in the form
that `sample` returns: numpy arrays are not converted to tensors.
"""

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from statistics import median
from typing import Any

import numpy as np

EPISODE = 1_000  # steps
FRAMES = 4  # of a stack
ROUNDS = 7  # the median of them counts


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is stored and how it is sampled."""

    kind: str  # "floats": 17 of them; "images": stacks of 4 frames, 84x84 uint8
    prioritized: bool
    capacity: int
    batch_size: int = 256
    variant: str = ""  # of the contender
    threads: int = 1


class Transitions:
    """Consecutive steps, repeated in a loop: step t + 1 begins where t ends."""

    def __init__(self, kind: str, length: int = 4 * EPISODE) -> None:
        rng = np.random.default_rng(0)
        self.kind, self.length = kind, length
        if kind == "floats":
            self._obs = rng.normal(size=(length + 1, 17)).astype(np.float32)
        else:
            self._frames = rng.integers(0, 256, (length + FRAMES, 84, 84), np.uint8)
        self.actions = rng.integers(6, size=length)
        self.rewards = rng.normal(size=length).astype(np.float32)

    def obs(self, step: int) -> np.ndarray:
        """Return (17,) floats or (4, 84, 84) bytes, contiguous and without a copy."""
        return self._obs[step] if self.kind == "floats" else self._frames[step : step + FRAMES]

    def ends(self, step: int) -> bool:
        """Return whether a time limit ends an episode there; none terminates."""
        return step % EPISODE == EPISODE - 1


class ReplayContender(ABC):
    """An empty replay buffer of a library."""

    @abstractmethod
    def prepare(self, transitions: Transitions, step: int) -> Any:
        """Return a transition in the form that `add` takes."""

    @abstractmethod
    def add(self, prepared: Any) -> None: ...

    @abstractmethod
    def sample(self) -> Any:
        """Sample a batch."""

    def update_priorities(self, batch: Any, td_errors: np.ndarray) -> None:
        """Set the priorities of a batch, in a prioritized buffer."""
        raise NotImplementedError

    @abstractmethod
    def num_rows(self) -> int: ...

    def check(self, batch: Any) -> None:
        """Raise an error if a batch is not as requested."""
        return


def cpu_us(action: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Return the CPU and the wall time of one call, in microseconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        action()
    return (time.process_time() - cpu) / calls * 1e6, (time.perf_counter() - wall) / calls * 1e6


def measure(contender: ReplayContender, case: Case) -> dict[str, dict[str, float]]:
    """Fill the buffer, then time its operations in turn."""
    transitions = Transitions(case.kind)
    prepared = [contender.prepare(transitions, step) for step in range(transitions.length)]
    for step in range(case.capacity + transitions.length):  # every row was written before, so its memory pages exist
        contender.add(prepared[step % transitions.length])
    if contender.num_rows() != case.capacity:
        raise RuntimeError(f"the buffer holds {contender.num_rows()} rows, expected {case.capacity}")
    td_errors = np.random.default_rng(1).random(case.batch_size).astype(np.float32)
    contender.check(contender.sample())
    steps = iter(range(case.capacity + transitions.length, 10**9))

    def add() -> None:
        contender.add(prepared[next(steps) % transitions.length])

    def sample_and_update() -> None:
        contender.update_priorities(contender.sample(), td_errors)

    def add_sample_and_update() -> None:  # includes work that `add` defers to the next sample
        add()
        sample_and_update()

    operations: dict[str, tuple[Callable[[], Any], int]] = {"add": (add, 2_000)}
    if case.prioritized:
        operations["sample_and_update"] = (sample_and_update, 200)
        operations["add_sample_and_update"] = (add_sample_and_update, 200)
    else:
        operations["sample"] = (contender.sample, 200)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in operations}
    for number in range(ROUNDS + 1):
        for name, (action, calls) in operations.items():
            taken = cpu_us(action, calls if case.kind == "floats" else calls // 4)
            if number > 0:  # the first round warms up
                times[name].append(taken)
    return {
        name: {"cpu_us": median(cpu for cpu, _ in taken), "wall_us": median(wall for _, wall in taken)}
        for name, taken in times.items()
    }


def main(build: Callable[[Case], ReplayContender], packages: Sequence[str]) -> None:
    case = Case(**json.loads(sys.argv[1]))
    line = {
        "times": measure(build(case), case),
        "case": asdict(case),
        "versions": {name: version(name) for name in packages},
        "python": sys.version.split()[0],
    }
    print(json.dumps(line), flush=True)
