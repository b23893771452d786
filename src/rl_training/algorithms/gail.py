"""GAIL: PPO whose rewards come from a discriminator between an expert's transitions and the policy's.

    D(s, a) = sigmoid(L(s, a)), the probability that the expert took the action, learned by
    minimise  -E_expert[log D] - E_policy[log(1 - D)] - ent_coef * H(D) + penalty * E[(|dL/dx| - 1)^2]
    reward    -log(1 - D) = softplus(L),  log D = -softplus(-L)  or  log D - log(1 - D) = L

At each rollout the discriminator learns first. Then its rewards replace those of the rollout, and PPO learns from them.
The environment's rewards are only a metric. Label 1 is the expert; in the paper it is the policy.

With `absorbing_state`, a termination leads to an absorbing state that lasts for ever: the discriminator sees
1 / (1 - gamma) rows of it for each termination, and the last row of the episode earns gamma / (1 - gamma) times the
reward of the absorbing state in addition to its own. The reward scaler does not clip this sum.

Ho and Ermon 2016, Generative adversarial imitation learning; the gradient penalty is that of Gulrajani et al. 2017, the
absorbing state that of Kostrikov et al. 2019, Discriminator-actor-critic.
Deviations are in docs/algorithms/gail.md.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.acceleration.steps import accelerate_rounds
from rl_training.algorithms.ppo import PPO, build_ppo, ppo_policy
from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.setup import Setup
from rl_training.core.spaces import observation_kind
from rl_training.core.types import ActResult, Batch, Metrics, State, StateDict, UpdateResult
from rl_training.hparams.gail import GAILHParams
from rl_training.learners.checks import ANY, FLAGS, FLOATS, Expected, check_tensors
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.networks import build_seeded
from rl_training.learners.normalization import dataset_normalizer, normalized
from rl_training.learners.optim import ClippedAdam, descend_part, gradient_of, named_part
from rl_training.learners.policies import NetworkPolicy
from rl_training.learners.saved_state import load_tensors
from rl_training.models.encoders import build_encoder
from rl_training.models.mlp_gail_discriminator import MLPGAILDiscriminator

ADAM_EPS = 1e-8


PAIRS = {
    "obs": Expected(ANY, "batch ..."),
    "actions": Expected(ANY, "batch ..."),
    "absorbing": Expected(FLAGS, "batch"),
    "expert_obs": Expected(ANY, "batch ..."),
    "expert_actions": Expected(ANY, "batch ..."),
    "expert_absorbing": Expected(FLAGS, "batch"),
    "mix": Expected(FLOATS, "batch"),
}


def imitation_rewards(logits: Tensor, reward_form: str) -> Tensor:
    """Return the policy's rewards for the discriminator's logits: positive, negative, or of either sign (AIRL)."""
    if reward_form == "positive":
        return F.softplus(logits)
    return -F.softplus(-logits) if reward_form == "negative" else logits


def discriminator_loss(
    params: Tensor,
    batch: Batch,
    hparams: GAILHParams,
    *,
    inputs: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    logits: Callable[[Tensor, Tensor], Tensor],
) -> Metrics:
    """Compute the discriminator's loss and accuracy.

    `batch`: obs and actions of the policy; expert_obs and expert_actions; `mix`, (batch,), in [0, 1): where between a
    row of the policy (0) and one of the expert (1) the gradient penalty is taken; with an absorbing state, absorbing
    and expert_absorbing, (batch,) bool. `inputs(params, obs, actions, absorbing)` returns (batch, size), and
    `logits(params, inputs)` returns (batch,).
    """
    check_tensors("discriminator_loss", batch, PAIRS)
    expert = inputs(params, batch["expert_obs"], batch["expert_actions"], batch.get("expert_absorbing"))
    policy = inputs(params, batch["obs"], batch["actions"], batch.get("absorbing"))
    expert_logits, policy_logits = logits(params, expert), logits(params, policy)
    # -log sigmoid(L) = softplus(-L) and -log(1 - sigmoid(L)) = softplus(L), which never overflow.
    cross_entropy = F.softplus(-expert_logits).mean() + F.softplus(policy_logits).mean()
    both = torch.cat((expert_logits, policy_logits))
    entropy = (F.softplus(both) - both.sigmoid() * both).mean()
    metrics = {
        "loss": cross_entropy - hparams.discriminator_ent_coef * entropy,
        "discriminator_entropy": entropy.detach(),
        "expert_accuracy": (expert_logits > 0.0).float().mean(),
        "policy_accuracy": (policy_logits < 0.0).float().mean(),
    }
    if hparams.gradient_penalty > 0.0:
        between = torch.lerp(policy, expert, batch["mix"][:, None]).detach()
        slopes, _ = gradient_of(lambda rows: (logits(params, rows).sum(), {}), between, differentiable=True)
        norms = (slopes.square().sum(1) + 1e-12).sqrt()  # the root of 0 has no gradient
        penalty = (norms - 1.0).square().mean()
        metrics["gradient_penalty"] = penalty.detach()
        metrics["loss"] = metrics["loss"] + hparams.gradient_penalty * penalty
    return metrics


class GAIL:
    """A PPO policy and the discriminator that rewards it."""

    def __init__(self, policy: PPO, discriminator: MLPGAILDiscriminator, setup: Setup[GAILHParams]) -> None:
        self.policy, self.hparams = policy, setup.hparams
        self._discriminator = discriminator.to(setup.device)
        network = FlatModule(self._discriminator)
        rate = setup.hparams.discriminator_learning_rate
        optimizer = ClippedAdam(learning_rate=rate, eps=ADAM_EPS, max_grad_norm=None)
        self._state = named_part("discriminator", optimizer.state(network.params))
        if _normalizes(setup):
            for name, value in _expert_constants(setup).items():
                self._state[name] = value.clone().to(setup.device)
        self._expert_ends = float(setup.dataset.terminated.mean()) if setup.dataset is not None else 0.0
        self._generator = setup.streams.numpy("discriminator")

        def step(state: State, batch: Batch) -> tuple[State, Metrics]:
            seen = {**batch, **{name: self._seen(state, batch[name]) for name in ("expert_obs", "obs")}}

            def loss(params: Tensor) -> Metrics:
                return discriminator_loss(
                    params,
                    seen,
                    setup.hparams,
                    inputs=lambda *inputs: network.apply_part("inputs", *inputs),
                    logits=lambda *inputs: network.apply_part("layers", *inputs),
                )

            return descend_part("discriminator", loss, state, optimizer)

        self._step_in_place = accelerate_rounds(step, setup.acceleration, "discriminator", identity=setup.identity)

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        return self.policy.act(obs, step=step, explore=explore, action_mask=action_mask)

    def update(self, batch: Batch) -> UpdateResult:
        rollout = {name: values for name, values in batch.items() if not name.startswith("expert_")}
        discriminator = self._learn_discriminator(batch)
        rewards, terminal_rewards = self._rewards(rollout), self._terminal_rewards(rollout)
        result = self.policy.update({**rollout, "rewards": rewards, "terminal_rewards": terminal_rewards})
        means = {
            "imitation_reward_mean": (rewards + terminal_rewards).mean(),
            "env_reward_mean": batch["rewards"].mean(),
            **({"absorbing_reward": self._absorbing_reward()} if self.hparams.absorbing_state else {}),
            "expert_log_likelihood": self.policy.log_likelihood(batch["expert_obs"], batch["expert_actions"]).mean(),
        }
        return UpdateResult(result.metrics | discriminator | means, num_gradient_steps=result.num_gradient_steps)

    def status(self, step: int) -> dict[str, float]:
        return self.policy.status(step)

    def policy_state_dict(self) -> StateDict:
        return self.policy.policy_state_dict()

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_policy_state_dict(state)

    def state_dict(self) -> StateDict:
        return {
            "policy": self.policy.state_dict(),
            **self._state,
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        load_tensors(self._state, state)
        set_generator_state(self._generator, state["generator"])

    def _learn_discriminator(self, batch: Batch) -> Metrics:
        """Take `discriminator_updates` steps on the expert's rows in the batch and on random rows of the rollout.

        The expert's rows of all steps lie one after the other.
        """
        device, rows = batch["expert_actions"].device, len(batch["expert_actions"])
        chosen = torch.from_numpy(self._generator.integers(len(batch["actions"]), size=rows)).to(device)
        pairs = {name: (batch[f"expert_{name}"], batch[name][chosen]) for name in ("obs", "actions")}
        if self.hparams.absorbing_state:
            theirs, ours = torch.from_numpy(self._generator.random((2, rows), np.float32)).to(device)
            pairs["absorbing"] = (
                theirs < self._absorbing_share(self._expert_ends),
                ours < self._absorbing_share(batch["terminated"].float().mean()),
            )
        if self.hparams.expert_shuffle == "labels":
            swap = torch.from_numpy(self._generator.random(rows) < 0.5).to(device)
            pairs = {name: _swapped(*pair, swap) for name, pair in pairs.items()}
        rounds = {f"expert_{name}": expert for name, (expert, _) in pairs.items()}
        rounds |= {name: policy for name, (_, policy) in pairs.items()}
        rounds["mix"] = torch.from_numpy(self._generator.random(rows, np.float32)).to(device)
        count = self.hparams.discriminator_updates
        metrics = self._step_in_place(self._state, rounds, count)  # writes the new weights into self._state
        means = {name: values.mean() for name, values in metrics.items()}
        return means | {"discriminator_accuracy": 0.5 * (means["expert_accuracy"] + means["policy_accuracy"])}

    @torch.no_grad()
    def _rewards(self, rollout: Batch) -> Tensor:
        """Return the discriminator's reward for every row."""
        logits = self._discriminator(self._seen(self._state, rollout["obs"]), rollout["actions"])
        return imitation_rewards(logits, self.hparams.reward_form)

    def _terminal_rewards(self, rollout: Batch) -> Tensor:
        """Return what the absorbing state after a termination pays for ever; 0 for the other rows."""
        if not self.hparams.absorbing_state:
            return torch.zeros_like(rollout["rewards"])
        for_ever = self.hparams.gamma / (1.0 - self.hparams.gamma)  # gamma + gamma^2 + ... after an end
        return for_ever * self._absorbing_reward() * rollout["terminated"]

    @torch.no_grad()
    def _absorbing_reward(self) -> Tensor:
        return imitation_rewards(self._discriminator.absorbing_logit(), self.hparams.reward_form).squeeze()

    def _absorbing_share(self, ends: Tensor | float) -> Tensor | float:
        """Return the share of rows in the absorbing state if a share `ends` of the other rows is terminated."""
        absorbed = ends / (1.0 - self.hparams.gamma)  # 1 + gamma + gamma^2 + ... rows after each end
        return absorbed / (1.0 + absorbed)

    def _seen(self, state: State, obs: Tensor) -> Tensor:
        """Return observations as the discriminator sees them: the expert's and the policy's in the same way."""
        return normalized(obs, state["obs_mean"], state["obs_scale"]) if "obs_mean" in state else obs


