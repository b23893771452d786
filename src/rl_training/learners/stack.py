"""The learners of several members as one: one stacked state, of which each learner's own is a row, and one step."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.acceleration.stacking import ALIVE, stacked
from rl_training.acceleration.steps import Step, accelerate_rounds
from rl_training.acceleration.transfers import WORD, Block
from rl_training.core.counted import counted
from rl_training.core.memory_limits import check_memory
from rl_training.core.types import TD_ERRORS, Batch, Metrics, State, without_td_errors
from rl_training.hparams.base import HParams
from rl_training.learners.member_settings import differing_settings
from rl_training.learners.random_inputs import MemberInputs, RandomInput

COPIES = 4  # of the state: the state, what a step computes from it, and room for activations


class StackedLearner(Protocol):
    """A learner that can be a member of a stack."""

    num_updates: int

    @property
    def state(self) -> State: ...

    @property
    def hparams(self) -> HParams: ...

    @property
    def pure_steps(self) -> Mapping[str, Step]:
        """The step of each kind of update."""
        ...

    @property
    def noise(self) -> np.random.Generator:
        """What random inputs are drawn with."""
        ...

    def scheduled_rates(self) -> Mapping[str, float]:
        """Return the learning rates of the next updates by their names in the state; none if they are constant."""
        ...

    def kinds(self, rounds: int) -> Sequence[tuple[str, int]]:
        """Return the kinds of the next updates in order, each with how many there are; the same for all members."""
        ...

    def random_inputs(self, kind: str, rounds: int) -> Mapping[str, RandomInput]:
        """Return what is drawn for so many updates of a kind."""
        ...

    def end_updates(self) -> None:
        """Change the state by what is due after the updates that were counted last, such as a copy of a network."""
        ...

    def keep(self, metrics: Metrics) -> Metrics:
        """Take the metrics of updates; return those of the run."""
        ...

    @property
    def use_state(self) -> Callable[[State], None]:
        """Replace the tensors of the state by others, which hold the same numbers."""
        ...


class Stack:
    """Updates all members in one call. Their learners act, evaluate and are saved as if each were alone."""

    def __init__(self, learners: Sequence[StackedLearner], per_member: Collection[str], acceleration: str) -> None:
        """`per_member`: the settings in which members may differ."""
        self._learners = learners
        self.state = stack_states([learner.state for learner in learners])
        names, device = list(self.state), next(iter(self.state.values())).device
        for number, learner in enumerate(learners):
            learner.use_state({name: self.state[name][number] for name in names})
        self.state |= differing_settings([learner.hparams for learner in learners], per_member, device)
        self.state[ALIVE] = torch.ones(len(learners), dtype=torch.bool, device=device)
        self._steps_in_place = {
            kind: accelerate_rounds(stacked(step), acceleration, "update of all members")
            for kind, step in learners[0].pure_steps.items()
        }
        self.errors: Tensor | None = None  # of the last updates
        self._rates: Block | None = None
        self._inputs = cache(self._make_inputs)  # by the kind and the number of updates
        self._device = device

    def update(self, batch: Batch, rounds: int) -> Metrics:
        """Make `rounds` updates; the batch has rows (rounds * members, batch, ...). The metrics are means, (members,).

        `errors` are then those of single rows, (rounds, members, batch), if prioritized replay asks for them. Nothing
        waits for the device.
        """
        self._set_rates()
        metrics, errors, end = dict[str, Tensor](), list[Tensor](), 0
        for kind, count in self._learners[0].kinds(rounds):
            start, end = end, end + count * len(self._learners)
            part = batch if count == rounds else {name: values[start:end] for name, values in batch.items()}
            drawn = self._inputs(kind, count).fill([learner.noise for learner in self._learners])
            new = self._steps_in_place[kind](self.state, part | drawn, count)
            if TD_ERRORS in new:
                errors.append(new.pop(TD_ERRORS).reshape(count, len(self._learners), -1))
            metrics |= new if count == 1 else {name: values.mean(0) for name, values in new.items()}
        self.errors = torch.cat(errors) if errors else None
        for learner in self._learners:
            learner.num_updates += rounds
            learner.end_updates()
        return metrics

    def _set_rates(self) -> None:
        """Write the learning rates that change: with one transfer, not one for each member and rate."""
        rates = [learner.scheduled_rates() for learner in self._learners]
        if not rates[0]:
            return
        if self._rates is None:
            self._rates = Block(WORD * len(rates[0]) * len(rates), self._device)
        self._rates.wait()
        shape = (len(rates[0]), len(rates))
        self._rates.host.view(torch.float64).view(shape).numpy()[:] = [
            [own[name] for own in rates] for name in rates[0]
        ]
        self._rates.transfer()
        for name, values in zip(rates[0], self._rates.on_device.view(torch.float64).view(shape), strict=True):
            self.state[name].copy_(values)

    def _make_inputs(self, kind: str, rounds: int) -> MemberInputs:
        inputs = self._learners[0].random_inputs(kind, rounds)
        return MemberInputs(inputs, rounds, len(self._learners), self._device)

    def alive(self) -> list[bool]:
        """Return which members have had finite numbers only; waits for the device."""
        flags: list[bool] = self.state[ALIVE].tolist()
        return flags


def stackable_steps(hparams: HParams, steps: Mapping[str, Step]) -> Mapping[str, Step]:
    """Return the steps for a stack: the errors of single rows are kept for prioritized replay alone."""
    keeps = getattr(hparams, "prioritized", False)
    return steps if keeps else {kind: _without_errors(step) for kind, step in steps.items()}


def _without_errors(step: Step) -> Step:
    def step_without_errors(state: State, batch: Batch) -> tuple[State, Metrics]:
        new, metrics = step(state, batch)
        return new, without_td_errors(metrics)

    return step_without_errors


def stack_states(states: Sequence[State]) -> State:
    """Return the states of all members as one, with a leading axis."""
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def state_bytes(state: State) -> int:
    """Return about how much memory of the device the state of one member needs, with its updates."""
    return COPIES * sum(value.numel() * value.element_size() for value in state.values())


def check_stack(members: int, per_member: int, shared: int, device: torch.device) -> None:
    """Raise `ConfigError` if the members, and what they share, do not fit into the memory of the device."""
    available = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    sizes = f"{per_member / 2**20:.1f} MiB each, {shared / 2**20:.1f} MiB for all"
    what = f"a stack of {counted(members, 'member')} ({sizes})"
    check_memory(members * per_member + shared, what, "the number of members", available=available)


def to_host(metrics: Metrics) -> dict[str, Tensor]:
    """Copy the metrics of all members to the host in one transfer."""
    packed = torch.stack([value.float() for value in metrics.values()]).cpu()
    return dict(zip(metrics, packed, strict=True))
