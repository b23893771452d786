"""Rewards of a dataset in the unit that critics learn: scaled and shifted by constants, which are part of the state."""

from typing import Protocol

import torch

from rl_training.core.setup import Setup
from rl_training.core.types import Batch, State
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.errors import ConfigError

RETURN_RANGE = 1_000.0  # of episode returns after scaling, with reward_scale: return (Kostrikov et al. 2022)


class RewardSettings(Protocol):
    """The settings that decide the constants."""

    @property
    def reward_scale(self) -> float | str: ...
    @property
    def reward_shift(self) -> float: ...


def reward_constants(setup: Setup[RewardSettings]) -> State:
    """Return the entries of a state that `scale_rewards` reads."""
    scale, shift = reward_scale(setup.hparams, setup.dataset), setup.hparams.reward_shift
    return {
        "reward_scale": torch.tensor(scale, device=setup.device),
        "reward_shift": torch.tensor(shift, device=setup.device),
    }


def scale_rewards(batch: Batch, state: State) -> Batch:
    """Return the batch with scaled and shifted rewards, and with returns of such rewards if it has any returns."""
    scale, shift = state["reward_scale"], state["reward_shift"]
    scaled = {**batch, "rewards": batch["rewards"] * scale + shift}
    if "returns_to_go" in batch:  # discount_sums: what a reward of 1 at each of these steps would have returned
        scaled["returns_to_go"] = batch["returns_to_go"] * scale + batch["discount_sums"] * shift
    return scaled


def reward_scale(hparams: RewardSettings, dataset: TransitionDataset | None) -> float:
    """Return the factor of the rewards; 1 without a dataset, until a checkpoint is loaded."""
    if isinstance(hparams.reward_scale, float):
        return hparams.reward_scale
    if hparams.reward_scale == "none" or dataset is None:
        return 1.0
    returns = dataset.episode_returns()
    span = float(returns.max() - returns.min())
    if span <= 0.0:
        raise ConfigError(
            f"reward_scale: return needs episodes of different returns, but all {len(returns)} of the dataset have "
            f"{returns[0]:g}; give a number, or none"
        )
    return RETURN_RANGE / span
