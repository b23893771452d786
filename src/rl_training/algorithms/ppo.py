"""PPO: policy gradient with a clipped ratio, several epochs on each rollout.

    r = pi(a|s) / pi_old(a|s)
    maximise  min(r * A, clip(r, 1 - eps, 1 + eps) * A) + ent_coef * H(pi) - vf_coef * (V(s) - R)^2

A are generalised advantage estimates (returns.gae), R = A + V_old(s). Values and log-probabilities of a rollout are
computed in one pass at its end, by the code that the loss uses: acting needs the policy alone.

Schulman et al. 2017, Proximal policy optimization algorithms; the details are those of Huang et al. 2022, The 37
implementation details of PPO. Deviations are in docs/algorithms/ppo.md.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.acceleration.acting import act_function
from rl_training.acceleration.steps import accelerate
from rl_training.core.counters import LEARNING_LANE, Keys
from rl_training.core.setup import Setup
from rl_training.core.types import ActResult, Batch, Metrics, State, StateDict, UpdateResult
from rl_training.hparams.ppo import OnPolicyHParams
from rl_training.learners.checks import ANY, FLAGS, FLOATS, Expected, check_tensors
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.member_settings import hparams_in
from rl_training.learners.networks import build_network, check_output, trial_obs
from rl_training.learners.on_device import RolloutLearner, fit
from rl_training.learners.optim import clipped_adam, descend
from rl_training.learners.policies import NetworkPolicy
from rl_training.learners.returns import gae, successor_values
from rl_training.learners.rollout_scaling import RolloutScaling, check_normalization
from rl_training.learners.rollouts import mean_metrics, minibatches, num_rollouts, steps_of
from rl_training.learners.saved_state import generators_to_save, load_generators, load_tensors, tensors_to_save
from rl_training.models.distributions import Distribution, build_distribution
from rl_training.models.mlp_actor_critic import MLPActorCritic, build_actor_critic

KL_LIMIT = 1.5  # times target_kl

ROWS = Expected(FLOATS, "batch")
PPO_BATCH = {
    "obs": Expected(ANY, "batch ..."),
    "actions": Expected(ANY, "batch ..."),
    "action_mask": Expected(FLAGS, "batch choices"),
    "log_probs": ROWS,
    "values": ROWS,
    "advantages": ROWS,
    "returns": ROWS,
}


def ppo_loss(
    params: Tensor,
    batch: Batch,
    hparams: OnPolicyHParams,
    apply: Callable[[Tensor, Tensor], Tensor],
    distribution: Distribution,
    clip_coef: Tensor,
) -> Metrics:
    """Compute the loss of one minibatch and its metrics.

    `apply(params, obs)` returns (batch, outputs + 1), the value last. `batch`: obs, actions, optionally action_mask,
    and log_probs, values, advantages, returns of the policy that collected them, each (batch,).
    """
    check_tensors("ppo_loss", batch, PPO_BATCH)
    outputs = apply(params, batch["obs"])
    values = outputs[:, -1]
    log_probs, entropy = distribution.evaluate(outputs, batch["actions"], batch.get("action_mask"))
    log_ratio = log_probs - batch["log_probs"]
    ratio = log_ratio.exp()
    advantages = batch["advantages"]
    if hparams.normalize_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gain = torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_coef, 1.0 + clip_coef) * advantages)
    value_error = (values - batch["returns"]).square()
    if hparams.value_clip:
        step = (values - batch["values"]).clamp(-clip_coef, clip_coef)
        value_error = torch.maximum(value_error, (batch["values"] + step - batch["returns"]).square())
    policy_loss, value_loss, mean_entropy = -gain.mean(), value_error.mean(), entropy.mean()
    return {
        "loss": policy_loss + hparams.vf_coef * value_loss - hparams.ent_coef * mean_entropy,
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": mean_entropy.detach(),
        "approx_kl": (ratio - 1.0 - log_ratio).detach().mean(),  # Schulman's estimator: unbiased, never negative
        "clip_fraction": ((ratio.detach() - 1.0).abs() > clip_coef).float().mean(),
    }


class PPO:
    """Samples from its policy; an update learns several epochs from one rollout."""

    def __init__(self, network: nn.Module, setup: Setup[OnPolicyHParams], *, sequence_length: int = 1) -> None:
        """`sequence_length`: steps of an env that minibatches keep together, for a network with memory."""
        self.hparams = hparams = setup.hparams
        self._setup = setup
        self._sequence_length = sequence_length
        self.num_updates = 0
        self._shape = (hparams.num_steps, setup.num_envs)
        self._total_updates = max(1, num_rollouts(setup))
        self._distribution = build_distribution(setup.spaces.action)
        self._generators = {name: setup.streams.numpy(name) for name in ("action", "shuffle", "eval_action")}
        self._scaling = RolloutScaling(setup)
        self._network = FlatModule(network.to(setup.device))
        self._optimizer = clipped_adam(hparams, hparams.learning_rate)
        self._state = self._optimizer.state(self._network.params)
        self._state["clip_coef"] = torch.tensor(hparams.clip_coef, device=setup.device)
        sequences = hparams.minibatch_size // sequence_length
        self._indices = torch.zeros(sequences, dtype=torch.int64, device=setup.device)
        self._policy = self._acting()

        # A loop over time has too many operations for the compiler for GPUs.
        plain = sequence_length > 1
        mode, identity = setup.acceleration, setup.identity
        self._step_in_place = accelerate(self.pure_step, mode, identity=identity, capture_plain=plain)

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        outputs = self._policy(self._scaling.rows(obs))
        if not explore and not self.hparams.sampled_evaluation:
            return ActResult(self._distribution.mode(outputs, action_mask))
        generator = self._generators["action" if explore else "eval_action"]
        return ActResult(self._distribution.sample(outputs, generator, action_mask))

    def update(self, batch: Batch) -> UpdateResult:
        hparams = self.hparams
        for name, value in self._schedules().items():
            self._state[name].fill_(value)
        rollout = self._scaling.scaled(batch)
        history: list[Metrics] = []
        for epoch in range(hparams.update_epochs):
            if epoch == 0 or hparams.recompute_advantages:
                rollout |= self._advantages(rollout, log_probs=epoch == 0)
            if stopped := self._learn_epoch(rollout, history):
                break
        self.num_updates += 1
        return UpdateResult(mean_metrics(history) | fit(rollout), num_gradient_steps=len(history) - stopped)

    def pure_step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Learn from the rows or sequences `indices` of a rollout."""
        rows, apply = self._minibatch(batch)
        hparams = hparams_in(state, self.hparams)

        def loss(params: Tensor) -> Metrics:
            return ppo_loss(params, rows, hparams, apply, self._distribution, clip_coef=state["clip_coef"])

        new_state, metrics = descend(loss, state, self._optimizer)
        if hparams.target_kl:  # the policy has moved too far already: nothing changes
            goes_on = metrics["approx_kl"] <= KL_LIMIT * hparams.target_kl
            new_state = {name: torch.where(goes_on, value, state[name]) for name, value in new_state.items()}
        return new_state, metrics

    @torch.no_grad()
    def log_likelihood(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return the log-probability (or density) of actions under the present policy without masks, (batch,)."""
        outputs = self._network.module(self._scaling.tensor(obs))
        return self._distribution.evaluate(outputs, actions, None)[0]

    def on_device(self) -> RolloutLearner:
        """Return this algorithm for tensor environments: acting and updates without the host."""

        def estimate(rollout: Batch, names: Collection[str]) -> Batch:
            return self._advantages(rollout, rollout["params"], log_probs="log_probs" in names)

        def draw(state: State, obs: Tensor, keys: Keys) -> Tensor:
            return self._distribution.draw(self._network.apply(state["params"], obs), keys, LEARNING_LANE)

        estimates = ("values", "advantages", "returns")
        return RolloutLearner(
            setup=self._setup,
            step=self.pure_step,
            estimate=estimate,
            sample=draw,
            acting=("params",),
            estimates=("log_probs", *estimates),
            learned=("obs", "actions", "log_probs", *estimates),
            refreshed=estimates if self.hparams.recompute_advantages else (),
            summary=fit,
            normalizes_obs=self._scaling.normalizer is not None,
            scales_rewards=self._scaling.reward_scaler is not None,
        )

    @property
    def state(self) -> State:
        """Everything that an update changes."""
        return self._state | self._scaling.state

    def use_state(self, state: State) -> None:
        """Act by, and save, these tensors in place of its own: the member's rows of a stacked state."""
        self._state = {name: state[name] for name in self._state}
        self._network.use(self._state["params"])
        self._policy = self._acting()
        self._scaling.use_state(state)

    def begin_learning(self) -> dict[str, float]:
        """Count the next update on the device; return the entries of the state that the host decides for it."""
        numbers = self._schedules()
        self.num_updates += 1
        return numbers

    def status(self, step: int) -> dict[str, float]:
        return {name: float(self._state[name]) for name in ("learning_rate", "clip_coef")}

    def policy_state_dict(self) -> StateDict:
        """Return the network's parameters and the statistics that its inputs are normalised by."""
        return {**self._network.named(self._state["params"]), **self._scaling.policy_state_dict()}

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        network = dict(state)
        statistics = self._scaling.take_policy_state(network)
        self._network.load(self._state["params"], network)
        self._scaling.load_policy_state_dict(statistics)

    def state_dict(self) -> StateDict:
        return {
            **tensors_to_save(self._state, without=("params",)),
            "num_updates": self.num_updates,
            **self._scaling.state_dict(),
            "generators": generators_to_save(self._generators),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_tensors(self._state, state, without=("params",))
        self.num_updates = int(state["num_updates"])
        self._scaling.load_state_dict(state)
        load_generators(self._generators, state["generators"])

    def _acting(self) -> Callable[[np.ndarray], np.ndarray]:
        network = self._network.module
        policy = network.policy if isinstance(network, MLPActorCritic) else network
        return act_function(policy, self._setup.device, self._setup.acceleration)

    def _schedules(self) -> dict[str, float]:
        """Return step size and clip range: the first rollout has the full values, the last the share of a rollout."""
        left = max(0.0, 1.0 - self.num_updates / self._total_updates)
        hparams = self.hparams
        return {
            "learning_rate": hparams.learning_rate * (left if hparams.learning_rate_schedule == "linear" else 1.0),
            "clip_coef": hparams.clip_coef * (left if hparams.clip_schedule == "linear" else 1.0),
        }

    @torch.no_grad()
    def _advantages(self, rollout: Batch, params: Tensor | None = None, *, log_probs: bool = True) -> Batch:
        """Return values, advantages, returns and, if wanted, log-probabilities of every row by the present network."""
        params = self._state["params"] if params is None else params
        outputs, next_values, more = self._evaluate(params, rollout)
        values = outputs[:, -1].view(self._shape)
        if log_probs:
            more["log_probs"] = self._distribution.evaluate(outputs, rollout["actions"], rollout.get("action_mask"))[0]
        rewards, terminated, truncated = steps_of(rollout, self._shape)
        gamma, gae_lambda = self.hparams.gamma, self.hparams.gae_lambda
        advantages = gae(rewards, values, next_values, terminated, truncated, gamma=gamma, gae_lambda=gae_lambda)
        return {
            "values": values.flatten(),
            "advantages": advantages.flatten(),
            "returns": (advantages + values).flatten(),
            **more,
        }

    def _evaluate(self, params: Tensor, rollout: Batch) -> tuple[Tensor, Tensor, Batch]:
        """Return the outputs for each row, (rows, outputs + 1), the values of the true successors, (steps, envs), and
        what else minibatches need."""
        outputs = self._network.apply(params, rollout["obs"])
        values = outputs[:, -1].view(self._shape)
        next_values = successor_values(rollout, values, lambda obs: self._network.apply(params, obs)[:, -1])
        return outputs, next_values, {}

    def _minibatch(self, batch: Batch) -> tuple[Batch, Callable[[Tensor, Tensor], Tensor]]:
        """Return the rows of a minibatch, and the network as a function of parameters and observations; pure."""
        rows = {name: values[batch["indices"]] for name, values in batch.items() if name != "indices"}
        return rows, self._network.apply

    def _learn_epoch(self, rollout: Batch, history: list[Metrics]) -> bool:
        """Take a gradient step on each minibatch of a shuffled rollout; return whether the KL limit ended it.

        The last entry of `history` then describes a step that was not taken.
        """
        not_rows = ("rewards", "terminated", "truncated", "final_obs", "final_rows")
        batch = {name: values for name, values in rollout.items() if name not in not_rows}
        sequences = len(rollout["rewards"]) // self._sequence_length
        for indices in minibatches(self._indices, sequences, self._generators["shuffle"]):
            # Writes the new weights into self._state.
            history.append(self._step_in_place(self._state, batch | {"indices": indices}))
            if self.hparams.target_kl and history[-1]["approx_kl"] > KL_LIMIT * self.hparams.target_kl:
                return True
        return False


def ppo_policy(ppo: PPO) -> NetworkPolicy:
    network = ppo._network.module
    best = network.best if isinstance(network, MLPActorCritic) else network
    return NetworkPolicy(best, ppo._distribution, ppo._scaling.normalizer)


def build_ppo(setup: Setup[OnPolicyHParams]) -> PPO:
    check_normalization(setup)
    hparams, spaces = setup.hparams, setup.spaces
    num_outputs = build_distribution(spaces.action).num_outputs

    def check(network: nn.Module) -> None:
        obs = trial_obs(setup, np.float32 if hparams.normalize in ("obs", "both") else None)
        numbers = f"{num_outputs} numbers for the policy over {spaces.action}, and the value"
        check_output(network, (obs,), {"observations": 2, numbers: num_outputs + 1})

    return PPO(build_network(setup, lambda: build_actor_critic(spaces, hparams), check), setup)
