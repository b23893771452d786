"""Rollouts of a recurrent policy: with the carry before their first step, and the starts of episodes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rl_training.core.setup import Setup
from rl_training.core.spaces import Field
from rl_training.core.state_checks import stored_array
from rl_training.core.types import Batch, StateDict
from rl_training.data.rollout_buffer import RolloutBuffer, build_rollout_buffer
from rl_training.hparams.recurrent_ppo import RecurrentPPOHParams
from rl_training.models.recurrent_actor_critic import carry_sizes

STARTS = {"starts": Field((), np.dtype(np.bool_))}


class RecurrentRollouts:
    """A rollout buffer that also keeps the carry of every env before the first step of the rollout."""

    def __init__(self, rollouts: RolloutBuffer, sizes: Mapping[str, int], device: torch.device | str = "cpu") -> None:
        """`sizes`: the parts of the carry, in the order of the columns of the state that the network takes."""
        self.rollouts, self._sizes = rollouts, sizes
        self._carry = np.zeros((rollouts.num_envs, sum(sizes.values())), np.float32)
        self._device = device

    def __len__(self) -> int:
        return len(self.rollouts)

    @property
    def full(self) -> bool:
        return self.rollouts.full

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Store one step of every env; `carry_<part>` is what the policy remembered before it."""
        if not len(self.rollouts):
            self._carry[:] = np.concatenate([transitions[f"carry_{name}"] for name in self._sizes], 1)
        self.rollouts.add(transitions)

    def rollout(self) -> Batch:
        """Return the rows with `starts`, and `carry`: (envs, numbers)."""
        return {**self.rollouts.rollout(), "carry": torch.tensor(self._carry, device=self._device)}

    def state_dict(self) -> StateDict:
        return {"rollouts": self.rollouts.state_dict(), "carry": self._carry}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        carry = stored_array(state["carry"], "the carry before the rollout", self._carry.shape, np.float32)
        self.rollouts.load_state_dict(state["rollouts"])
        self._carry[:] = carry


def build_recurrent_rollouts(setup: Setup[RecurrentPPOHParams]) -> RecurrentRollouts:
    rollouts = build_rollout_buffer(setup, STARTS)
    return RecurrentRollouts(rollouts, carry_sizes(setup.spaces, setup.hparams), setup.device)
