"""The units in which actor-critics learn: observations and rewards scaled by running statistics, or by a dataset's.

The constants are entries of the learner's state: compiled steps read them there, and `Scaling` writes new ones there.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rl_training.core.packed_space import PackedSpace
from rl_training.core.setup import Setup
from rl_training.core.spaces import observation_kind
from rl_training.core.state_checks import stored_array
from rl_training.core.types import Batch, State, StateDict
from rl_training.errors import SpaceError
from rl_training.hparams.actor_critic import ActorCriticHParams
from rl_training.hparams.crossq import CrossQHParams
from rl_training.hparams.mbpo import ModelHParams
from rl_training.hparams.offline import DatasetCriticHParams
from rl_training.hparams.simbav2 import SimBaV2HParams
from rl_training.learners.dataset_rewards import reward_constants, scale_rewards
from rl_training.learners.normalization import (
    LIMIT,
    ObsNormalizer,
    ReturnScaler,
    dataset_normalizer,
    normalize_batch,
    take_moments,
    vector_normalizer,
)


class Scaling:
    """Scales observations and rewards; without arguments, it leaves them as they are."""

    def __init__(
        self,
        normalizer: ObsNormalizer | None = None,
        return_scaler: ReturnScaler | None = None,
        *,
        dataset_rewards: State | None = None,
    ) -> None:
        """`return_scaler`: rewards are learned in its unit. `dataset_rewards`: the constants of a dataset's rewards
        (dataset_rewards.py); its statistics of observations, too, are then constants.
        """
        self.normalizer, self._return_scaler = normalizer, return_scaler
        self._dataset_rewards, self.of_dataset = dataset_rewards or {}, dataset_rewards is not None
        self._last_obs: np.ndarray | None = None  # the newest ones, if there is a return scaler
        self._resumed = False

    def constants(self, device: torch.device) -> State:
        """Return the entries of a state that `scaled` reads."""
        state: State = {}
        if self._return_scaler is not None:
            state["reward_scale"] = torch.tensor(self._return_scaler.scale, device=device)
        state |= self._dataset_rewards
        if self.normalizer is not None:
            state |= {name: value.clone().to(device) for name, value in self.normalizer.constants().items()}
        return state

    def scaled(self, batch: Batch, state: State) -> Batch:
        """Return the batch as networks and losses see it: a pure function."""
        if self.of_dataset:
            batch = scale_rewards(batch, state)
        if self._return_scaler is not None:
            batch = {**batch, "rewards": batch["rewards"] * state["reward_scale"]}
        return batch if self.normalizer is None else normalize_batch(batch, state, self.normalizer.limit)

    def rows(self, obs: np.ndarray) -> np.ndarray:
        """Return observations as the actor sees them."""
        return obs if self.normalizer is None else self.normalizer.rows(obs)

    def unscaled_values(self, values: Tensor, state: State) -> Tensor:
        """Return values in the unit of the environment's rewards; those of a dataset's shifted rewards have none."""
        return values if self._return_scaler is None else values / state["reward_scale"]

    def observe(self, transitions: Mapping[str, np.ndarray], state: State) -> None:
        """Add a step of the envs to the running statistics, and write the new constants into the state."""
        self.add(transitions)
        for name, value in self.running_constants().items():
            state[name].copy_(value)

    def add(self, transitions: Mapping[str, np.ndarray]) -> None:
        """Add a step of the envs to the running statistics."""
        if self.normalizer is not None and not self.of_dataset:
            self.normalizer.update(torch.from_numpy(transitions["obs"]))
        if self._return_scaler is not None:
            if self._resumed:
                self._return_scaler.restart(self._broken(transitions))
                self._resumed = False
            self._return_scaler.update(transitions["rewards"], transitions["terminated"] | transitions["truncated"])
            self._last_obs = transitions["next_obs"]

    def running_constants(self) -> State:
        """Return the constants that follow from the running statistics, on the host."""
        state: State = {}
        if self.normalizer is not None and not self.of_dataset:
            state |= self.normalizer.constants()
        if self._return_scaler is not None:
            state["reward_scale"] = torch.tensor(self._return_scaler.scale)
        return state

    def policy_state_dict(self) -> StateDict:
        """Return the statistics that acting needs."""
        return {} if self.normalizer is None else {"obs_moments": self.normalizer.moments.state_dict()}

    def take_policy_state(self, policy: dict[str, Any], state: State) -> None:
        """Remove the statistics from a saved policy, load them, and write the constants into the state."""
        if self.normalizer is not None:
            self.normalizer.load_state_dict(take_moments(policy, "obs_moments"))
            for name, value in self.normalizer.constants().items():
                state[name].copy_(value)

    def state_dict(self) -> StateDict:
        """Return the statistics that only learning needs."""
        if self._return_scaler is None:
            return {}
        return {"return_scaler": self._return_scaler.state_dict(), "last_obs": self._last_obs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._return_scaler is None:
            return
        self._return_scaler.load_state_dict(state["return_scaler"])
        last_obs = state.get("last_obs")
        self._resumed = last_obs is not None
        if last_obs is not None:
            assert self.normalizer is not None  # SimBaV2 scales both
            shape = (len(self._return_scaler.returns), *self.normalizer.moments.mean.shape)
            self._last_obs = stored_array(last_obs, "the newest observations", shape)

    def _broken(self, transitions: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which envs do not continue their episode: a resume may start a new one instead. (envs,)"""
        is_same = transitions["obs"] == self._last_obs
        broken: np.ndarray = ~is_same.reshape(len(is_same), -1).all(1)
        return broken


def normalizes(setup: Setup[ActorCriticHParams]) -> bool:
    """Return whether the settings ask for normalised observations; `auto`: SimBa's network with vectors."""
    hparams, space = setup.hparams, setup.spaces.observation
    if isinstance(hparams, ModelHParams | CrossQHParams | SimBaV2HParams):
        return False
    if hparams.normalize_observations != "auto":
        return hparams.normalize_observations
    if not _has_simba(setup):
        return False
    if isinstance(space, PackedSpace) and any(observation_kind(leaf.space) == "vector" for leaf in space.leaves):
        raise SpaceError(
            f"network: simba normalizes vectors, but not those inside of {space}: set normalize_observations to false, "
            "or make one vector of all parts by the setting wrappers: [gymnasium.wrappers:FlattenObservation]"
        )
    return observation_kind(space) == "vector"


def _has_simba(setup: Setup[Any]) -> bool:
    return setup.network is None and setup.hparams.network == "simba"


def build_scaling(setup: Setup[ActorCriticHParams]) -> Scaling:
    """Return the scaling that the settings ask for."""
    if isinstance(setup.hparams, DatasetCriticHParams):
        constants = reward_constants(cast(Setup[DatasetCriticHParams], setup))
        return Scaling(_obs_normalizer(setup), dataset_rewards=constants)
    return Scaling(_obs_normalizer(setup))


def _obs_normalizer(setup: Setup[ActorCriticHParams]) -> ObsNormalizer | None:
    if not normalizes(setup):
        return None
    if isinstance(setup.hparams, DatasetCriticHParams):
        return dataset_normalizer(setup.spaces.observation, None if setup.dataset is None else setup.dataset.obs)
    assert not isinstance(setup.hparams, ModelHParams | CrossQHParams | SimBaV2HParams)
    limit = setup.hparams.observation_clip
    if limit == "auto":
        limit = None if _has_simba(setup) else LIMIT
    return vector_normalizer(setup.spaces.observation, limit=limit)
