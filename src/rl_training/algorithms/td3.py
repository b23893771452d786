"""TD3: a deterministic actor that learns with a delay, and two critics; smoothed targets use the smaller value.

    a' = clip(pi_target(s') + clip(noise, -c, c), -1, 1)
    y = r + gamma * min_i Q_target_i(s', a')        (no second term after a termination)
    minimise  sum_i (Q_i(s, a) - y)^2
    maximise  Q_1(s, pi(s)),   at every `policy_delay`-th update; the target networks move then, too

Fujimoto et al. 2018, Addressing function approximation error in actor-critic methods. Deviations are in
docs/algorithms/td3.md.
"""

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor, nn

from rl_training.core.counters import Keys
from rl_training.core.setup import Setup
from rl_training.core.spaces import action_field
from rl_training.core.types import Batch, Metrics, State
from rl_training.hparams.actor_critic import DelayedHParams
from rl_training.hparams.td3 import TD3HParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.actor_critic_networks import action_size, build_model, network_adam
from rl_training.learners.checks import BOX_ACTIONS, check_tensors
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.optim import descend_part, named_part, polyak
from rl_training.learners.random_inputs import RandomInput, normal
from rl_training.learners.targets import clip_to_returns, critic_metrics, td_target
from rl_training.models.mlp_td3 import MLPTD3Model

ApplyActor = Callable[[Tensor, Tensor], Tensor]  # (params, obs) -> (batch, numbers), before they are squashed
ApplyCritics = Callable[..., Tensor]  # (params, obs, actions, members=None) -> (critics, batch)


def smoothed_actions(actor_params: Tensor, batch: Batch, hparams: DelayedHParams, apply_actor: ApplyActor) -> Tensor:
    """Return the actor's actions at the next observations with clipped noise, (batch, numbers)."""
    limit = hparams.target_noise_clip
    noise = (batch["next_noise"] * hparams.target_noise).clamp(-limit, limit)
    return (apply_actor(actor_params, batch["next_obs"]).tanh() + noise).clamp(-1.0, 1.0)


def td3_critic_loss(
    params: Tensor,
    target_params: Tensor,
    target_actor_params: Tensor,
    batch: Batch,
    hparams: DelayedHParams,
    *,
    apply_actor: ApplyActor,
    apply_critics: ApplyCritics,
) -> Metrics:
    """Compute the critics' loss and its metrics.

    `batch`: obs, next_obs, actions, rewards (batch,), terminated (batch,) bool, next_noise (batch, numbers), and
    optionally discounts and weights (batch,).
    """
    check_tensors("td3_critic_loss", batch, BOX_ACTIONS)
    next_actions = smoothed_actions(target_actor_params, batch, hparams, apply_actor)
    next_values = apply_critics(target_params, batch["next_obs"], next_actions).amin(0)
    discounts = batch.get("discounts", hparams.gamma)
    targets = td_target(batch["rewards"], batch["terminated"], next_values, discounts).detach()
    if isinstance(hparams, TD3HParams) and hparams.clip_targets:
        targets = clip_to_returns(targets, hparams.gamma)
    return critic_metrics(apply_critics(params, batch["obs"], batch["actions"]), targets, batch)


def td3_actor_loss(
    params: Tensor, critic_params: Tensor, batch: Batch, *, apply_actor: ApplyActor, apply_critics: ApplyCritics
) -> Metrics:
    """Compute minus the first critic's value of the actor's actions. `batch`: obs."""
    check_tensors("td3_actor_loss", batch, {"obs": BOX_ACTIONS["obs"]})
    actions = apply_actor(params, batch["obs"]).tanh()
    return {"loss": -apply_critics(critic_params, batch["obs"], actions, slice(0, 1)).mean()}


class TD3:
    """The recipe; other losses make it another algorithm of the same networks and delays (rebrac.py)."""

    def __init__(
        self,
        model: nn.Module,
        setup: Setup[DelayedHParams],
        *,
        critic_loss: Callable[..., Metrics] = td3_critic_loss,
        actor_loss: Callable[..., Metrics] = td3_actor_loss,
    ) -> None:
        self.hparams = setup.hparams
        self._critic_loss, self._actor_loss = critic_loss, actor_loss
        # A policy that learned from a dataset plays as it learned, also where it explores.
        self._exploration_noise = setup.hparams.exploration_noise if isinstance(setup.hparams, TD3HParams) else 0.0
        self.actor, self.critics = FlatModule(model.actor), FlatModule(model.critics)  # type: ignore[arg-type]
        self._action_shape, self._action_size = action_field(setup.spaces.action).shape, action_size(setup)
        rate = self.hparams.learning_rate
        self._optimizers = {
            "critic": network_adam(self.critics, self.hparams, rate),
            "actor": network_adam(self.actor, self.hparams, self.hparams.actor_learning_rate or rate),
        }

    def state(self) -> State:
        params = {"critic": self.critics.params, "actor": self.actor.params}
        state = {f"target_{name}": values.clone() for name, values in params.items()}
        for name, optimizer in self._optimizers.items():
            state |= named_part(name, optimizer.state(params[name]))
        return state

    def random_inputs(self, rounds: int, rows: int, *, actor: bool) -> Mapping[str, RandomInput]:
        return {"next_noise": RandomInput((rounds * rows, self._action_size), normal)}

    def explore(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        actions = self.best(outputs)
        scaled = noise.reshape(actions.shape) * self._exploration_noise
        noisy: np.ndarray = np.clip(actions + scaled, -1.0, 1.0, dtype=np.float32)
        return noisy

    def draw(self, outputs: Tensor, keys: Keys, lane: int) -> Tensor:
        noise = keys.normal(lane, self._action_size) * self._exploration_noise
        return (outputs.tanh() + noise).clamp(-1.0, 1.0).reshape(outputs.shape[0], *self._action_shape)

    def best(self, outputs: np.ndarray) -> np.ndarray:
        actions: np.ndarray = np.tanh(outputs).reshape(len(outputs), *self._action_shape)
        return actions

    def values(self, state: State, obs: Tensor, actions: Tensor) -> Tensor:
        values: Tensor = self.critics.apply(state["critic.params"], obs, actions)
        return values

    def learn_critics(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        def loss(params: Tensor) -> Metrics:
            return self._critic_loss(
                params,
                state["target_critic"],
                state["target_actor"],
                batch,
                self.hparams,
                apply_actor=self.actor.apply,
                apply_critics=self.critics.apply,
            )

        return descend_part("critic", loss, state, self._optimizers["critic"])

    def learn_actor(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        def loss(params: Tensor) -> Metrics:
            return self._actor_loss(
                params, state["critic.params"], batch, apply_actor=self.actor.apply, apply_critics=self.critics.apply
            )

        new, metrics = descend_part("actor", loss, state, self._optimizers["actor"])
        new["target_actor"] = polyak(state["target_actor"], new["actor.params"], self.hparams.tau)
        new["target_critic"] = polyak(state["target_critic"], state["critic.params"], self.hparams.tau)
        return new, metrics


def build_td3(setup: Setup[TD3HParams]) -> ActorCritic:
    return ActorCritic(TD3(build_model(setup, MLPTD3Model, num_critics=2, by_member=True), setup), setup)
