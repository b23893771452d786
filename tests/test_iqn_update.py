"""IQN: the network at any fraction, and the loss at two sets of drawn ones, against plain loops in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from builders import make_batch, make_setup
from quantile_reference import best_valid_action, quantile_loss, random_quantile_batch, target_quantiles
from rl_training.algorithms.iqn import build_iqn, iqn_loss
from rl_training.core.types import Batch, Metrics
from rl_training.hparams.iqn import IQNHParams
from rl_training.learners.q_losses import Apply
from rl_training.models.encoders import build_encoder
from rl_training.models.layers import CosineEmbedding, HeadStyle
from rl_training.models.mlp_iqn_network import MLPIQNetwork
from state_comparison import clone

# --- The network -----------------------------------------------------------------------------------------------------


def make_network(**settings: Any) -> MLPIQNetwork:
    torch.manual_seed(0)
    sizes = {"num_quantiles": 8, "embedding_dim": 16, **settings}
    return MLPIQNetwork(3, 4, (16,), **sizes).requires_grad_(False)


def test_a_value_equals_plain_loops_in_float64() -> None:
    # Features ReLU(W x + b), times ReLU(sum of cosines), through the output layer.
    network = make_network()
    parameters = {name: p.numpy().astype(np.float64) for name, p in network.named_parameters()}
    obs, taus = torch.randn(5, 3), torch.rand(5, 6)
    values, given = network(obs, taus)
    assert torch.equal(given, taus)
    for row, i in np.ndindex(5, 6):
        features = np.maximum(parameters["trunk.1.weight"] @ obs[row].numpy() + parameters["trunk.1.bias"], 0.0)
        cosines = np.array([math.cos(math.pi * k * float(taus[row, i])) for k in range(16)])
        embedded = np.maximum(
            parameters["embedding.linear.weight"] @ cosines + parameters["embedding.linear.bias"], 0.0
        )
        expected = parameters["head.0.weight"] @ (features * embedded) + parameters["head.0.bias"]
        np.testing.assert_allclose(values[row, :, i].numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("style", [HeadStyle(), HeadStyle(dueling=True, noisy_sigma=0.5, layer_norm=True)], ids=str)
def test_the_value_at_a_fraction_depends_on_no_other_row_or_fraction(style: HeadStyle) -> None:
    network, obs, taus = make_network(style=style), torch.randn(5, 3), torch.rand(5, 6)
    values, _ = network(obs, taus)
    for row, i in np.ndindex(5, 6):
        alone, _ = network(obs[row : row + 1], taus[row : row + 1, i : i + 1])
        torch.testing.assert_close(values[row : row + 1, :, i : i + 1], alone, rtol=1e-4, atol=1e-5)


def test_without_fractions_it_takes_evenly_spaced_ones() -> None:
    network, obs = make_network(num_quantiles=4), torch.randn(5, 3)
    values, taus = network(obs)
    assert taus.tolist() == [[0.125, 0.375, 0.625, 0.875]]
    expected, _ = network(obs, taus.expand(5, -1))
    torch.testing.assert_close(values, expected)
    assert values.shape == (5, 4, 4)


def test_fractions_meet_the_features_of_a_convolution_before_the_hidden_layers() -> None:
    # As in the paper. Where the encoder learns nothing, the hidden layers make the features.
    encoder, features = build_encoder(Box(0, 255, (8, 8, 1), np.uint8))
    of_images = MLPIQNetwork(features, 2, (32, 16), encoder)
    assert of_images.features == features
    assert isinstance(of_images.embedding, CosineEmbedding)
    assert [layer.in_features for layer in of_images.head if isinstance(layer, nn.Linear)] == [features, 32, 16]
    assert len(of_images.trunk) == 1
    of_vectors = MLPIQNetwork(3, 2, (32, 16), nn.Identity())
    assert of_vectors.features == 16
    assert [layer.in_features for layer in of_vectors.head if isinstance(layer, nn.Linear)] == [16]
    with_streams = MLPIQNetwork(3, 2, (32, 16), nn.Identity(), style=HeadStyle(dueling=True))
    assert with_streams.features == 32  # the last hidden layer belongs to the streams


# --- The loss --------------------------------------------------------------------------------------------------------
# Parameters are a table, (states, actions, 3), of c0, c1, c2: Z(tau) = c0 + c1 tau + c2 tau^2.

MIDPOINTS = np.array([0.25, 0.75])


def table_values(params: Tensor, obs: Tensor, taus: Tensor | None = None) -> tuple[Tensor, Tensor]:
    given = torch.from_numpy(MIDPOINTS)[None] if taus is None else taus
    c0, c1, c2 = params.view(4, 3, 3)[obs].unsqueeze(-1).unbind(2)
    at = given[:, None, :].to(params.dtype)
    return c0 + c1 * at + c2 * at.square(), given


def value(coefficients: np.ndarray, tau: float) -> float:
    return float(coefficients[0] + coefficients[1] * tau + coefficients[2] * tau**2)


def loss(online: np.ndarray, target: np.ndarray, batch: Batch, **hparams: Any) -> Metrics:
    ours, theirs = (torch.from_numpy(table).reshape(-1) for table in (online, target))
    return iqn_loss(ours, theirs, batch, IQNHParams(**hparams), table_values)


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_the_loss_equals_plain_loops_in_float64(kappa: float, double_q: bool) -> None:
    rng = np.random.default_rng(1)
    online, target = (rng.normal(size=(4, 3, 3)) for _ in range(2))
    batch = random_quantile_batch(rng)
    size = len(batch["rewards"])
    # Another number of fractions for the targets than for the values: their roles cannot be swapped unseen.
    batch |= {"taus": torch.from_numpy(rng.random((size, 5))), "target_taus": torch.from_numpy(rng.random((size, 3)))}
    losses, errors = [], []
    for row in range(size):
        obs, next_obs, action = (int(batch[name][row]) for name in ("obs", "next_obs", "actions"))
        selecting = (online if double_q else target)[next_obs]
        q_values = [float(np.mean([value(coefficients, tau) for tau in MIDPOINTS])) for coefficients in selecting]
        best = best_valid_action(q_values, batch["next_action_mask"][row].numpy())
        next_values = np.array([value(target[next_obs, best], tau) for tau in batch["target_taus"][row].tolist()])
        targets = target_quantiles(batch, row, next_values)
        taus = batch["taus"][row].tolist()
        values = [value(online[obs, action], tau) for tau in taus]
        losses.append(quantile_loss(values, targets, taus, kappa))
        errors.append(abs(np.mean(targets) - np.mean(values)))
    metrics = loss(online, target, batch, kappa=kappa, double_q=double_q)
    assert metrics["loss"] == pytest.approx((batch["weights"].numpy() * losses).mean(), rel=1e-6)
    assert metrics["td_errors"].tolist() == pytest.approx(errors, rel=1e-6)


def test_the_loss_by_hand() -> None:
    # Z = 4 tau for the action taken; the successor's actions: 8 tau (mean 4, the best), 0, and -1. r = 1, gamma = 0.5.
    # Values at 1/4 and 1/2: [1, 2]. Target at 3/4: 1 + 0.5 * 6 = 4. kappa = 1: 1/4 * (3 - 1/2) + 1/2 * (2 - 1/2).
    online, target = np.zeros((4, 3, 3)), np.zeros((4, 3, 3))
    online[0, 1] = [0.0, 4.0, 0.0]
    target[1] = [[0.0, 8.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]
    batch = {
        "obs": torch.tensor([0]),
        "next_obs": torch.tensor([1]),
        "actions": torch.tensor([1]),
        "rewards": torch.tensor([1.0]),
        "terminated": torch.tensor([False]),
        "taus": torch.tensor([[0.25, 0.5]]),
        "target_taus": torch.tensor([[0.75]]),
    }
    metrics = loss(online, target, batch, gamma=0.5)
    assert metrics["loss"] == pytest.approx(0.25 * 2.5 + 0.5 * 1.5)
    assert metrics["target_mean"] == pytest.approx(4.0)
    assert metrics["q_value_mean"] == pytest.approx(1.5)


@pytest.mark.parametrize("double_q", [False, True])
def test_the_action_is_selected_at_the_midpoints_and_valued_at_the_drawn_fractions(double_q: bool) -> None:
    # Z = 4 tau, mean 2, is better than 1.5, though not at the fraction 1/8 that is drawn, where it is 1/2.
    table = np.zeros((4, 3, 3))
    table[1] = [[0.0, 4.0, 0.0], [1.5, 0.0, 0.0], [0.0, 0.0, 0.0]]
    batch = {
        "obs": torch.tensor([0]),
        "next_obs": torch.tensor([1]),
        "actions": torch.tensor([0]),
        "rewards": torch.tensor([0.0]),
        "terminated": torch.tensor([False]),
        "taus": torch.tensor([[0.25, 0.5]]),
        "target_taus": torch.tensor([[0.125]]),
    }
    assert loss(table, table, batch, gamma=1.0, double_q=double_q)["target_mean"] == pytest.approx(0.5)


# --- The learner -----------------------------------------------------------------------------------------------------


def test_every_update_draws_fractions_of_their_own_for_values_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = build_iqn(make_setup(algo="iqn", num_tau_samples=32))
    plain, batches = learner.recipe.loss, []

    def noted(params: Tensor, target_params: Tensor, batch: Batch, hparams: Any, apply: Apply) -> Metrics:
        batches.append(clone(batch))
        return plain(params, target_params, batch, hparams, apply)

    monkeypatch.setattr(learner.recipe, "loss", noted)
    for seed in range(2):
        learner.update(make_batch(seed))
    drawn = [batch[name] for batch in batches for name in ("taus", "target_taus")]
    assert all(taus.shape == (8, 32) and taus.min() >= 0.0 and taus.max() < 1.0 for taus in drawn)
    together = torch.stack(drawn)
    assert together.unique().numel() > 0.99 * together.numel()  # no two calls, kinds or rows share their numbers
    # Uniform: mean 1/2 and variance 1/12, each to four standard deviations of 2,048 draws.
    assert float(together.mean()) == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / 2_048))
    assert float(together.var()) == pytest.approx(1 / 12, abs=4 * math.sqrt(1 / 180 / 2_048))


def test_greedy_acting_is_that_of_evenly_spaced_fractions_and_repeats_itself() -> None:
    learner = build_iqn(make_setup(algo="iqn", num_actions=4, num_quantiles=8))
    obs = make_batch(size=50)["obs"]
    before = clone(learner.state_dict())
    actions = learner.act(obs.numpy()).actions
    assert np.array_equal(learner.act(obs.numpy()).actions, actions)
    assert learner.state_dict()["generators"] == before["generators"]
    midpoints = ((torch.arange(8) + 0.5) / 8).expand(50, -1)
    q_values = learner.recipe.network(obs, midpoints)[0].mean(2)
    assert actions.tolist() == q_values.argmax(1).tolist()
    assert len(set(actions.tolist())) > 1


def test_the_number_of_fractions_that_pick_an_action_is_not_that_of_the_loss() -> None:
    learner = build_iqn(make_setup(algo="iqn", num_quantiles=7, num_tau_samples=3))
    assert learner.recipe.network.midpoints.shape == (7,)
    assert learner.recipe.random_inputs == {"taus": 3, "target_taus": 3}
