"""One rollout of tensor environments, in the memory of the device."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rl_training.core.memory_limits import check_memory
from rl_training.core.setup import Setup
from rl_training.core.spaces import Field, transition_fields
from rl_training.core.types import Batch, StateDict
from rl_training.hparams.ppo import OnPolicyHParams


class DeviceRollout:
    """Holds `num_steps` steps of every environment; each iteration overwrites it, so there is nothing to save."""

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        fields: Mapping[str, Field],
        *,
        axes: tuple[int, ...] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        """`axes`: of members, before the steps."""
        self.num_steps, self.num_envs, self.fields, self.device = num_steps, num_envs, fields, device
        self._axes = len(axes)
        self._tensors = {
            name: torch.zeros((*axes, num_steps, num_envs, *field.shape), dtype=_torch_dtype(field), device=device)
            for name, field in fields.items()
        }

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def __len__(self) -> int:
        return 0  # between iterations, where a run is saved

    def at(self, step: int) -> dict[str, Tensor]:
        """Return the memory of one step of every environment."""
        return {name: tensor.select(self._axes, step) for name, tensor in self._tensors.items()}

    def rows(self) -> Batch:
        """Return all rows, step by step, (..., num_steps * num_envs, ...)."""
        return {name: tensor.flatten(self._axes, self._axes + 1) for name, tensor in self._tensors.items()}

    def use(self, tensors: Mapping[str, Tensor]) -> None:
        """Hold these tensors in place of its own: the member's part of a stack."""
        self._tensors = dict(tensors)

    def add(self, transitions: Mapping[str, object]) -> None:
        raise RuntimeError("the rollout of a device is written by its loop")

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        pass


def stack_rollouts(rollouts: Sequence[DeviceRollout]) -> DeviceRollout:
    """Return one rollout for all members, of which each of the given ones becomes a part.

    The memory of the members is released first: that of the stack is as large.
    """
    one, axes = rollouts[0], (len(rollouts),)
    for rollout in rollouts:
        rollout.use({})
    stack = DeviceRollout(one.num_steps, one.num_envs, one.fields, axes=axes, device=one.device)
    for number, rollout in enumerate(rollouts):
        rollout.use({name: tensor[number] for name, tensor in stack._tensors.items()})
    return stack


def device_rollout_fields(setup: Setup[OnPolicyHParams]) -> dict[str, Field]:
    """Return the fields of one row: a transition, and the statistics of its episode."""
    flag, number, count = (Field((), np.dtype(kind)) for kind in (np.bool_, np.float32, np.int32))
    episode = {"episode": count, "episode_return": number, "episode_length": count}
    return {**transition_fields(setup.spaces), "truncated": flag, **episode}


def build_device_rollout(setup: Setup[OnPolicyHParams]) -> DeviceRollout:
    fields = device_rollout_fields(setup)
    rows = setup.hparams.num_steps * setup.num_envs
    if setup.device.type == "cpu":
        row_bytes = sum(field.num_bytes for field in fields.values())
        check_memory(rows * row_bytes, f"a rollout of {rows:,} rows", "algo_kwargs.num_steps or num_envs")
    return DeviceRollout(setup.hparams.num_steps, setup.num_envs, fields, device=setup.device)


def _torch_dtype(field: Field) -> torch.dtype:
    return torch.from_numpy(np.empty(0, field.dtype)).dtype
