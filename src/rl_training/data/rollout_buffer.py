"""The rollout buffer: what was collected since the last update, [steps, envs], in order."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rl_training.core.memory_limits import check_memory
from rl_training.core.setup import Setup
from rl_training.core.spaces import Field, mask_size, transition_fields
from rl_training.core.state_checks import stored_array, stored_count
from rl_training.core.types import Batch
from rl_training.errors import CheckpointError
from rl_training.hparams.ppo import OnPolicyHParams


class RolloutBuffer:
    """Holds one rollout of `num_steps` steps of every env.

    At a time limit and at the end of the rollout, the next observation is not that of the next row. It is stored as
    well: its value replaces the rewards that the rollout does not hold.
    """

    def __init__(
        self, num_steps: int, num_envs: int, fields: Mapping[str, Field], *, device: torch.device | str = "cpu"
    ) -> None:
        self.num_steps, self.num_envs = num_steps, num_envs
        self._arrays = {
            name: np.zeros((num_steps, num_envs, *field.shape), field.dtype) for name, field in fields.items()
        }
        # Each as one long batch, the same tensors at every rollout: a compiled step recognises tensors it has seen.
        self._host = {name: torch.from_numpy(array).flatten(0, 1) for name, array in self._arrays.items()}
        self._batch = {name: tensor.to(device) for name, tensor in self._host.items()}
        self._position = 0
        self._final_rows: list[int] = []
        self._final_obs: list[np.ndarray] = []
        self._last_obs: np.ndarray | None = None  # those that follow the newest step
        self._resumed = False

    def __len__(self) -> int:
        return self._position * self.num_envs

    @property
    def full(self) -> bool:
        return self._position == self.num_steps

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Store one step of every env."""
        if self.full:
            raise RuntimeError("the rollout is full: call rollout() before adding the next step")
        step = self._position
        if self._resumed:
            self._end_broken(transitions)
        for name, array in self._arrays.items():
            array[step] = transitions[name]
        self._position += 1
        self._last_obs = transitions["next_obs"]
        ends = self.full or transitions["truncated"].any()
        for env in np.flatnonzero(transitions["truncated"] | self.full) if ends else ():
            self._final_rows.append(step * self.num_envs + int(env))
            self._final_obs.append(transitions["next_obs"][env].copy())

    def rollout(self) -> Batch:
        """Return the rows, step by step, `(num_steps * num_envs, *shape)`, and clear the buffer.

        The tensors are valid until the next `add`. `final_obs` are the observations that follow the rows `final_rows`.
        """
        if not self.full:
            raise RuntimeError(f"the rollout has {self._position} of {self.num_steps} steps")
        for name, tensor in self._host.items():
            if self._batch[name] is not tensor:
                self._batch[name].copy_(tensor)
        device = next(iter(self._batch.values())).device
        final = {
            "final_rows": torch.tensor(self._final_rows, device=device),
            "final_obs": torch.from_numpy(np.stack(self._final_obs)).to(device),
        }
        self._position, self._final_rows, self._final_obs = 0, [], []
        return {**self._batch, **final}

    def state_dict(self) -> dict[str, Any]:
        """Return the filled part."""
        return {
            "arrays": {name: array[: self._position] for name, array in self._arrays.items()},
            "final_rows": self._final_rows,
            "final_obs": np.stack(self._final_obs) if self._final_obs else None,
            "last_obs": self._last_obs if self._position else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        stored = {name: np.asarray(values) for name, values in state["arrays"].items()}
        if stored.keys() != self._arrays.keys():
            raise CheckpointError(
                f"the stored rollout does not fit: it holds {', '.join(stored)}, expected {', '.join(self._arrays)}"
            )
        for name, array in self._arrays.items():
            values = stored[name]
            if values.shape[1:] != array.shape[1:] or values.dtype != array.dtype or len(values) > self.num_steps:
                raise CheckpointError(
                    f"the stored rollout's {name} has shape {values.shape} and type {values.dtype}, "
                    f"expected at most {array.shape} of {array.dtype}"
                )
            if array.dtype.kind == "f" and not np.isfinite(values).all():
                raise CheckpointError(f"the stored rollout's {name} holds numbers that are not finite")
            array[: len(values)] = values
        if len({len(values) for values in stored.values()}) != 1:
            raise CheckpointError("the columns of the stored rollout have different lengths")
        self._position = len(stored["rewards"])
        rows = [stored_count(row, "the rows at ends of episodes", below=len(self)) for row in state["final_rows"]]
        self._final_rows, self._final_obs = rows, []
        if rows:
            shape = (len(rows), *self._arrays["obs"].shape[2:])
            self._final_obs = list(stored_array(state["final_obs"], "the observations at ends of episodes", shape))
        last_obs, shape = state.get("last_obs"), self._arrays["obs"].shape[1:]
        self._last_obs = None if last_obs is None else stored_array(last_obs, "the newest observations", shape)
        self._resumed = self._last_obs is not None and self._position > 0

    def _end_broken(self, transitions: Mapping[str, Any]) -> None:
        """Truncate the episode of each env that does not continue it: a resume may start a new one instead."""
        assert self._last_obs is not None
        self._resumed = False
        newest = {name: self._arrays[name][self._position - 1] for name in ("terminated", "truncated")}
        is_same = (np.asarray(transitions["obs"]) == self._last_obs).reshape(self.num_envs, -1).all(1)
        for env in np.flatnonzero(~is_same & ~newest["terminated"] & ~newest["truncated"]):
            newest["truncated"][env] = True
            self._final_rows.append((self._position - 1) * self.num_envs + int(env))
            self._final_obs.append(self._last_obs[env])


def rollout_fields(setup: Setup[OnPolicyHParams]) -> dict[str, Field]:
    """Return the fields of one row, in order."""
    fields = transition_fields(setup.spaces)
    del fields["next_obs"]
    flag = np.dtype(np.bool_)
    fields["truncated"] = Field((), flag)
    if setup.spaces.action_mask:
        fields["action_mask"] = Field((mask_size(setup.spaces.action),), flag)
    return fields


def build_rollout_buffer(setup: Setup[OnPolicyHParams], more: Mapping[str, Field] | None = None) -> RolloutBuffer:
    """Build the buffer; `more`: further fields of a row."""
    fields = {**rollout_fields(setup), **(more or {})}
    rows = setup.hparams.num_steps * setup.num_envs
    row_bytes = sum(field.num_bytes for field in fields.values())
    check_memory(rows * row_bytes, f"a rollout of {rows:,} rows", "algo_kwargs.num_steps or num_envs")
    return RolloutBuffer(setup.hparams.num_steps, setup.num_envs, fields, device=setup.device)
