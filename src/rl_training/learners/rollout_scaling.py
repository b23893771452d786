"""Observations and rewards of rollouts on a scale of about one, by running statistics.

The statistics change between rollouts only. In a run on the device they are entries of its state.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.core.setup import Setup
from rl_training.core.spaces import observation_field, observation_kind
from rl_training.core.types import Batch, State, StateDict
from rl_training.errors import SpaceError
from rl_training.hparams.ppo import OnPolicyHParams
from rl_training.learners.normalization import ObsNormalizer, RewardScaler, take_moments

OBS, REWARDS = "obs_moments", "reward_moments"  # start of the names of the statistics in a state on the device


class RolloutScaling:
    """Normalises observations and scales rewards: both, one of them or neither, as the setting `normalize` says."""

    def __init__(self, setup: Setup[OnPolicyHParams]) -> None:
        hparams = setup.hparams
        self._shape = (hparams.num_steps, setup.num_envs)
        statistics_on = setup.device if setup.device_loop else torch.device("cpu")
        self.normalizer: ObsNormalizer | None = None
        if hparams.normalize in ("obs", "both"):
            shape = observation_field(setup.spaces.observation).shape
            self.normalizer = ObsNormalizer(shape, device=statistics_on, live=setup.device_loop)
        self.reward_scaler: RewardScaler | None = None
        if hparams.normalize in ("returns", "both"):
            self.reward_scaler = RewardScaler(setup.num_envs, hparams.gamma, statistics_on)

    def rows(self, obs: np.ndarray) -> np.ndarray:
        """Return observations as the policy sees them."""
        return self.normalizer.rows(obs) if self.normalizer else obs

    def tensor(self, obs: Tensor) -> Tensor:
        """Return observations as the network sees them when it learns."""
        return self.normalizer.tensor(obs) if self.normalizer else obs

    def scaled(self, batch: Batch) -> Batch:
        """Return the rollout with normalised observations and scaled rewards, and add it to the statistics.

        `terminal_rewards`, optional: the sum of endless rewards that a terminated row earns in addition to its own.
        """
        rollout = dict(batch)
        terminal_rewards = rollout.pop("terminal_rewards", torch.zeros_like(batch["rewards"]))
        if self.normalizer:
            # The first rollout is collected without statistics, and learned with its own.
            is_first = self.normalizer.moments.count == 0
            if is_first:
                self.normalizer.update(batch["obs"])
            rollout |= {name: self.normalizer.tensor(batch[name]) for name in ("obs", "final_obs")}
            if not is_first:
                self.normalizer.update(batch["obs"])
        if self.reward_scaler:
            ended = batch["terminated"] | batch["truncated"]
            earned = (values.view(self._shape) for values in (batch["rewards"], ended, terminal_rewards))
            rollout["rewards"] = self.reward_scaler.scale(*earned).flatten()
        else:
            rollout["rewards"] = batch["rewards"] + terminal_rewards
        return rollout

    # --- On the device -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The statistics as entries of the state of a run on the device."""
        obs = numbered(OBS, self.normalizer.moments.tensors) if self.normalizer else {}
        return obs | (numbered(REWARDS, self.reward_scaler.tensors) if self.reward_scaler else {})

    def use_state(self, state: State) -> None:
        """Replace the statistics by entries of another state."""
        if self.normalizer:
            self.normalizer.moments.use(*parts_of(OBS, state))
        if self.reward_scaler:
            self.reward_scaler.use(*parts_of(REWARDS, state))

    # --- In checkpoints ----------------------------------------------------------------------------------------------

    def policy_state_dict(self) -> StateDict:
        state: StateDict = {}
        if self.normalizer:
            state["obs_moments"] = self.normalizer.moments.state_dict()
        if self.reward_scaler:
            state["return_moments"] = self.reward_scaler.moments.state_dict()
        return state

    def take_policy_state(self, policy: dict[str, Any]) -> StateDict:
        """Remove the statistics from a saved policy and return them, for `load_policy_state_dict`."""
        return {name: take_moments(policy, name) for name in self.policy_state_dict()}

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.normalizer:
            self.normalizer.load_state_dict(state["obs_moments"])
        if self.reward_scaler:
            self.reward_scaler.moments.load_state_dict(state["return_moments"])

    def state_dict(self) -> StateDict:
        """Return what only learning needs."""
        return {"open_returns": self.reward_scaler.returns.clone() if self.reward_scaler else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.reward_scaler:
            self.reward_scaler.returns.copy_(torch.as_tensor(state["open_returns"]))


def check_normalization(setup: Setup[OnPolicyHParams]) -> None:
    """Raise for normalisation that the observations do not allow."""
    normalize, space = setup.hparams.normalize, setup.spaces.observation
    if normalize in ("obs", "both") and observation_kind(space) != "vector":
        raise SpaceError(
            f"algo_kwargs.normalize: {normalize} needs vector observations, but these are "
            f"{space}; use `returns` (images are scaled by the network)"
        )


def numbered(name: str, tensors: Sequence[Tensor]) -> State:
    """Return statistics as entries of a state."""
    return {f"{name}.{number}": tensor for number, tensor in enumerate(tensors)}


def parts_of(name: str, state: State) -> list[Tensor]:
    """Return the statistics that `numbered` named."""
    return [state[key] for key in sorted(state) if key.startswith(f"{name}.")]
