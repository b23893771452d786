"""Rollouts with rows of an expert dataset, which imitation compares them with."""

from collections.abc import Mapping
from typing import Any

from rl_training.core.setup import Setup
from rl_training.core.types import Batch, StateDict
from rl_training.data.dataset_memory import DatasetMemory
from rl_training.data.rollout_buffer import RolloutBuffer, build_rollout_buffer
from rl_training.hparams.gail import GAILHParams


class ExpertRollouts:
    """A rollout buffer and an expert dataset; every rollout comes with `num_rows` rows sampled from the dataset.

    A checkpoint holds the rollout, the state of the random generator, and the digest of the dataset.
    """

    def __init__(self, rollouts: RolloutBuffer, expert: DatasetMemory, num_rows: int) -> None:
        self.rollouts, self.expert = rollouts, expert
        self._sample_expert = expert.sampler(num_rows)

    def __len__(self) -> int:
        return len(self.rollouts)

    @property
    def full(self) -> bool:
        return self.rollouts.full

    def add(self, transitions: Mapping[str, Any]) -> None:
        self.rollouts.add(transitions)

    def rollout(self) -> Batch:
        """Return the rollout with `expert_obs` and `expert_actions`, (num_rows, *shape)."""
        expert = self._sample_expert()
        return {**self.rollouts.rollout(), "expert_obs": expert["obs"], "expert_actions": expert["actions"]}

    def state_dict(self) -> StateDict:
        return {"rollouts": self.rollouts.state_dict(), "expert": self.expert.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.expert.load_state_dict(state["expert"])
        self.rollouts.load_state_dict(state["rollouts"])


def build_expert_rollouts(setup: Setup[GAILHParams]) -> ExpertRollouts:
    assert setup.dataset is not None  # the caller has loaded it
    hparams, dataset = setup.hparams, setup.dataset
    if hparams.expert_shuffle == "actions":
        dataset = dataset.with_shuffled_actions(hparams.expert_dataset_seed)
    expert = DatasetMemory(dataset, generator=setup.streams.numpy("buffer"), device=setup.device)
    num_rows = hparams.discriminator_updates * hparams.discriminator_batch_size
    return ExpertRollouts(build_rollout_buffer(setup), expert, num_rows)
