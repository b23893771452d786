"""The weights with which runs begin."""

from typing import Any

from rl_training.core.types import StateDict
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from state_comparison import clone


class FirstPolicy(Callback):
    """Copies the policy of each run before its first step, by seed; copies of this callback share what they found."""

    def __init__(self) -> None:
        self.of: dict[int, StateDict] = {}

    def __deepcopy__(self, memo: Any) -> "FirstPolicy":
        return self

    def on_start(self, run: Run) -> None:
        self.of[run.config.seed] = clone(run.algorithm.policy_state_dict())
