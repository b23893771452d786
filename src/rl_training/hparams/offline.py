"""Settings of the offline algorithms: where their transitions come from, and how IQL and BC learn from them."""

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt
from pydantic import Field, field_serializer, model_validator

from rl_training.hparams.base import (
    NETWORK,
    REAL,
    Count,
    CountOrZero,
    Fraction,
    HiddenSizes,
    HParams,
    NetworkKind,
    OffPolicyHParams,
    Positive,
    Real,
    Switch,
    check_network,
)
from rl_training.hparams.datasets import DatasetKind, check_dataset


class LearnerHParams(HParams):
    """How a policy is learnt from transitions that another made."""

    reward_scale: Positive | Literal["none", "return"] = Field(
        "none",
        description="rewards are multiplied by this; return: 1000 / (largest - least return of the dataset's episodes)",
    )
    reward_shift: Real = Field(0.0, description="added to the scaled rewards")
    normalize_observations: Switch = Field(
        False, description="subtract the dataset's mean from observations and divide by its deviation"
    )
    batch_size: Count = Field(256, description="transitions per gradient step")
    learning_rate: Positive = Field(3e-4, description="Adam step size")
    learning_rate_schedule: Literal["constant", "cosine"] = Field(
        "constant", description="of the policy's step size; cosine: it falls to 0 over the run"
    )
    gamma: Fraction = Field(0.99, description="discount per env step")
    tau: Fraction = Field(0.005, description="share of the way that the slow copies move to the critics at an update")
    adam_eps: Positive = Field(1e-8, description="Adam epsilon")
    max_grad_norm: Positive | None = Field(None, description="gradients' norms are clipped to this; null: they are not")
    network: NetworkKind = NETWORK
    hidden_sizes: HiddenSizes = Field((256, 256), description="units of the hidden layers after the encoder")

    @model_validator(mode="after")
    def _check_network(self) -> "LearnerHParams":
        check_network(self.network, self.hidden_sizes)
        return self


class OfflineHParams(HParams):
    """What the offline loop asks of an algorithm's settings: a dataset, and how it is drawn from.

    Steps of a run are gradient steps.
    """

    batch_size: Count = Field(256, description="transitions per gradient step")
    dataset_kind: DatasetKind = Field(
        "random", description="random: uniform actions in the run's env; else the kind of file, or a Minari dataset"
    )
    dataset_path: Path | None = Field(
        None, description="file of a npz, hdf5 or parquet dataset, or folder of a Minari dataset"
    )
    dataset_id: str | None = Field(None, description="name of a Minari dataset, such as mujoco/hopper/medium-v0")
    dataset_size: Count | None = Field(
        None, description="transitions: of a random dataset, null: 10000; of another its first so many, null: all"
    )
    dataset_seed: CountOrZero = Field(0, description="determines a random dataset, and which episodes are held out")
    held_out: Annotated[float, Ge(0.0), Lt(1.0), REAL] = Field(
        0.0, description="share of the episodes that are not learnt from but judge what is learnt"
    )

    @model_validator(mode="after")
    def _check_dataset(self) -> "OfflineHParams":
        check_dataset(self)
        return self

    @field_serializer("dataset_path")
    def _path_as_text(self, path: Path | None) -> str | None:
        return None if path is None else str(path)

    def check_run(self, num_envs: int, *, has_env: bool = True) -> None:
        if has_env:
            return
        if self.dataset_kind == "random":
            raise ValueError("dataset_kind random needs an environment to act in, but env_id is empty")
        if self.held_out == 0.0:
            raise ValueError(
                "held_out must be in (0, 1) if env_id is empty, got 0: without an environment only held-out data "
                "can judge what is learnt"
            )


class ExpectileHParams(LearnerHParams):
    """What IQL adds, whether it learns from a dataset alone or goes on in an environment."""

    expectile: Annotated[float, Gt(0.0), Lt(1.0), REAL] = Field(
        0.7, description="of the critics' values at the dataset's actions, which V learns; 0.5 is their mean"
    )
    beta: Positive = Field(3.0, description="inverse temperature: how much better actions outweigh others")
    max_advantage_weight: Positive = Field(100.0, description="largest weight of an action")
    layer_norm: Switch = Field(False, description="normalise each hidden layer of the critics and of V")
    orthogonal_init: Switch = Field(
        True, description="weights begin orthogonal with gain sqrt(2), biases at 0; false: as PyTorch's layers do"
    )


class IQLHParams(OfflineHParams, ExpectileHParams):
    """Implicit Q-learning (Kostrikov et al. 2022)."""

    learning_rate_schedule: Literal["constant", "cosine"] = Field(
        "cosine", description="of the policy's step size; cosine: it falls to 0 over the run"
    )


class IQLOnlineHParams(ExpectileHParams, OffPolicyHParams):
    """IQL that goes on in an environment from where it stopped on a dataset."""

    init_from: Path | None = Field(
        None, description="run folder or checkpoint of the offline run that is continued; null: it begins with nothing"
    )
    buffer_capacity: Count = Field(1_000_000, description="transitions the replay buffer holds, the dataset's included")
    learning_starts: CountOrZero = Field(0, description="env steps before updates begin to be owed")
    train_frequency: Count = Field(1, description="env steps between rounds of as many updates")
    learning_rate_schedule: Literal["constant"] = Field("constant", description="step sizes do not fall")

    @model_validator(mode="after")
    def _check_memory(self) -> "IQLOnlineHParams":
        if self.n_step > 1 or self.prioritized:
            raise ValueError(
                "n_step must be 1 and prioritized false: the rows of a dataset are single steps, all alike"
            )
        if self.init_from is None and (self.normalize_observations or self.reward_scale == "return"):
            raise ValueError("normalize_observations and reward_scale: return are taken from a dataset: give init_from")
        return self

    @field_serializer("init_from")
    def _path_as_text(self, path: Path | None) -> str | None:
        return None if path is None else str(path)


class BCHParams(OfflineHParams, LearnerHParams):
    """Behavioural cloning (Pomerleau 1991)."""

    loss: Literal["nll", "mse"] = Field(
        "nll", description="negative log-likelihood of the dataset's actions, or squared error of Box actions"
    )
