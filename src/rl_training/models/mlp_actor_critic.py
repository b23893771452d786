"""Policy and value of an observation."""

import math
from collections.abc import Callable, Sequence

from torch import nn

from rl_training.core.spaces import Spaces, observation_kind
from rl_training.hparams.ppo import OnPolicyHParams
from rl_training.models.distributions import Gaussian, build_distribution
from rl_training.models.encoders import build_encoder
from rl_training.models.layers import LearnedRow, Parallel, init_orthogonal, mlp


class MLPActorCritic(nn.Sequential):
    """(batch, *obs) -> (batch, outputs + 1): the parameters of the policy's distribution, then the value.

    A network computes `policy_dim` of the outputs. With `log_std_init` there are as many again, the log standard
    deviations of Box actions, which are learned but do not depend on the observation. Policy and value have separate
    hidden layers and encoders, or one `shared` trunk.
    """

    def __init__(
        self,
        build_encoder: Callable[[], tuple[nn.Module, int]],
        policy_dim: int,
        hidden_sizes: Sequence[int] = (64, 64),
        *,
        activation: type[nn.Module] = nn.Tanh,
        shared: bool = False,
        log_std_init: float | None = None,
        orthogonal: bool = True,
        residual: bool = False,
    ) -> None:
        def trunk() -> tuple[list[nn.Module], int]:
            encoder, features = build_encoder()
            hidden = mlp(features, hidden_sizes, None, activation=activation, residual=residual)
            return [encoder, *hidden], (hidden_sizes[-1] if hidden_sizes else features)

        first, features = trunk()
        second, _ = ([], 0) if shared else trunk()
        output, value = nn.Linear(features, policy_dim), nn.Linear(features, 1)
        actor = nn.Sequential(output) if shared else nn.Sequential(*first, output)
        critic = nn.Sequential(value) if shared else nn.Sequential(*second, value)
        constants = [] if log_std_init is None else [LearnedRow(policy_dim, log_std_init)]
        super().__init__(nn.Sequential(*(first if shared else [])), Parallel(actor, *constants, critic))
        if orthogonal:
            init_orthogonal(self, math.sqrt(2.0))
            init_orthogonal(output, 0.01)  # the first policy is nearly uniform (Andrychowicz et al. 2020)
            init_orthogonal(value, 1.0)

    @property
    def policy(self) -> nn.Sequential:
        """The part that acting needs: (batch, *obs) -> (batch, outputs)."""
        return nn.Sequential(self[0], Parallel(*list(self[1].children())[:-1]))

    @property
    def best(self) -> nn.Sequential:
        """The part that the most likely action needs: (batch, *obs) -> (batch, policy_dim)."""
        return nn.Sequential(self[0], next(self[1].children()))


def build_actor_critic(spaces: Spaces, hparams: OnPolicyHParams) -> MLPActorCritic:
    distribution = build_distribution(spaces.action)
    is_gaussian = isinstance(distribution, Gaussian)
    shares_by_default = observation_kind(spaces.observation) in ("image", "dict")
    return MLPActorCritic(
        lambda: build_encoder(spaces.observation),
        distribution.num_outputs // (2 if is_gaussian else 1),
        hparams.hidden_sizes,
        activation={"tanh": nn.Tanh, "relu": nn.ReLU}[hparams.activation],
        shared=shares_by_default if hparams.shared_trunk == "auto" else hparams.shared_trunk == "yes",
        log_std_init=hparams.log_std_init if is_gaussian else None,
        orthogonal=hparams.orthogonal_init,
        residual=hparams.network == "simba",
    )
