"""SimBaV2: SAC with networks on the unit hypersphere, categorical critics and normalised observations and rewards.

    p, z      the probabilities of a critic at fixed atoms z from -5 to 5; Q = sum_j p_j z_j
    p'        of the two target critics the distribution with the smaller mean, at s' and a' ~ pi(s')
    y         projection of r * c + gamma * (z - alpha * log pi(a'|s')), with p', onto the atoms
                                                                   (no second term after a termination)
    minimise  the cross-entropy of y and p_i(s, a), summed over the critics
    minimise  alpha * log pi(a|s) - min_i Q_i(s, a),   a ~ pi(s)
    minimise  alpha * (entropy of pi - its target)   by alpha
    c         1 / max(deviation of G, max |G| / 5), G: discounted return since the start of an episode

One update is a step of the actor, the temperature and then the critics. After each step of Adam every row of every
matrix is divided by its length; the target critics are an average of parameters and are not. Observations are
normalised by running statistics, without clipping (learners/normalization.py).

Lee et al. 2025, Hyperspherical normalization for scalable deep reinforcement learning. Deviations:
docs/algorithms/simbav2.md.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rl_training.algorithms.sac import ApplyActor, first_state, learning_rates, sac_actor_loss
from rl_training.core.setup import Setup
from rl_training.core.spaces import action_field
from rl_training.core.types import Batch, Metrics, State
from rl_training.errors import ConfigError
from rl_training.hparams.simbav2 import SimBaV2HParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.actor_critic_networks import action_size
from rl_training.learners.checks import BOX_ACTIONS, check_tensors
from rl_training.learners.distributional import project
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.networks import build_network
from rl_training.learners.normalization import ReturnScaler, vector_normalizer
from rl_training.learners.optim import clipped_adam, descend_part, polyak
from rl_training.learners.q_losses import weighted_mean
from rl_training.learners.random_inputs import RandomInput, normal
from rl_training.learners.scaling import Scaling
from rl_training.learners.targets import td_target
from rl_training.models.distributions import SquashedGaussian
from rl_training.models.encoders import build_encoder
from rl_training.models.hyperspherical import UnitLinear, unit
from rl_training.models.mlp_simbav2 import MLPSimBaV2Model

ApplyLogits = Callable[[Tensor, Tensor, Tensor], Tensor]  # (params, obs, actions) -> (critics, batch, atoms)


def smallest_distribution(probabilities: Tensor, atoms: Tensor) -> Tensor:
    """Return for each row the distribution with the smallest mean: (critics, batch, atoms) -> (batch, atoms)."""
    smallest = (probabilities * atoms).sum(2).argmin(0)
    return probabilities.gather(0, smallest[None, :, None].expand_as(probabilities[:1]))[0]


def simbav2_critic_loss(
    params: Tensor,
    target_params: Tensor,
    actor_params: Tensor,
    alpha: Tensor,
    batch: Batch,
    *,
    gamma: float,
    atoms: Tensor,
    policy: SquashedGaussian,
    apply_actor: ApplyActor,
    apply_logits: ApplyLogits,
) -> Metrics:
    """Compute the critics' loss and its metrics. `batch`: as in `sac_critic_loss`, with scaled rewards."""
    check_tensors("simbav2_critic_loss", batch, BOX_ACTIONS)
    next_actions, next_log_probs = policy.rsample(apply_actor(actor_params, batch["next_obs"]), batch["next_noise"])
    next_probs = apply_logits(target_params, batch["next_obs"], next_actions).softmax(2)
    soft_atoms = atoms - alpha * next_log_probs[:, None]  # (batch, atoms)
    discounts = batch["discounts"][:, None] if "discounts" in batch else gamma
    positions = td_target(batch["rewards"][:, None], batch["terminated"][:, None], soft_atoms, discounts)
    targets = project(smallest_distribution(next_probs, atoms), positions, atoms).detach()
    log_probs = apply_logits(params, batch["obs"], batch["actions"]).log_softmax(2)
    losses = -(targets * log_probs).sum(2).sum(0)
    values, target_values = (log_probs.detach().exp() * atoms).sum(2), (targets * atoms).sum(1)
    td_errors = (values - target_values).abs().mean(0)
    return {
        "loss": weighted_mean(losses, batch),
        "q_value_mean": values.mean(),
        "target_mean": target_values.mean(),
        "td_error_mean": td_errors.mean(),
        "end_atom_mass": (targets[:, 0] + targets[:, -1]).mean(),
        "td_errors": td_errors,
    }


