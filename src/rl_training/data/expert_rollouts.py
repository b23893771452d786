"""Rollouts that come with rows of an expert's, as imitation compares them."""

from collections.abc import Mapping
from typing import Any

from rl_training.core.setup import Setup
from rl_training.core.types import Batch, StateDict
from rl_training.data.dataset_memory import DatasetMemory
from rl_training.data.rollout_buffer import RolloutBuffer, build_rollout_buffer
from rl_training.hparams.gail import GAILHParams


class ExpertRollouts:
    """A rollout buffer, and a dataset of which `num_rows` rows are drawn whenever a rollout is given.

    A checkpoint holds the rollout, the place in the draws, and by which digest to know the dataset again.
    """

    def __init__(self, rollouts: RolloutBuffer, expert: DatasetMemory, num_rows: int) -> None:
        self.rollouts, self.expert = rollouts, expert
        self._draw = expert.sampler(num_rows)

    def __len__(self) -> int:
        return len(self.rollouts)

    @property
    def full(self) -> bool:
        return self.rollouts.full

    def add(self, transitions: Mapping[str, Any]) -> None:
        self.rollouts.add(transitions)

    def rollout(self) -> Batch:
        """As the buffer's, with `expert_obs` and `expert_actions`, (num_rows, *shape); nothing else of the expert."""
        drawn = self._draw()
        return {**self.rollouts.rollout(), "expert_obs": drawn["obs"], "expert_actions": drawn["actions"]}

    def state_dict(self) -> StateDict:
        return {"rollouts": self.rollouts.state_dict(), "expert": self.expert.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.expert.load_state_dict(state["expert"])
        self.rollouts.load_state_dict(state["rollouts"])


def build_expert_rollouts(setup: Setup[GAILHParams]) -> ExpertRollouts:
    assert setup.dataset is not None  # whoever builds a memory has loaded what it holds
    hparams, dataset = setup.hparams, setup.dataset
    if hparams.expert_shuffle == "actions":
        dataset = dataset.with_shuffled_actions(hparams.expert_dataset_seed)
    expert = DatasetMemory(dataset, generator=setup.streams.numpy("buffer"), device=setup.device)
    num_rows = hparams.discriminator_updates * hparams.discriminator_batch_size
    return ExpertRollouts(build_rollout_buffer(setup), expert, num_rows)
