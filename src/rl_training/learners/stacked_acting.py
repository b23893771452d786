"""Acting of all members of a stack: one call evaluates all networks on a GPU; on a CPU, each is evaluated by itself."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.acceleration.acting import on_arrays
from rl_training.acceleration.transfers import WORD, Block
from rl_training.core.types import Exploring, PendingActions, State
from rl_training.learners.scaling import Scaling
from rl_training.learners.stack import StackedLearner


class StackedActor(StackedLearner, Exploring, Protocol):
    """A learner that can act as a member of a stack."""

    @property
    def acting_entries(self) -> Collection[str]:
        """The entries of the state that acting reads."""
        ...

    @property
    def scaling(self) -> Scaling | None:
        """How observations and rewards are scaled; None if they are not."""
        ...

    def network_function(self) -> Callable[..., Tensor]:
        """Return the network's outputs as a pure function of (state, obs) or (state, obs, noise)."""
        ...

    def outputs(self, pending: PendingActions) -> np.ndarray:
        """Return the outputs of its own network, for which actions wait."""
        ...


class StackedOutputs:
    """The outputs of the networks of all members."""

    def __init__(self, learners: Sequence[StackedActor], state: State, device: torch.device, acceleration: str) -> None:
        """`state`: of the stack. Every call reads its present numbers."""
        self._learners, self._arrays = learners, list[np.ndarray]()
        self._forward: Callable[..., np.ndarray] | None = None
        if evaluates_together(device):
            acting = {name: state[name] for name in learners[0].acting_entries}
            each = torch.func.vmap(learners[0].network_function())
            self._forward = on_arrays(lambda *inputs: each(acting, *inputs), device, acceleration)

    def of(self, pending: Mapping[int, PendingActions]) -> dict[int, np.ndarray]:
        """Return the outputs for which the actions of these members wait."""
        if self._forward is None or not pending:
            return {number: self._learners[number].outputs(each) for number, each in pending.items()}
        parts = {number: self._inputs(each) for number, each in pending.items()}
        if not self._arrays:  # members that do not wait have rows, too
            first = next(iter(parts.values()))
            self._arrays = [np.zeros((len(self._learners), *part.shape), part.dtype) for part in first]
        for number, inputs in parts.items():
            for array, part in zip(self._arrays, inputs, strict=True):
                array[number] = part
        outputs = self._forward(*self._arrays)
        return {number: outputs[number] for number in pending}

    @staticmethod
    def _inputs(pending: PendingActions) -> list[np.ndarray]:
        return [pending.inputs] if pending.noise is None else [pending.inputs, pending.noise]


def evaluates_together(device: torch.device) -> bool:
    """Return whether one call evaluates all networks: small ones on a CPU are faster one by one, without PyTorch."""
    return device.type == "cuda"


class StackedStatistics:
    """The running statistics of members; one transfer writes their constants into the stacked state."""

    def __init__(self, scalings: Sequence[Scaling], state: State, device: torch.device) -> None:
        self._scalings, self._places = scalings, list[tuple[str, Tensor, Tensor]]()
        constants = scalings[0].running_constants() if scalings else {}
        words = {name: -(-state[name].numel() * state[name].element_size() // WORD) for name in constants}
        self._block, end = Block(WORD * sum(words.values()), device), 0
        for name in constants:
            host, sent = (self._part(words_, end, state[name]) for words_ in (self._block.host, self._block.on_device))
            self._places.append((name, host, sent))
            end += words[name]
        self._state = state

    @staticmethod
    def _part(words: Tensor, start: int, like: Tensor) -> Tensor:
        return words[start:].view(like.dtype)[: like.numel()].view(like.shape)

    def add(self, number: int, transitions: Mapping[str, np.ndarray]) -> None:
        """Add a step of the envs of a member."""
        if self._places:
            self._scalings[number].add(transitions)

    def write(self) -> None:
        """Write the constants of all members into the stacked state."""
        if not self._places:
            return
        self._block.wait()
        for number, scaling in enumerate(self._scalings):
            constants = scaling.running_constants()
            for name, host, _ in self._places:
                host[number] = constants[name]
        self._block.transfer()
        for name, _, sent in self._places:
            self._state[name].copy_(sent)
