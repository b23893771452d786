"""SAC: an actor that is rewarded for its entropy, and two critics; targets use the smaller of their values.

    a' ~ pi(s')
    y = r + gamma * (min_i Q_target_i(s', a') - alpha * log pi(a'|s'))      (no second term after a termination)
    minimise  sum_i (Q_i(s, a) - y)^2
    minimise  alpha * log pi(a|s) - min_i Q_i(s, a),   a ~ pi(s)
    alpha     rises while the entropy -log pi(a|s) is below its target, falls while it is above

Haarnoja et al. 2018, Soft actor-critic algorithms and applications. Deviations are in docs/algorithms/sac.md.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from rl_training.core.setup import Setup
from rl_training.core.spaces import action_field
from rl_training.core.types import Batch, Metrics, State
from rl_training.hparams.actor_critic import SoftHParams, TemperatureHParams
from rl_training.hparams.mbpo import ModelHParams
from rl_training.hparams.redq import REDQHParams
from rl_training.hparams.sac import SACHParams
from rl_training.hparams.tqc import TQCHParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.actor_critic_networks import action_size, build_model, network_adam
from rl_training.learners.checks import BOX_ACTIONS, FLOATS, Expected, check_tensors
from rl_training.learners.dataset_rewards import scale_rewards
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.optim import Optimizer, clipped_adam, descend_part, named_part, polyak
from rl_training.learners.random_inputs import RandomInput, normal
from rl_training.learners.targets import clip_to_returns, critic_metrics, td_target
from rl_training.models.distributions import SquashedGaussian
from rl_training.models.mlp_sac import MLPSACModel

ApplyActor = Callable[[Tensor, Tensor], Tensor]  # (params, obs) -> (batch, outputs)
ApplyCritics = Callable[..., Tensor]  # (params, obs, actions, members=None, masks=None) -> (critics, batch)
# The estimate of the critics, (batch,), from a function that returns the values of some or all, (critics, batch).
CriticEstimate = Callable[[Callable[..., Tensor], Batch], Tensor]


def minimum_over_critics(values_of: Callable[..., Tensor], batch: Batch) -> Tensor:
    """Return the smallest value of all critics."""
    return values_of().amin(0)


def sac_critic_loss(
    params: Tensor,
    target_params: Tensor,
    actor_params: Tensor,
    alpha: Tensor,
    batch: Batch,
    *,
    gamma: float,
    policy: SquashedGaussian,
    apply_actor: ApplyActor,
    apply_critics: ApplyCritics,
    estimate: CriticEstimate = minimum_over_critics,
    clip_targets: bool = False,
) -> Metrics:
    """Compute the critics' loss and its metrics.

    `batch`: obs, next_obs, actions, rewards (batch,), terminated (batch,) bool, next_noise (batch, numbers), and
    optionally discounts and weights (batch,), and critic_masks, of the critics' units, for dropout.
    """
    check_tensors("sac_critic_loss", batch, BOX_ACTIONS)
    next_actions, next_log_probs = policy.rsample(apply_actor(actor_params, batch["next_obs"]), batch["next_noise"])
    next_q = estimate(partial(apply_critics, target_params, batch["next_obs"], next_actions), batch)
    discounts = batch.get("discounts", gamma)
    targets = td_target(batch["rewards"], batch["terminated"], next_q - alpha * next_log_probs, discounts).detach()
    if clip_targets:
        targets = clip_to_returns(targets, gamma)
    thinned = (None, batch["critic_masks"]) if "critic_masks" in batch else ()  # all critics, without dropped units
    return critic_metrics(apply_critics(params, batch["obs"], batch["actions"], *thinned), targets, batch)


def sac_actor_loss(
    params: Tensor,
    critic_params: Tensor,
    alpha: Tensor,
    batch: Batch,
    *,
    policy: SquashedGaussian,
    apply_actor: ApplyActor,
    apply_critics: ApplyCritics,
    estimate: CriticEstimate = minimum_over_critics,
) -> Metrics:
    """Compute the actor's loss and its entropy. `batch`: obs, noise (batch, numbers)."""
    check_tensors("sac_actor_loss", batch, {"obs": BOX_ACTIONS["obs"], "noise": Expected(FLOATS, "batch numbers")})
    actions, log_probs = policy.rsample(apply_actor(params, batch["obs"]), batch["noise"])
    q_values = estimate(partial(apply_critics, critic_params, batch["obs"], actions), batch)
    return {"loss": (alpha * log_probs - q_values).mean(), "entropy": -log_probs.detach().mean()}


def learning_rates(hparams: TemperatureHParams) -> dict[str, float]:
    """Return the learning rate of each part: critic, actor, temperature."""
    rate = hparams.policy_learning_rate if isinstance(hparams, ModelHParams) else hparams.learning_rate
    return {
        "critic": rate,
        "actor": hparams.actor_learning_rate or rate,
        "temperature": hparams.alpha_learning_rate or rate,
    }


def first_state(
    hparams: TemperatureHParams, actor: FlatModule, critics: FlatModule, optimizers: Mapping[str, Optimizer]
) -> State:
    """Return the first values of critics, actor and temperature, with those of their optimizers."""
    alpha = hparams.initial_alpha if hparams.alpha == "auto" else hparams.alpha
    params = {"critic": critics.params, "actor": actor.params, "temperature": actor.params.new_tensor(alpha).log()}
    state: State = {}
    for name, optimizer in optimizers.items():
        state |= named_part(name, optimizer.state(params[name]))
    return state


