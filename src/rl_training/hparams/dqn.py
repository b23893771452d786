"""Settings of the DQN family: one class per head; a named variant is a head with other defaults."""

from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge
from pydantic import Field, create_model, model_validator

from rl_training.hparams.base import (
    NETWORK,
    WHOLE,
    Count,
    Fraction,
    HiddenSizes,
    NetworkKind,
    NonNegative,
    OffPolicyHParams,
    Positive,
    Real,
    Switch,
    check_network,
)

AtLeastTwo = Annotated[int, Ge(2), WHOLE]


class QLearningHParams(OffPolicyHParams):
    """What the whole family has in common, whatever a network says about an action."""

    gradient_steps: Annotated[int, Ge(-1), WHOLE] = Field(
        -1, description="updates per round; -1 = as many as env steps since the last round"
    )
    target_update_interval: Count = Field(50, description="gradient steps between copies into the target network")
    learning_rate: Positive = Field(1e-3, description="Adam step size; at the start if it falls")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "linear", description="linear: the step size falls to 0 over the run"
    )
    adam_eps: Positive = Field(1e-8, description="Adam epsilon; 1.5e-4 is usual for Atari")
    max_grad_norm: Positive = Field(10.0, description="the gradient's global norm is clipped to this")
    epsilon_start: Fraction = Field(
        1.0, description="share of random actions where the decay begins, step 0; until learning_starts all are random"
    )
    epsilon_end: Fraction = Field(0.05, description="share of random actions after the decay")
    exploration_fraction: Fraction = Field(0.1, description="part of total_timesteps over which epsilon decays")
    evaluation_epsilon: Fraction = Field(0.0, description="share of random actions in evaluations; 0.001 on Atari")
    double_q: Switch = Field(False, description="the online network picks the target's action (Double DQN)")
    dueling: Switch = Field(False, description="separate streams for the state's value and the actions' advantages")
    noisy: Switch = Field(False, description="noise on the weights explores, instead of epsilon (NoisyNet)")
    noisy_sigma: Positive = Field(0.5, description="the noise's scale at the start, times 1 / sqrt(inputs of a layer)")
    layer_norm: Switch = Field(True, description="normalise each hidden layer: Q-values diverge far less")
    network: NetworkKind = NETWORK
    hidden_sizes: HiddenSizes = Field((256, 256), description="units of the hidden layers after the encoder")

    @model_validator(mode="after")
    def _check_learner(self) -> "QLearningHParams":
        if self.gradient_steps == 0:
            raise ValueError("gradient_steps must be -1 or >= 1, got 0")
        check_network(self.network, self.hidden_sizes)
        return self


class DQNHParams(QLearningHParams):
    """Deep Q-learning (Mnih et al. 2015)."""

    loss: Literal["huber", "mse"] = Field("huber", description="error function of the TD error (Huber: delta 1)")


class C51HParams(QLearningHParams):
    """Categorical distributions of returns (Bellemare et al. 2017)."""

    v_min: Real = Field(-10.0, description="the smallest return that can be told apart: the first atom")
    v_max: Real = Field(10.0, description="the largest one: the last atom")
    num_atoms: AtLeastTwo = Field(51, description="atoms of the distribution, v_min and v_max among them")

    @model_validator(mode="after")
    def _check_support(self) -> "C51HParams":
        if self.v_max <= self.v_min:
            raise ValueError(f"v_max must be greater than v_min, {self.v_min:g}, got {self.v_max:g}")
        return self


class QRDQNHParams(QLearningHParams):
    """Quantile regression (Dabney et al. 2018)."""

    num_quantiles: AtLeastTwo = Field(51, description="quantiles of the return's distribution per action")
    kappa: NonNegative = Field(
        1.0, description="errors up to this size count squared (Huber); 0: the plain quantile loss"
    )


class IQNHParams(QLearningHParams):
    """Implicit quantile networks (Dabney et al. 2018)."""

    num_quantiles: AtLeastTwo = Field(32, description="fractions whose mean value picks the action (the paper's K)")
    num_tau_samples: AtLeastTwo = Field(
        8, description="fractions drawn per transition in the loss, for values and for targets (N and N')"
    )
    embedding_dim: Count = Field(64, description="cosines that describe a fraction")
    kappa: NonNegative = Field(
        1.0, description="errors up to this size count squared (Huber); 0: the plain quantile loss"
    )


class FQFHParams(QLearningHParams):
    """Fully parameterized quantile function (Yang et al. 2019)."""

    num_quantiles: AtLeastTwo = Field(32, description="fractions that are proposed for each state")
    embedding_dim: Count = Field(64, description="cosines that describe a fraction")
    kappa: NonNegative = Field(
        1.0, description="errors up to this size count squared (Huber); 0: the plain quantile loss"
    )
    entropy_coef: NonNegative = Field(1e-3, description="weight of the fractions' entropy, which keeps them apart")
    fraction_learning_rate: Positive = Field(2.5e-9, description="RMSprop step size of the fraction proposals")


HeadT = TypeVar("HeadT", bound=QLearningHParams)


def _variant(name: str, head: type[HeadT], doc: str, **defaults: Any) -> type[HeadT]:
    """Give the settings of `head` under another name, with other defaults."""
    fields: dict[str, Any] = {
        field: (head.model_fields[field].rebuild_annotation(), Field(default, description=description))
        for field, default in defaults.items()
        if (description := head.model_fields[field].description)
    }
    return create_model(name, __base__=head, __module__=__name__, __doc__=doc, **fields)


DoubleDQNHParams = _variant(
    "DoubleDQNHParams", DQNHParams, "DQN without overestimation (van Hasselt et al. 2016).", double_q=True
)
DuelingDQNHParams = _variant(
    "DuelingDQNHParams", DQNHParams, "DQN with two streams (Wang et al. 2016).", dueling=True, double_q=True
)
NoisyDQNHParams = _variant(
    "NoisyDQNHParams", DQNHParams, "DQN that explores by noisy weights (Fortunato et al. 2018).", noisy=True
)
PrioritizedDQNHParams = _variant(
    "PrioritizedDQNHParams", DQNHParams, "DQN that replays by TD error (Schaul et al. 2016).", prioritized=True
)
NStepDQNHParams = _variant("NStepDQNHParams", DQNHParams, "DQN with three-step returns (Sutton 1988).", n_step=3)
RainbowDQNHParams = _variant(
    "RainbowDQNHParams",
    C51HParams,
    "C51 with double, dueling, noisy, prioritized and three-step learning (Hessel et al. 2018).",
    double_q=True,
    dueling=True,
    noisy=True,
    prioritized=True,
    prioritized_alpha=0.5,
    n_step=3,
)