def unit_rows(network: FlatModule) -> Callable[[Tensor], Tensor]:
    """Return the function that divides the rows of all `UnitLinear` matrices in a flat vector by their lengths."""
    parts = network.module.named_modules()
    matrices = {f"{name}.weight" for name, part in parts if isinstance(part, UnitLinear)}

    def divided(params: Tensor) -> Tensor:
        named = network.named(params)
        return torch.cat([(unit(part) if name in matrices else part).reshape(-1) for name, part in named.items()])

    return divided


class SimBaV2:
    """The recipe."""

    def __init__(self, model: MLPSimBaV2Model, setup: Setup[SimBaV2HParams]) -> None:
        self.hparams = setup.hparams
        self.actor, self.critics = FlatModule(model.actor), FlatModule(model.critics)
        self._unit_rows = {"actor": unit_rows(self.actor), "critic": unit_rows(self.critics)}
        self.policy = SquashedGaussian(action_field(setup.spaces.action).shape)
        self.explore, self.best = self.policy.sample, self.policy.mode
        target = self.hparams.target_entropy
        self._target_entropy = -0.5 * action_size(setup) if target == "auto" else target
        rates = learning_rates(self.hparams)
        self._optimizers = {name: clipped_adam(self.hparams, rate) for name, rate in rates.items()}
        limit = self.hparams.value_limit
        self._atoms = torch.linspace(-limit, limit, self.hparams.num_atoms, device=setup.device)

    def state(self) -> State:
        learned = first_state(self.hparams, self.actor, self.critics, self._optimizers)
        return {"target_critic": self.critics.params.clone(), **learned}

    def random_inputs(self, rounds: int, rows: int, *, actor: bool) -> Mapping[str, RandomInput]:
        noise = RandomInput((rounds * rows, self.policy.size), normal)
        return {"next_noise": noise, **({"noise": noise} if actor else {})}

    def values(self, state: State, obs: Tensor, actions: Tensor) -> Tensor:
        return self._values(state["critic.params"], obs, actions)

    def learn_critics(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        def loss(params: Tensor) -> Metrics:
            return simbav2_critic_loss(
                params,
                state["target_critic"],
                state["actor.params"],
                state["temperature.params"].exp(),
                batch,
                gamma=self.hparams.gamma,
                atoms=self._atoms,
                policy=self.policy,
                apply_actor=self.actor.apply,
                apply_logits=self.critics.apply,
            )

        new, metrics = self._descend("critic", loss, state)
        new["target_critic"] = polyak(state["target_critic"], new["critic.params"], self.hparams.tau)
        return new, {**metrics, "reward_scale": state["reward_scale"]}

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
                apply_critics=self._values,
            )

        new, metrics = self._descend("actor", loss, state)
        metrics["alpha"] = alpha
        if self.hparams.alpha == "auto":
            excess = metrics["entropy"] - self._target_entropy  # above the target the temperature falls
            more, _ = descend_part(
                "temperature",
                lambda log_alpha: {"loss": log_alpha.exp() * excess},
                state,
                self._optimizers["temperature"],
            )
            new |= more
        return new, metrics

    def _values(self, params: Tensor, obs: Tensor, actions: Tensor) -> Tensor:
        """Return the means of the critics, (critics, batch)."""
        values: Tensor = (self.critics.apply(params, obs, actions).softmax(2) * self._atoms).sum(2)
        return values

    def _descend(self, name: str, loss: Callable[[Tensor], Metrics], state: State) -> tuple[State, Metrics]:
        """Take a step of Adam and divide the rows by their lengths."""
        new, metrics = descend_part(name, loss, state, self._optimizers[name])
        new[f"{name}.params"] = self._unit_rows[name](new[f"{name}.params"])
        return new, metrics


def build_simbav2(setup: Setup[SimBaV2HParams]) -> ActorCritic:
    hparams = setup.hparams
    if setup.network is not None:
        raise ConfigError("simbav2 does not accept a network: its updates keep the rows of its matrices at length 1")

    def build() -> MLPSimBaV2Model:
        return MLPSimBaV2Model(
            lambda: build_encoder(setup.spaces.observation),
            action_size(setup),
            hparams.hidden_sizes,
            hparams.critic_hidden_sizes,
            num_critics=hparams.num_critics,
            num_atoms=hparams.num_atoms,
        )

    model = build_network(setup, build)
    assert isinstance(model, MLPSimBaV2Model)
    return ActorCritic(
        SimBaV2(model, setup),
        setup,
        scaling=Scaling(
            vector_normalizer(setup.spaces.observation, limit=None),
            ReturnScaler(setup.num_envs, hparams.gamma, limit=hparams.value_limit),
        ),
        actor_first=True,
        final_rate_share=hparams.final_rate_share,
    )