def learn_temperature(state: State, excess: Tensor, optimizer: Optimizer) -> State:
    """Take the step of log alpha; `excess`: entropy above its target, at which the temperature falls."""
    new, _ = descend_part("temperature", lambda log_alpha: {"loss": log_alpha * excess}, state, optimizer)
    return new


class SAC:
    """The recipe; `target_estimate` and `actor_estimate` reduce the critics' values to one number per row.

    `critic_loss`: another loss of the critics (cql.py), with the arguments of SAC's. `entropy_in_target`: whether
    targets reward the entropy of the next action. `entropy_per_number`: what `target_entropy: auto` aims at for each
    number of an action. `extra_random_inputs`: the random inputs that the estimates and the loss need, as a function of
    the number of updates and of whether the actor learns. `value_of`: the values, (critics, batch), of critics whose
    outputs are distributions (tqc.py). `reward_constants`: entries of the state by which rewards are scaled, of the
    dataset and of the environment alike (dataset_rewards.py); None: they are learned as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        setup: Setup[SoftHParams],
        *,
        critic_loss: Callable[..., Metrics] = sac_critic_loss,
        entropy_in_target: bool = True,
        entropy_per_number: float = -1.0,
        target_estimate: CriticEstimate = minimum_over_critics,
        actor_estimate: CriticEstimate = minimum_over_critics,
        extra_random_inputs: Callable[[int, bool], Mapping[str, RandomInput]] = lambda rounds, actor: {},
        value_of: Callable[[Tensor], Tensor] = lambda outputs: outputs,
        reward_constants: State | None = None,
    ) -> None:
        self.hparams = setup.hparams
        self.actor, self.critics = FlatModule(model.actor), FlatModule(model.critics)  # type: ignore[arg-type]
        self.policy = SquashedGaussian(action_field(setup.spaces.action).shape)
        self.explore, self.best, self.draw = self.policy.sample, self.policy.mode, self.policy.draw
        if isinstance(self.hparams, SACHParams | REDQHParams | TQCHParams) and self.hparams.clip_targets:
            critic_loss = partial(critic_loss, clip_targets=True)
        self._critic_loss, self._entropy_in_target = critic_loss, entropy_in_target
        self._target_estimate, self._actor_estimate = target_estimate, actor_estimate
        self._extra_random_inputs, self._value_of = extra_random_inputs, value_of
        self._reward_constants = reward_constants or {}
        target = self.hparams.target_entropy
        self._target_entropy = entropy_per_number * action_size(setup) if target == "auto" else target
        rates = learning_rates(self.hparams)
        self._optimizers = {
            "critic": network_adam(self.critics, self.hparams, rates["critic"]),
            "actor": network_adam(self.actor, self.hparams, rates["actor"]),
            "temperature": clipped_adam(self.hparams, rates["temperature"]),
        }

    def state(self) -> State:
        learned = first_state(self.hparams, self.actor, self.critics, self._optimizers)
        return {"target_critic": self.critics.params.clone(), **self._reward_constants, **learned}

    def random_inputs(self, rounds: int, rows: int, *, actor: bool) -> Mapping[str, RandomInput]:
        noise = RandomInput((rounds * rows, self.policy.size), normal)
        return {"next_noise": noise, **({"noise": noise} if actor else {}), **self._extra_random_inputs(rounds, actor)}

    def values(self, state: State, obs: Tensor, actions: Tensor) -> Tensor:
        return self._value_of(self.critics.apply(state["critic.params"], obs, actions))

    def learn_critics(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        alpha = state["temperature.params"].exp()
        if self._reward_constants:
            batch = scale_rewards(batch, state)
        if not self._entropy_in_target:
            alpha = torch.zeros_like(alpha)

        def loss(params: Tensor) -> Metrics:
            return self._critic_loss(
                params,
                state["target_critic"],
                state["actor.params"],
                alpha,
                batch,
                gamma=self.hparams.gamma,
                policy=self.policy,
                apply_actor=self.actor.apply,
                apply_critics=self.critics.apply,
                estimate=self._target_estimate,
            )

        new, metrics = descend_part("critic", loss, state, self._optimizers["critic"])
        new["target_critic"] = polyak(state["target_critic"], new["critic.params"], self.hparams.tau)
        return new, metrics

    def learn_actor(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        alpha = state["temperature.params"].exp()

        def loss(params: Tensor) -> Metrics:
            return sac_actor_loss(
                params,
                state["critic.params"],
                alpha,
                batch,
                policy=self.policy,
                apply_actor=self.actor.apply,
                apply_critics=self.critics.apply,
                estimate=self._actor_estimate,
            )

        new, metrics = descend_part("actor", loss, state, self._optimizers["actor"])
        metrics["alpha"] = alpha
        if self.hparams.alpha == "auto":
            excess = metrics["entropy"] - self._target_entropy
            new |= learn_temperature(state, excess, self._optimizers["temperature"])
        return new, metrics


def build_sac(setup: Setup[SoftHParams]) -> ActorCritic:
    return ActorCritic(SAC(build_model(setup, MLPSACModel, num_critics=2), setup), setup)
