"""Dreamer: a world model learned from replayed sequences, and an actor and a critic learned in its imagination.

    h_t = GRU(h_{t-1}, z_{t-1}, a_{t-1})      z_t ~ q(z | h_t, x_t)      z^_t ~ p(z | h_t)
    L_model  = |x_t - x^_t|^2 - log p(r_t) - log p(c_t) + 1.0 max(1, KL[sg q || p]) + 0.1 max(1, KL[q || sg p])
    R_t      = r_{t+1} + gamma c_{t+1} ((1 - lambda) v_{t+1} + lambda R_{t+1})             over imagined steps
    L_actor  = -w_t (sg((R_t - v_t) / max(1, S)) log pi(a_t) + eta H[pi])        S: range of the returns R
    L_critic = -w_t log p_v(sg R_t),        w_t: discounted probability that the episode continues

r_t and c_t belong to the state that a step led to: c_t = 0 means that the episode terminated there. The critic also
learns from replayed sequences; only this loss of actor and critic trains the world model, too.

Hafner et al. 2025, Mastering diverse control tasks through world models. Deviations: docs/algorithms/dreamer.md.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.acceleration.steps import accelerate
from rl_training.core.setup import Setup
from rl_training.core.types import ActResult, Batch, Carry, Metrics, State, StateDict, UpdateResult
from rl_training.errors import ConfigError
from rl_training.hparams.dreamer import DreamerHParams
from rl_training.learners.checks import ANY, FLAGS, FLOATS, Expected, check_tensors
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.imagined_returns import continuation_weights, replayed_returns, return_range
from rl_training.learners.laprop import AdaptiveLaProp
from rl_training.learners.latent_acting import LatentActing
from rl_training.learners.networks import build_seeded
from rl_training.learners.optim import descend_parts, named_part, polyak
from rl_training.learners.random_inputs import FILLS, RandomInput, RandomInputs, uniform
from rl_training.learners.returns import lambda_return
from rl_training.learners.saved_state import generators_to_save, load_generators, load_tensors, tensors_to_save
from rl_training.models.dreamer import DreamerPolicy, Observed, WorldModel, build_actor, build_critic
from rl_training.models.dreamer_actions import Actions, build_actions
from rl_training.models.dreamer_latents import kl_divergence
from rl_training.models.dreamer_rssm import CELLS, Cells, Sizes, compile_cells, sizes_of
from rl_training.models.dreamer_two_hot import make_bins, two_hot_loss, two_hot_mean

Apply = Callable[..., Any]  # (params, ...) -> the outputs of a network


SEQUENCES = {
    "obs": Expected(ANY, "batch time ..."),
    "actions": Expected(ANY, "batch time ..."),
    "rewards": Expected(FLOATS, "batch time"),
    "terminated": Expected(FLAGS, "batch time"),
    "is_first": Expected(FLAGS, "batch time"),
}
IMAGINED = {
    "features": Expected(FLOATS, "steps batch numbers"),
    "actions": Expected(ANY, "steps batch ..."),
    "advantages": Expected(FLOATS, "steps batch"),
    "returns": Expected(FLOATS, "steps batch"),
    "weights": Expected(FLOATS, "steps batch"),
}


# --- The world model's loss ------------------------------------------------------------------------------------------


def balanced_kl(posterior: Tensor, prior: Tensor, hparams: DreamerHParams) -> tuple[Tensor, Tensor]:
    """Return the losses of the prior, which learns to predict, and of the posterior, which learns to be predictable.

    Each is (...) and at least `free_nats`; below that its gradient is 0.
    """
    dynamics = kl_divergence(posterior.detach(), prior).clamp(min=hparams.free_nats)
    representation = kl_divergence(posterior, prior.detach()).clamp(min=hparams.free_nats)
    return dynamics, representation


def world_model_loss(
    params: Tensor, batch: Batch, hparams: DreamerHParams, apply: Apply, bins: Tensor, cells: Cells = CELLS
) -> Metrics:
    """Compute the world model's loss on sequences, (batch, time, ...); actor and critic start from `features`.

    Only a termination is an end: after a time limit the episode would have continued.
    """
    check_tensors("world_model_loss", batch, SEQUENCES)
    inputs = (batch["obs"], batch["actions"], batch["is_first"], batch["posterior_noise"])
    seen: Observed = apply(params, WorldModel.observe, *inputs, cells)
    reconstruction = torch.stack(list(seen.errors.values())).sum(0).mean()  # over the parts of an observation
    reward = two_hot_loss(seen.reward_logits, batch["rewards"], bins).mean()
    goes_on = F.binary_cross_entropy_with_logits(seen.continue_logits, (~batch["terminated"]).float())
    dynamics, representation = (kl.mean() for kl in balanced_kl(seen.posterior, seen.prior, hparams))
    kl = hparams.dynamics_coef * dynamics + hparams.representation_coef * representation
    loss = reconstruction + reward + goes_on + kl
    return {
        "loss": loss,
        "world_model_loss": loss,
        "reconstruction_loss": reconstruction,
        "reward_loss": reward,
        "continue_loss": goes_on,
        "kl": kl_divergence(seen.posterior.detach(), seen.prior.detach()).mean(),
        "features": seen.features,
    }


# --- Learning from imagination ---------------------------------------------------------------------------------------


def actor_loss(
    params: Tensor, batch: Batch, hparams: DreamerHParams, apply: Apply, kind_of_actions: Actions
) -> Metrics:
    """Compute the policy gradient loss: features (steps, batch, numbers), actions (steps, batch, ...), the rest
    (steps, batch).

    REINFORCE for every kind of action: no gradient flows through the world model.
    """
    check_tensors("actor_loss", batch, IMAGINED)
    log_prob, entropy = kind_of_actions.evaluate(apply(params, batch["features"]), batch["actions"])
    gain = batch["advantages"] * log_prob + hparams.entropy_coef * entropy
    loss = -(batch["weights"] * gain).mean()
    return {"loss": loss, "actor_loss": loss, "entropy": entropy.mean()}


def critic_loss(
    params: Tensor, slow_params: Tensor, batch: Batch, apply: Apply, bins: Tensor, *, slow: float
) -> Tensor:
    """Compute the distance to the returns and, with the weight `slow`, to the slow critic: mean over (steps, batch)."""
    check_tensors("critic_loss", batch, IMAGINED)
    logits = apply(params, batch["features"])
    slow_values = two_hot_mean(apply(slow_params, batch["features"]), bins).detach()
    losses = two_hot_loss(logits, batch["returns"], bins) + slow * two_hot_loss(logits, slow_values, bins)
    return (batch["weights"] * losses).mean()


# --- The learner -----------------------------------------------------------------------------------------------------


class Dreamer:
    """Samples from its policy in states that it infers from all observations of an episode."""

    def __init__(self, sizes: Sizes, setup: Setup[DreamerHParams], cells: Cells = CELLS) -> None:
        self.hparams = hparams = setup.hparams
        self._cells = cells
        self._actions = build_actions(setup.spaces.action, hparams.unimix)

        def build() -> dict[str, nn.Module]:
            return {
                "world_model": WorldModel(setup.spaces.observation, self._actions, sizes),
                "actor": build_actor(self._actions.num_outputs, sizes),
                "critic": build_critic(sizes),
            }

        networks = build_seeded(setup.streams.integer("init"), build, setup.device)
        self._parts = {name: FlatModule(network.to(setup.device)) for name, network in networks.items()}
        self._optimizers = {name: _optimizer(hparams, name, part) for name, part in self._parts.items()}
        self._bins = make_bins(hparams.num_bins, hparams.symlog_limit).to(setup.device)
        self.state: State = {}
        for name, optimizer in self._optimizers.items():
            self.state |= named_part(name, optimizer.state(self._parts[name].params))
        self.state["slow_critic"] = self.state["critic.params"].clone()
        self.state |= {name: torch.zeros((), device=setup.device) for name in ("return_low", "return_high")}
        self._policy = {name: self.state[name] for name in ("world_model.params", "actor.params")}
        self._generators = {name: setup.streams.numpy(name) for name in ("action", "noise", "eval_action")}
        self._random_inputs = RandomInputs(_random_inputs(hparams, self._actions), setup.device)
        # Unrolled over time the update is too long for the compiler for GPUs, which compiles the cells alone.
        self._step_in_place = accelerate(self._learn, setup.acceleration, identity=setup.identity, capture_plain=True)
        world, actor = self._parts["world_model"], self._parts["actor"]
        self._acting = LatentActing(world, actor, self._policy, setup.acceleration)

    def act(
        self,
        obs: np.ndarray,
        *,
        step: int = 0,
        explore: bool = False,
        action_mask: np.ndarray | None = None,
        carry: Carry | None = None,
    ) -> ActResult:
        if not explore and not self.hparams.sampled_evaluation:
            return self._acting.act(obs, carry, None)
        return self._acting.act(obs, carry, self._generators["action" if explore else "eval_action"])

    def update(self, batch: Batch) -> UpdateResult:
        batch = batch | self._random_inputs.fill(self._generators["noise"])
        metrics = self._step_in_place(self.state, batch)  # writes the new weights into self.state
        return UpdateResult(metrics)

    def status(self, step: int) -> dict[str, float]:
        return {"return_range": float(self.state["return_high"] - self.state["return_low"])}

    def policy_state_dict(self) -> StateDict:
        return {
            f"{part}.{name}": values
            for part in ("world_model", "actor")
            for name, values in self._parts[part].named(self.state[f"{part}.params"]).items()
        }

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        for part in ("world_model", "actor"):
            own = {name.removeprefix(f"{part}."): value for name, value in state.items() if name.startswith(f"{part}.")}
            self._parts[part].load(self.state[f"{part}.params"], own)

    def state_dict(self) -> StateDict:
        return {
            **tensors_to_save(self.state, without=self._policy),
            "generators": generators_to_save(self._generators),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_tensors(self.state, state, without=self._policy)
        load_generators(self._generators, state["generators"])

    # --- Learning ----------------------------------------------------------------------------------------------------

    def _learn(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Take one step down the gradient of all losses together."""
        new_state, metrics = descend_parts(lambda params: self._losses(params, state, batch), state, self._optimizers)
        new_range = {name: metrics.pop(name) for name in ("return_low", "return_high")}
        slow = polyak(state["slow_critic"], new_state["critic.params"], self.hparams.slow_critic_rate)
        return {**new_state, **new_range, "slow_critic": slow}, metrics

    def _losses(self, params: Mapping[str, Tensor], state: State, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the sum of all losses, and metrics; among them the new range of the returns.

        Actor and critic learn from imagined states without a gradient to the world model. Imagination itself uses the
        weights in `state`, which have no gradient at all.
        """
        hparams = self.hparams
        apply_world, apply_actor = self._parts["world_model"].apply, self._parts["actor"].apply
        world = world_model_loss(params["world_model"], batch, hparams, apply_world, self._bins, self._cells)
        features = world.pop("features")
        imagined, new_range = self._imagine(state, features.detach(), batch)
        shared = features if hparams.replay_critic_trains_world_model else features.detach()
        replayed = self._replayed(shared, imagined, batch)
        actor = actor_loss(params["actor"], imagined, hparams, apply_actor, self._actions)
        critic = self._critic_loss(params["critic"], state, imagined)
        critic = critic + hparams.replay_critic_coef * self._critic_loss(params["critic"], state, replayed)
        loss = world.pop("loss") + actor.pop("loss") + critic
        return loss, {**world, **actor, "critic_loss": critic, **new_range, **_means(imagined)}

    def _imagine(self, state: State, features: Tensor, batch: Batch) -> tuple[Batch, State]:
        """Imagine from every replayed state; return the batch for actor and critic, and the new range of returns."""
        hparams, world, actor = self.hparams, self._parts["world_model"], self._parts["actor"]

        def choose(features: Tensor, number: int) -> Tensor:
            return self._actions.draw(actor.apply(state["actor.params"], features), batch["action_noise"][number])

        params, starts = state["world_model.params"], features.flatten(0, 1)
        states, actions = world.apply(params, WorldModel.imagine, starts, choose, batch["prior_noise"], self._cells)
        reward_logits, continue_logits = world.apply(params, WorldModel.predict_heads, states[1:])
        values = two_hot_mean(self._parts["critic"].apply(state["critic.params"], states), self._bins)
        rewards, discounts = two_hot_mean(reward_logits, self._bins), hparams.gamma * continue_logits.sigmoid()
        returns = lambda_return(rewards, discounts, values[1:], hparams.return_lambda)
        low, high = return_range(state["return_low"], state["return_high"], returns, hparams.return_rate)
        imagined = {
            "features": states[:-1],
            "actions": actions,
            "returns": returns,
            "advantages": (returns - values[:-1]) / (high - low).clamp(min=1.0),
            "weights": continuation_weights((~batch["terminated"]).flatten().float(), discounts),
            "rewards": rewards,
        }
        return imagined, {"return_low": low, "return_high": high}

    def _replayed(self, features: Tensor, imagined: Batch, batch: Batch) -> Batch:
        """Return the critic's batch of replayed sequences; their values are the returns imagined from them."""
        values = imagined["returns"][0].view(features.shape[:2]).T
        returns, weights = replayed_returns(batch, values, self.hparams)
        return {"features": features.transpose(0, 1)[:-1], "returns": returns, "weights": weights}

    def _critic_loss(self, params: Tensor, state: State, batch: Batch) -> Tensor:
        slow, apply = self.hparams.slow_critic_coef, self._parts["critic"].apply
        return critic_loss(params, state["slow_critic"], batch, apply, self._bins, slow=slow)


def dreamer_policy(dreamer: Dreamer) -> DreamerPolicy:
    world_model = dreamer._parts["world_model"].module
    assert isinstance(world_model, WorldModel)
    return DreamerPolicy(world_model, dreamer._parts["actor"].module)


def _means(imagined: Batch) -> Metrics:
    return {f"imagined_{name}_mean": imagined[f"{name}s"].mean() for name in ("return", "reward")}


def _optimizer(hparams: DreamerHParams, name: str, part: FlatModule) -> AdaptiveLaProp:
    rates = {"actor": hparams.actor_learning_rate, "critic": hparams.critic_learning_rate}
    return AdaptiveLaProp(
        sizes=part.sizes,
        learning_rate=rates.get(name) or hparams.learning_rate,
        warmup=hparams.warmup_updates,
        clip=hparams.adaptive_clip,
    )


def _random_inputs(hparams: DreamerHParams, actions: Actions) -> dict[str, RandomInput]:
    """Name the random numbers of an update: one for each categorical variable that is drawn, and those of actions."""
    rows = hparams.batch_size * hparams.sequence_length
    return {
        "posterior_noise": RandomInput((hparams.batch_size, hparams.sequence_length, hparams.num_latents), uniform),
        "prior_noise": RandomInput((hparams.imagination_horizon, rows, hparams.num_latents), uniform),
        "action_noise": RandomInput((hparams.imagination_horizon, rows, actions.noise_size), FILLS[actions.noise]),
    }


def build_dreamer(setup: Setup[DreamerHParams]) -> Dreamer:
    if setup.network is not None:
        raise ConfigError("dreamer does not accept a network: its world model, actor and critic are built together")
    captures = setup.device.type == "cuda" and setup.acceleration == "cuda_graph"
    return Dreamer(sizes_of(setup.hparams), setup, compile_cells() if captures else CELLS)
