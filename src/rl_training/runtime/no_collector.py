"""The collector of runs that take no env steps."""

from collections.abc import Mapping
from typing import Any

from rl_training.core.types import StateDict
from rl_training.runtime.collector import Episode


class NoCollector:
    """The collector of a run that takes no env steps: nothing to start, to save or to restore."""

    replayable, exact, exactness = True, True, "exact"

    def __init__(self) -> None:
        self.finished: list[Episode] = []
        self.inexact_restores: list[int] = []

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