def _swapped(ours: Tensor, theirs: Tensor, swap: Tensor) -> tuple[Tensor, Tensor]:
    """Exchange the rows where `swap`, (batch,), is true."""
    swap = swap.view(-1, *(1,) * (ours.ndim - 1))
    return torch.where(swap, theirs, ours), torch.where(swap, ours, theirs)


def _normalizes(setup: Setup[GAILHParams]) -> bool:
    """Return whether observations are normalised: only vectors, because the network scales images itself."""
    return setup.hparams.normalize_discriminator and observation_kind(setup.spaces.observation) == "vector"


def _expert_constants(setup: Setup[GAILHParams]) -> State:
    """Return mean and scale of the expert's observations; without a dataset, values that a checkpoint overwrites."""
    obs = None if setup.dataset is None else setup.dataset.obs
    return dataset_normalizer(setup.spaces.observation, obs).constants()


def gail_policy(gail: GAIL) -> NetworkPolicy:
    return ppo_policy(gail.policy)


def build_gail(setup: Setup[GAILHParams]) -> GAIL:
    hparams, spaces = setup.hparams, setup.spaces
    policy = build_ppo(setup)

    def build() -> MLPGAILDiscriminator:
        return MLPGAILDiscriminator(
            lambda: build_encoder(spaces.observation),
            spaces.action,
            hparams.discriminator_hidden_sizes,
            absorbing_state=hparams.absorbing_state,
        )

    discriminator = build_seeded(setup.streams.integer("init", 1), build, setup.device)
    return GAIL(policy, discriminator, setup)
