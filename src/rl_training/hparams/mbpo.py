"""Settings of MBPO and MOPO, which learn a policy from rollouts through an ensemble of learnt models."""

from typing import Annotated, Literal

from annotated_types import Gt, Lt
from pydantic import Field, model_validator

from rl_training.hparams.actor_critic import OnlineHParams, SoftHParams
from rl_training.hparams.base import REAL, Count, CountOrZero, Fraction, HiddenSizes, NonNegative, Positive
from rl_training.hparams.offline import OfflineHParams


class ModelHParams(SoftHParams):
    """The ensemble, the rollouts through it, and the soft actor-critic that learns from them."""

    policy_learning_rate: Positive = Field(3e-4, description="Adam step size of actor, critics and temperature")
    num_ensembles: Count = Field(7, description="dynamics models in the ensemble, its members")
    num_elites: Count = Field(5, description="members with the least error on held-out data; rollouts use these alone")
    model_hidden_sizes: HiddenSizes = Field((200, 200, 200, 200), description="units of each member's hidden layers")
    model_learning_rate: Positive = Field(1e-3, description="Adam step size of the ensemble")
    model_batch_size: Count = Field(256, description="transitions per gradient step of each member")
    model_patience: Count = Field(
        5, description="a fit ends when so many epochs in a row have improved no member by more than 1 %"
    )
    model_max_epochs: Count = Field(200, description="a fit ends after so many passes through the data in any case")
    model_holdout_ratio: Annotated[float, Gt(0.0), Lt(1.0), REAL] = Field(
        0.2, description="share of the transitions on which a fit is judged, at most 5000 of them"
    )
    rollout_batch_size: Count = Field(
        100_000, description="states of the replay buffer from which rollouts start at each refresh"
    )
    rollout_horizon: Count = Field(1, description="steps of a rollout, if it does not terminate before")
    synthetic_buffer_capacity: Count = Field(
        2_000_000, description="transitions of rollouts that are kept at most, whatever the horizon"
    )
    synthetic_refreshes_kept: Count = Field(
        4, description="refreshes whose transitions are kept: the memory follows the horizon"
    )
    synthetic_batch_ratio: Fraction = Field(0.95, description="share of each batch that comes from rollouts")
    termination: Literal["auto", "learned", "never"] = Field(
        "auto", description="what ends a rollout: the env's own rule if it is known, else learned; never: nothing does"
    )

    @model_validator(mode="after")
    def _check_model(self) -> "ModelHParams":
        if self.num_elites > self.num_ensembles:
            raise ValueError(f"num_elites must be at most num_ensembles, {self.num_ensembles}, got {self.num_elites}")
        return self


class MBPOHParams(ModelHParams, OnlineHParams):
    """Model-based policy optimization (Janner et al. 2019)."""

    learning_starts: CountOrZero = Field(
        5_000, description="env steps of random actions before the model is fitted and updates begin to be owed"
    )
    gradient_updates_per_step: Positive = Field(20.0, description="updates of the critics per env step")
    model_train_frequency: Count = Field(250, description="env steps between fits of the ensemble")
    rollout_refresh_interval: Count = Field(250, description="env steps between rounds of rollouts")
    rollout_horizon_end: Count | None = Field(None, description="the horizon grows to this; null: it does not")
    rollout_horizon_steps: tuple[CountOrZero, CountOrZero] | None = Field(
        None, description="env steps between which the horizon grows, linearly and rounded down"
    )

    @model_validator(mode="after")
    def _check_memory(self) -> "MBPOHParams":
        if self.n_step > 1:
            raise ValueError(f"n_step must be 1, because a model predicts single steps, got {self.n_step}")
        if self.prioritized:
            raise ValueError("prioritized must be false, because transitions of rollouts have no priorities")
        return self

    @model_validator(mode="after")
    def _check_schedule(self) -> "MBPOHParams":
        end, steps = self.rollout_horizon_end, self.rollout_horizon_steps
        if (end is None) != (steps is None):
            missing = "rollout_horizon_end" if end is None else "rollout_horizon_steps"
            raise ValueError(
                f"a horizon that grows needs rollout_horizon_end and rollout_horizon_steps: {missing} is missing"
            )
        if end is not None and end < self.rollout_horizon:
            raise ValueError(f"rollout_horizon_end must be at least rollout_horizon, {self.rollout_horizon}, got {end}")
        if steps is not None and steps[1] <= steps[0]:
            raise ValueError(f"rollout_horizon_steps must be two growing env steps, got {list(steps)}")
        return self


class MOPOHParams(ModelHParams, OfflineHParams):
    """Model-based offline policy optimization (Yu et al. 2020)."""

    penalty_coef: NonNegative = Field(
        1.0, description="what a unit of the models' uncertainty costs, in units of the reward; 0: nothing"
    )
    uncertainty: Literal["deviation", "disagreement"] = Field(
        "deviation",
        description="largest norm, over the members, of the predicted deviation, or of a mean's distance to all means",
    )
    model_train_frequency: CountOrZero = Field(
        0, description="gradient steps between further fits of the ensemble; 0: it is fitted once, before the first"
    )
    rollout_refresh_interval: Count = Field(1_000, description="gradient steps between rounds of rollouts")
    rollout_batch_size: Count = Field(
        50_000, description="states of the dataset from which rollouts start at each refresh"
    )
    rollout_horizon: Count = Field(5, description="steps of a rollout, if it does not terminate before")
    synthetic_refreshes_kept: Count = Field(5, description="refreshes whose transitions are kept")
