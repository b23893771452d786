"""TQC: the loss by hand, what is dropped and what is not, whole updates beside plain PyTorch, the learned quantiles."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions, nn

from builders import make_box_batch, make_box_setup
from rl_training.algorithms.qr_dqn import quantile_metrics
from rl_training.algorithms.sac import sac_actor_loss
from rl_training.algorithms.tqc import build_tqc, mean_of_quantiles, pooled_quantiles, tqc_critic_loss
from rl_training.core.seeding import Streams
from rl_training.core.types import Batch, Metrics
from rl_training.hparams.qr_dqn import QRDQNHParams
from rl_training.hparams.tqc import TQCHParams
from rl_training.models.continuous import CriticEnsemble
from rl_training.models.distributions import SquashedGaussian
from rl_training.models.mlp_sac import MLPSACModel

# --- The loss by hand ------------------------------------------------------------------------------------------------


def constant_critics(params: Tensor, obs: Tensor, actions: Tensor) -> Tensor:
    """Quantiles that depend on nothing: (critics, quantiles) -> (critics, batch, quantiles)."""
    return params[:, None].expand(-1, len(obs), -1)


def batch_of(rows: int = 1, *, terminated: bool = False) -> Batch:
    return {
        "obs": torch.zeros(rows, 1),
        "next_obs": torch.zeros(rows, 1),
        "actions": torch.zeros(rows, 1),
        "rewards": torch.ones(rows),
        "terminated": torch.full((rows,), terminated),
        "noise": torch.zeros(rows, 1),
        "next_noise": torch.zeros(rows, 1),
    }


SHARED: dict[str, Any] = {
    "policy": SquashedGaussian((1,)),
    "apply_actor": lambda params, obs: params.expand(len(obs), 2),
    "apply_critics": constant_critics,
}
QUANTILES = torch.tensor([[1.5, 2.5], [0.0, 4.0]])  # of two critics
TARGETS = torch.tensor([[1.0, 2.0], [5.0, 9.0]])


def critic_loss(
    quantiles: Tensor = QUANTILES,
    targets: Tensor = TARGETS,
    *,
    dropped: int = 1,
    alpha: float = 0.0,
    clip_targets: bool = False,
    batch: Batch | None = None,
) -> Metrics:
    return tqc_critic_loss(
        quantiles,
        targets,
        torch.zeros(2),
        torch.tensor(alpha),
        batch or batch_of(),
        dropped_quantiles=dropped,
        gamma=0.5,
        clip_targets=clip_targets,
        **SHARED,
    )


def test_the_loss_is_the_mean_over_critics_quantiles_and_targets_of_the_pooled_lowest() -> None:
    # Pooled and sorted 1, 2, 5, 9; two critics drop one each: 1 and 2 stay, y = 1 + 0.5 z = 1.5 and 2. Dropping inside
    # each critic would keep 1 and 5. Fractions 0.25 and 0.75, u = y - theta, Huber with kappa 1:
    #   theta 1.5, tau 0.25: u = 0, 0.5       0.25 * (0 + 0.125)
    #   theta 2.5, tau 0.75: u = -1, -0.5     0.25 * (0.5 + 0.125)
    #   theta 0,   tau 0.25: u = 1.5, 2       0.25 * (1 + 1.5)
    #   theta 4,   tau 0.75: u = -2.5, -2     0.25 * (2 + 1.5)
    metrics = critic_loss()
    assert metrics["loss"].item() == pytest.approx(0.25 * (0.125 + 0.625 + 2.5 + 3.5) / 8)
    assert metrics["target_mean"].item() == pytest.approx(1.75)
    assert metrics["q_value_mean"].item() == pytest.approx(2.0)
    assert metrics["kept_quantile_mean"].item() == pytest.approx(1.5)
    assert metrics["dropped_quantile_mean"].item() == pytest.approx(7.0)
    assert metrics["td_errors"].tolist() == pytest.approx([0.25])  # both critics have the mean 2


def test_nothing_is_dropped_at_zero() -> None:
    metrics = critic_loss(dropped=0)
    assert metrics["target_mean"].item() == pytest.approx(1.0 + 0.5 * 17 / 4)
    assert metrics["kept_quantile_mean"].item() == pytest.approx(17 / 4)
    assert "dropped_quantile_mean" not in metrics  # the mean of nothing


def test_every_kept_quantile_is_clipped_to_the_returns_that_exist() -> None:
    # 1 + 0.5 * [-10, -4, -2, 3] = [-4, -1, 0, 2.5], of which returns are in [-2, 0].
    metrics = critic_loss(targets=torch.tensor([[-10.0, -2.0], [-4.0, 3.0]]), dropped=0, clip_targets=True)
    assert metrics["target_mean"].item() == pytest.approx((-2.0 - 1.0) / 4)


def test_every_target_counts_the_entropy_and_none_the_future_after_a_termination() -> None:
    # The action is tanh(0) of a standard normal number: log pi = -log(2 pi) / 2. alpha = 2: z + log(2 pi).
    alive = critic_loss(alpha=2.0)["target_mean"]
    assert alive.item() == pytest.approx(1.75 + 0.5 * math.log(2 * math.pi))
    assert critic_loss(alpha=2.0, batch=batch_of(terminated=True))["target_mean"].item() == 1.0


def test_weights_and_discounts_count_by_row() -> None:
    batch = batch_of(2) | {"weights": torch.tensor([1.0, 3.0]), "discounts": torch.tensor([0.5, 0.0])}
    alone = [critic_loss(batch={key: rows[k : k + 1] for key, rows in batch.items()})["loss"] for k in range(2)]
    assert critic_loss(batch=batch)["loss"].item() == pytest.approx(float(sum(alone)) / 2)
    assert critic_loss(batch=batch)["target_mean"].item() == pytest.approx((1.75 + 1.0) / 2)


def test_one_critic_that_drops_nothing_is_quantile_regression() -> None:
    generator = torch.Generator().manual_seed(0)
    quantiles, targets = (torch.randn(1, 5, generator=generator) for _ in range(2))
    batch = batch_of(3) | {"rewards": torch.randn(3, generator=generator)}
    taus = (torch.arange(5) + 0.5) / 5
    hparams = QRDQNHParams(gamma=0.5)
    expected = quantile_metrics(quantiles.expand(3, -1), targets.expand(3, -1), taus, batch, hparams)["loss"]
    # QR-DQN sums over the quantiles of a row, TQC takes their mean.
    assert critic_loss(quantiles, targets, dropped=0, batch=batch)["loss"].item() == pytest.approx(expected.item() / 5)


def test_dropping_more_lowers_the_target() -> None:
    targets = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    means = [float(critic_loss(torch.zeros(3, 7), targets, dropped=k)["target_mean"]) for k in range(7)]
    assert means == sorted(means, reverse=True)
    assert len(set(means)) == 7
    assert means[-1] == pytest.approx(1.0 + 0.5 * float(targets.flatten().sort()[0][:3].mean()))  # N * 1 stay


def test_the_order_of_critics_and_their_target_quantiles_does_not_matter() -> None:
    expected = critic_loss()["loss"]
    assert torch.equal(critic_loss(targets=TARGETS.flip(0))["loss"], expected)
    assert torch.equal(critic_loss(targets=TARGETS.flip(1))["loss"], expected)


def test_only_the_critics_get_a_gradient() -> None:
    quantiles, targets = QUANTILES.clone().requires_grad_(), TARGETS.clone().requires_grad_()
    critic_loss(quantiles, targets)["loss"].backward()
    assert targets.grad is None
    # Each quantile moves by the mean of |tau - 1{u < 0}| * clip(-u, -1, 1) over two targets, an eighth of the sum.
    expected = [[0.25 * -0.5, 0.25 * (1 + 0.5)], [0.25 * -2, 0.25 * 2]]
    torch.testing.assert_close(quantiles.grad, torch.tensor(expected) / 8)


def test_the_actor_maximises_the_mean_of_all_quantiles() -> None:
    metrics = sac_actor_loss(
        torch.zeros(2), TARGETS, torch.tensor(0.0), batch_of(), estimate=mean_of_quantiles, **SHARED
    )
    assert metrics["loss"].item() == pytest.approx(-17 / 4)


def test_quantiles_are_pooled_across_critics_and_sorted() -> None:
    quantiles = torch.tensor([[[3.0, 1.0], [0.0, 7.0]], [[2.0, 9.0], [5.0, 4.0]]])  # two critics, two rows
    assert pooled_quantiles(lambda: quantiles, {}).tolist() == [[1.0, 2.0, 3.0, 9.0], [0.0, 4.0, 5.0, 7.0]]


# --- Networks and settings -------------------------------------------------------------------------------------------


def test_critics_have_their_own_sizes_and_as_many_outputs_as_quantiles() -> None:
    learner = build_tqc(
        make_box_setup("tqc", hidden_sizes=(5,), critic_hidden_sizes=(7, 9), num_critics=3, num_quantiles=4)
    )
    shapes = {name: tuple(value.shape) for name, value in learner.recipe.critics.module.named_parameters()}
    assert [shape for name, shape in shapes.items() if name.endswith("weight")] == [(3, 5, 7), (3, 7, 9), (3, 9, 4)]
    actor = {name: tuple(value.shape) for name, value in learner.recipe.actor.module.named_parameters()}
    assert [shape for name, shape in actor.items() if name.endswith("weight")] == [(5, 3), (4, 5)]
    obs, actions = np.ones((2, 3), np.float32), np.ones((2, 2), np.float32)
    quantiles = learner.recipe.critics.module(torch.from_numpy(obs), torch.from_numpy(actions))
    assert quantiles.shape == (3, 2, 4)
    found = learner.estimated_returns(obs, actions)
    assert found is not None
    np.testing.assert_allclose(found, quantiles.mean(2).amin(0).numpy())


def test_members_are_computed_alone_with_quantiles_too() -> None:
    critics = CriticEnsemble(lambda: (nn.Flatten(), 3), 2, (8,), num_critics=3, num_quantiles=1)
    obs, actions = torch.randn(6, 3), torch.randn(6, 2)
    assert critics(obs, actions).shape == (3, 6, 1)
    torch.testing.assert_close(critics(obs, actions, slice(0, 1)), critics(obs, actions)[:1])


def test_a_critic_cannot_drop_all_its_quantiles() -> None:
    assert TQCHParams(num_quantiles=3, dropped_quantiles=2).dropped_quantiles == 2
    with pytest.raises(ValueError, match="dropped_quantiles must be below num_quantiles, 3, got 3"):
        TQCHParams(num_quantiles=3, dropped_quantiles=3)


@pytest.mark.parametrize("sizes", ["hidden_sizes", "critic_hidden_sizes"])
def test_blocks_of_actor_and_critics_have_one_size_each(sizes: str) -> None:
    assert TQCHParams(network="simba", hidden_sizes=(8, 8), critic_hidden_sizes=(4,)).network == "simba"
    with pytest.raises(ValueError, match=f"network: simba needs {sizes} that are all alike, got"):
        TQCHParams(**{"network": "simba", "hidden_sizes": (8,), "critic_hidden_sizes": (8,), sizes: (8, 16)})


def test_networks_without_quantiles_are_refused() -> None:
    network = MLPSACModel(lambda: (nn.Flatten(), 3), 2, (8,), num_critics=4)
    with pytest.raises(ValueError, match="quantiles"):
        build_tqc(make_box_setup("tqc", network=network))


# --- Whole updates ---------------------------------------------------------------------------------------------------


def new_model() -> MLPSACModel:
    torch.manual_seed(1)
    return MLPSACModel(lambda: (nn.Flatten(), 3), 2, (16,), num_critics=4, num_quantiles=6)


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


class PlainTQC:
    """TQC as one would write it in plain PyTorch: 4 critics, 6 quantiles, 2 dropped."""

    def __init__(self, model: MLPSACModel) -> None:
        self.model, self.target = model, copy.deepcopy(model.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.critic_optimizer = torch.optim.Adam(model.critics.parameters(), lr=0.01)
        self.actor_optimizer = torch.optim.Adam(model.actor.parameters(), lr=0.01)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=0.01)

    def draw(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.model.actor(obs).chunk(2, 1)
        normal = distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = mean + normal.stddev * noise
        return raw.tanh(), (normal.log_prob(raw) - torch.log(1.0 - raw.tanh() ** 2)).sum(1)

    def update(self, batch: Batch, next_noise: Tensor, noise: Tensor) -> None:
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_actions, log_probs = self.draw(batch["next_obs"], next_noise)
            quantiles = self.target(batch["next_obs"], next_actions)
            lowest = torch.cat(list(quantiles), 1).topk(16, largest=False)[0]
            targets = batch["rewards"][:, None] + 0.99 * (1.0 - batch["terminated"].float())[:, None] * (
                lowest - alpha * log_probs[:, None]
            )
        losses = []
        for quantiles in self.model.critics(batch["obs"], batch["actions"]):
            for i in range(6):
                errors = targets - quantiles[:, i : i + 1]
                weights = torch.where(errors < 0, 1.0 - (i + 0.5) / 6, (i + 0.5) / 6)
                losses.append((weights * nn.functional.smooth_l1_loss(errors, errors * 0, reduction="none")).mean())
        self.critic_optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        self.critic_optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.model.critics.parameters(), strict=True):
                slow.copy_(0.995 * slow + 0.005 * fast)
        actions, log_probs = self.draw(batch["obs"], noise)
        actor_loss = (alpha * log_probs - self.model.critics(batch["obs"], actions).mean((0, 2))).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        alpha_loss = -(self.log_alpha * (log_probs.detach() - 2.0)).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()


def test_updates_equal_a_plain_pytorch_tqc() -> None:
    learner = build_tqc(make_box_setup("tqc", network=new_model(), learning_rate=0.01))
    plain, generator = PlainTQC(new_model()), Streams(0).numpy("noise")
    for count in range(1, 11):
        noises = [torch.from_numpy(generator.standard_normal((8, 2), np.float32)) for _ in range(2)]
        plain.update(make_box_batch(count), *noises)
        learner.update(make_box_batch(count))
    torch.testing.assert_close(learner.state["actor.params"], flat(plain.model.actor), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["critic.params"], flat(plain.model.critics), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["target_critic"], flat(plain.target), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.state["temperature.params"], plain.log_alpha.detach(), rtol=1e-3, atol=1e-5)


# --- What is learned -------------------------------------------------------------------------------------------------


@pytest.mark.learning
def test_the_quantiles_of_a_random_reward_are_learned() -> None:
    # Every step terminates with a reward that is uniform in [-8, 8]: the quantile at tau is -8 + 16 tau.
    # A Huber loss of kappa 1 blurs them by less than a tenth.
    learner = build_tqc(
        make_box_setup(
            "tqc",
            num_quantiles=4,
            num_critics=2,
            hidden_sizes=(8,),
            critic_hidden_sizes=(8,),
            alpha=0.1,
            learning_rate=0.02,
            learning_rate_schedule="linear",
            total_timesteps=300,
            batch_size=128,
        )
    )
    generator = torch.Generator().manual_seed(0)
    batch = {key: rows[:1].expand(128, *rows.shape[1:]) for key, rows in make_box_batch().items()}
    batch["terminated"] = torch.ones(128, dtype=torch.bool)
    for _ in range(300):
        learner.update(batch | {"rewards": torch.rand(128, generator=generator) * 16.0 - 8.0})
    learned = learner.recipe.critics.module(batch["obs"][:1], batch["actions"][:1])[:, 0]
    np.testing.assert_allclose(learned.detach().numpy(), [[-6.0, -2.0, 2.0, 6.0]] * 2, atol=0.5)
