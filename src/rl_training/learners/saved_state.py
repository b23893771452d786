"""What the state dicts of all algorithms have in common: tensors that are copied in place, and generators."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.state_checks import check_like
from rl_training.core.types import State, StateDict
from rl_training.errors import CheckpointError


def tensors_to_save(state: State, *, without: Collection[str] = ()) -> StateDict:
    """Return the entries of the state, except those that are saved elsewhere, such as the policy's weights."""
    return {name: value for name, value in state.items() if name not in without}


def load_tensors(state: State, saved: Mapping[str, Any], *, without: Collection[str] = ()) -> None:
    """Copy saved entries into the state's own tensors, on which modules and compiled steps hold views."""
    for name, value in state.items():
        if name not in without:
            if name not in saved:
                raise CheckpointError(f"the checkpoint holds no {name}: it was saved by another version or algorithm")
            check_like(saved[name], value, name)
            value.copy_(saved[name])


def generators_to_save(generators: Mapping[str, np.random.Generator]) -> StateDict:
    return {name: generator_state(generator) for name, generator in generators.items()}


def load_generators(generators: Mapping[str, np.random.Generator], saved: Mapping[str, Any]) -> None:
    for name, generator in generators.items():
        set_generator_state(generator, saved[name])
