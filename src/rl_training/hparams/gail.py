"""Settings of GAIL: those of PPO, which learns the policy, and of the discriminator, which makes its rewards."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_serializer, model_validator

from rl_training.hparams.base import Count, CountOrZero, HiddenSizes, NonNegative, Positive, Switch
from rl_training.hparams.datasets import DatasetKind, check_dataset
from rl_training.hparams.ppo import PPOHParams


class GAILHParams(PPOHParams):
    """Generative adversarial imitation learning (Ho and Ermon 2016)."""

    normalize: Literal["none", "obs", "returns", "both"] = Field(
        "returns",
        description="by running statistics, kept with the policy: observations, rewards by the return's deviation",
    )
    reward_form: Literal["positive", "negative", "airl"] = Field(
        "positive",
        description="of the discriminator's logit L: softplus(L), where an end is a failure; -softplus(-L), where it "
        "is the goal; L, where all episodes are of one length",
    )
    expert_dataset_kind: DatasetKind = Field(
        "random", description="what is imitated; random: uniform actions in the run's env; else the kind of file"
    )
    expert_dataset_path: Path | None = Field(
        None, description="file of a npz, hdf5 or parquet dataset, or folder of a Minari dataset"
    )
    expert_dataset_id: str | None = Field(None, description="name of a Minari dataset, such as mujoco/hopper/expert-v0")
    expert_dataset_size: Count | None = Field(
        None, description="transitions: of a random dataset, null: 10000; of another its first so many, null: all"
    )
    expert_dataset_seed: CountOrZero = Field(0, description="determines a random dataset, and how actions are shuffled")
    expert_shuffle: Literal["none", "actions", "labels"] = Field(
        "none",
        description="a control, from which nothing can be imitated; actions: each observation gets another's; "
        "labels: the discriminator is told at random who is the expert",
    )
    discriminator_learning_rate: Positive = Field(1e-3, description="Adam step size of the discriminator")
    discriminator_updates: Count = Field(8, description="gradient steps of the discriminator per rollout")
    discriminator_batch_size: Count = Field(
        256, description="rows of the expert, and as many of the rollout, per gradient step of the discriminator"
    )
    discriminator_hidden_sizes: HiddenSizes = Field((100, 100), description="units of its hidden layers, tanh")
    discriminator_ent_coef: NonNegative = Field(
        1e-3, description="weight of the entropy of its verdicts, which keeps them from being certain"
    )
    gradient_penalty: NonNegative = Field(
        10.0, description="weight of (|dL/dx| - 1)^2 between rows of the expert and of the rollout; 0: none"
    )
    absorbing_state: Switch = Field(
        False,
        description="a terminated episode goes on for ever in a state of its own, which the discriminator judges and "
        "rewards, too: then an end is no gain or loss by itself, whatever the rewards' sign",
    )
    normalize_discriminator: Switch = Field(
        True, description="vectors that the discriminator sees: minus the expert's mean, divided by its deviation"
    )

    @model_validator(mode="after")
    def _check_dataset(self) -> "GAILHParams":
        check_dataset(self)
        return self

    @model_validator(mode="after")
    def _check_absorbing_state(self) -> "GAILHParams":
        if self.absorbing_state and self.gamma == 1.0:
            raise ValueError("absorbing_state needs gamma < 1, got 1.0: what lasts for ever would have no value")
        return self

    @field_serializer("expert_dataset_path")
    def _path_as_text(self, path: Path | None) -> str | None:
        return None if path is None else str(path)
