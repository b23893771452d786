"""BC, behavioural cloning: the policy under which the dataset's actions are most likely.

    maximise  log pi(a|s)        a softmax over choices; for Box actions a normal density, or minus (mu(s) - a)^2

Pomerleau 1991, Efficient training of artificial neural networks for autonomous navigation. Deviations are in
docs/algorithms/bc.md.
"""

from collections.abc import Callable

from torch import Tensor, nn

from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics, State
from rl_training.errors import ConfigError
from rl_training.hparams.bc import BCHParams
from rl_training.learners.checks import BOX_ACTIONS, CHOICES, check_tensors
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.networks import build_network, check_output
from rl_training.learners.offline import OfflineLearner, trial_inputs
from rl_training.learners.optim import clipped_adam, descend_part, named_part
from rl_training.models.distributions import Distribution, Gaussian
from rl_training.models.encoders import build_encoder
from rl_training.models.mlp_policy import MLPPolicy, policy_distribution


def bc_loss(
    params: Tensor,
    batch: Batch,
    hparams: BCHParams,
    *,
    apply_actor: Callable[[Tensor, Tensor], Tensor],
    policy: Distribution,
) -> Metrics:
    """Compute the policy's loss and its distance to the dataset's actions. `batch`: obs, actions.

    `action_error`: the share of choices that differ from the policy's, or the mean squared error of Box actions.
    """
    check_tensors("bc_loss", batch, BOX_ACTIONS if isinstance(policy, Gaussian) else CHOICES)
    outputs, actions = apply_actor(params, batch["obs"]), batch["actions"]
    log_probs, _ = policy.evaluate(outputs, actions, None)
    if isinstance(policy, Gaussian):
        means = outputs[:, : policy.num_outputs // 2]
        action_error = (means - actions.reshape(len(actions), -1)).square().mean()
    else:
        action_error = (outputs.argmax(1) != actions).float().mean()
    return {
        "loss": action_error if hparams.loss == "mse" else -log_probs.mean(),
        "log_likelihood": log_probs.detach().mean(),
        "action_error": action_error.detach(),
    }


class BC:
    """The recipe."""

    def __init__(self, actor: nn.Module, setup: Setup[BCHParams]) -> None:
        self.hparams = setup.hparams
        self.actor = FlatModule(actor)
        self._policy = policy_distribution(setup.spaces.action)
        self._optimizer = clipped_adam(setup.hparams, setup.hparams.learning_rate)

    def state(self) -> State:
        return named_part("actor", self._optimizer.state(self.actor.params))

    def learn(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        return descend_part("actor", lambda params: self._loss(params, batch), state, self._optimizer)

    def evaluate_offline(self, state: State, batch: Batch) -> Metrics:
        metrics = self._loss(state["actor.params"], batch)
        return {name: metrics[name] for name in ("log_likelihood", "action_error")}

    def _loss(self, params: Tensor, batch: Batch) -> Metrics:
        return bc_loss(params, batch, self.hparams, apply_actor=self.actor.apply, policy=self._policy)


def build_bc(setup: Setup[BCHParams]) -> OfflineLearner:
    hparams, spaces = setup.hparams, setup.spaces
    policy = policy_distribution(spaces.action)
    if hparams.loss == "mse" and not isinstance(policy, Gaussian):
        raise ConfigError(f"bc.algo_kwargs.loss: mse needs a Box action space, but it is {spaces.action}; use nll")

    def build() -> nn.Module:
        residual = hparams.network == "simba"
        return MLPPolicy(
            lambda: build_encoder(spaces.observation), spaces.action, hparams.hidden_sizes, residual=residual
        )

    def check(network: nn.Module) -> None:
        check_output(network, (trial_inputs(setup),), {"observations": 2, "policy outputs": policy.num_outputs})

    return OfflineLearner(BC(build_network(setup, build, check), setup), setup)
