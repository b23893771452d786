"""Settings that differ between the members of a stack: entries `hp.<name>` of its state.

A run alone has no such entries: its settings are constants of the compiled step. In a stack, those that differ are
tensors with one number per member, which the step reads in place of the constants.
"""

from collections.abc import Collection, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from rl_training.core.types import State
from rl_training.hparams.base import HParams

PREFIX = "hp."

H = TypeVar("H", bound=HParams)


def hparams_in(state: State, hparams: H) -> H:
    """Return the settings, where a stack's state holds some of them with these as 0-d tensors."""
    own = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
    return hparams.model_copy(update=own) if own else hparams  # not validated: a tensor in place of a number


def differing_settings(members: Sequence[HParams], names: Collection[str], device: torch.device) -> dict[str, Tensor]:
    """Return the entries of a stacked state for those of the settings `names` in which the members differ."""
    values = {name: [getattr(hparams, name) for hparams in members] for name in sorted(names)}
    return {
        f"{PREFIX}{name}": torch.tensor([float(number) for number in numbers], device=device)
        for name, numbers in values.items()
        if len(set(numbers)) > 1 and all(isinstance(number, int | float) for number in numbers)
    }
