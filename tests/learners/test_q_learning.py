"""What every head of the DQN family does alike: targets, masks, weights, noise in the loss, acting and exploring."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from builders import make_batch, make_config, make_setup
from rl_training.algorithms.c51_dqn import c51_loss, support
from rl_training.algorithms.dqn import dqn_loss
from rl_training.algorithms.fqf import fqf_loss
from rl_training.algorithms.iqn import iqn_loss
from rl_training.algorithms.qr_dqn import qr_dqn_loss
from rl_training.core.types import Batch, Metrics
from rl_training.errors import CheckpointError
from rl_training.experiment.registry import registry
from rl_training.hparams.dqn import DQNHParams
from rl_training.hparams.schedules import epsilon
from rl_training.learners import q_losses
from rl_training.learners.q_learning import QLearner
from rl_training.learners.q_losses import Apply, pick
from rl_training.models.layers import NoisyLayers, NoisyLinear
from rl_training.models.mlp_fqf_network import FQFOutput
from rl_training.runtime.trainer import RunOptions, train
from state_comparison import assert_identical, clone

HEADS = ["dqn", "c51_dqn", "qr_dqn", "iqn", "fqf"]
SHARED_METRICS = ("loss", "q_value_mean", "target_mean", "td_error_mean")


def build(algo: str, **setup: Any) -> QLearner:
    learner = registry()[algo].build_algorithm(make_setup(algo=algo, **setup))
    assert isinstance(learner, QLearner)
    return learner


# --- The loss of networks that are certain of a return ---------------------------------------------------------------
# All their quantiles, or all their mass, lie at one number for each action: what a target must be is then the same for
# every head. The parameters are a table of whole numbers (the atoms of C51 are whole too): a row per state, a column
# per action. Every row of a batch goes from state 0 to state 1.

LOSSES: dict[str, Callable[..., Metrics]] = {
    "dqn": dqn_loss,
    "c51_dqn": c51_loss,
    "qr_dqn": qr_dqn_loss,
    "iqn": iqn_loss,
    "fqf": fqf_loss,
}
NUM_ACTIONS, NUM_FRACTIONS = 3, 4
TAUS = torch.full((1, NUM_FRACTIONS), 0.3)
NO_VALUES = torch.zeros(2 * NUM_ACTIONS)


def hparams_of(algo: str, **changes: Any) -> Any:
    values = {"gamma": 0.5, "num_atoms": 21, **changes}  # the atoms: -10, -9, ..., 10
    known = registry()[algo].hparams.model_fields
    return registry()[algo].hparams(**{name: value for name, value in values.items() if name in known})


def certain(algo: str) -> Apply:
    """The network of that head which reads its answer from the table."""

    def q_values(params: Tensor, obs: Tensor) -> Tensor:
        return params.view(2, NUM_ACTIONS)[obs]

    def logits(params: Tensor, obs: Tensor) -> Tensor:
        return -1e4 * (q_values(params, obs)[..., None] - support(hparams_of("c51_dqn"))).square()

    def quantiles(params: Tensor, obs: Tensor, count: int = NUM_FRACTIONS) -> Tensor:
        return q_values(params, obs)[..., None].expand(-1, -1, count)

    def implicit(params: Tensor, obs: Tensor, taus: Tensor = TAUS) -> tuple[Tensor, Tensor]:
        return quantiles(params, obs, taus.shape[1]), taus

    def proposed(params: Tensor, obs: Tensor, taus: Tensor | None = None, edges: bool = False) -> FQFOutput:
        even = torch.linspace(0.0, 1.0, NUM_FRACTIONS + 1).expand(len(obs), -1)
        taus = even if taus is None else taus
        edge_values = quantiles(params, obs, NUM_FRACTIONS - 1) if edges else None
        tau_hats = (taus[:, 1:] + taus[:, :-1]) / 2
        return FQFOutput(quantiles(params, obs), taus, tau_hats, torch.zeros(len(obs)), edge_values)

    heads: dict[str, Apply] = {
        "dqn": q_values,
        "c51_dqn": logits,
        "qr_dqn": quantiles,
        "iqn": implicit,
        "fqf": proposed,
    }
    return heads[algo]


def table(state_0: list[float], state_1: list[float]) -> Tensor:
    return torch.tensor([state_0, state_1]).view(-1)


def step_0_to_1(rewards: list[float], terminated: list[bool], actions: list[int] | None = None) -> Batch:
    size = len(rewards)
    return {
        "obs": torch.zeros(size, dtype=torch.int64),
        "next_obs": torch.ones(size, dtype=torch.int64),
        "actions": torch.tensor(actions or [0] * size),
        "rewards": torch.tensor(rewards),
        "terminated": torch.tensor(terminated),
        "taus": TAUS.expand(size, -1),
        "target_taus": TAUS.expand(size, -1),
    }


def certain_loss(
    algo: str, online: Tensor, target: Tensor, batch: Batch, *, apply: Apply | None = None, **hparams: Any
) -> Metrics:
    return LOSSES[algo](online, target, batch, hparams_of(algo, **hparams), apply or certain(algo))


@pytest.mark.parametrize("algo", HEADS)
def test_bootstraps_through_truncation_but_not_termination(algo: str) -> None:
    # 2 + 0.5 * max(1, 3, -4) = 3.5 if alive or at a time limit, 2 if terminated.
    target = table([9.0, 9.0, 9.0], [1.0, 3.0, -4.0])
    metrics = certain_loss(algo, NO_VALUES, target, step_0_to_1([2.0, 2.0], [False, True]))
    assert metrics["target_mean"] == pytest.approx((3.5 + 2.0) / 2, rel=1e-5)
    assert metrics["q_value_mean"] == pytest.approx(0.0)


@pytest.mark.parametrize("algo", HEADS)
def test_the_value_of_the_action_taken_is_compared(algo: str) -> None:
    batch = step_0_to_1([0.0, 0.0, 0.0], [True] * 3, actions=[0, 1, 1])
    metrics = certain_loss(algo, table([1.0, 7.0, 3.0], [0.0, 0.0, 0.0]), NO_VALUES, batch)
    assert metrics["q_value_mean"] == pytest.approx((1.0 + 7.0 + 7.0) / 3, rel=1e-5)


@pytest.mark.parametrize("algo", HEADS)
def test_double_q_is_chosen_by_the_online_and_valued_by_the_target_network(algo: str) -> None:
    # Online Q(s') = [5, 1, 0] picks action 0; the target network values it at 1, its own best is 3.
    online, target = table([0.0, 0.0, 0.0], [5.0, 1.0, 0.0]), table([0.0, 0.0, 0.0], [1.0, 3.0, -2.0])
    batch = step_0_to_1([0.0], [False])
    means = {on: certain_loss(algo, online, target, batch, double_q=on)["target_mean"] for on in (False, True)}
    assert means[False] == pytest.approx(0.5 * 3.0, rel=1e-5)
    assert means[True] == pytest.approx(0.5 * 1.0, rel=1e-5)


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("algo", HEADS)
def test_the_target_picks_among_valid_actions_only(algo: str, double_q: bool) -> None:
    # The best action of both networks, 1, is valid in the first row only. Next best: online 0, target 2.
    online, target = table([0.0, 0.0, 0.0], [5.0, 9.0, 4.0]), table([0.0, 0.0, 0.0], [1.0, 3.0, 2.0])
    valid = [[True, True, True], [True, False, True], [True, False, False]]
    batch = step_0_to_1([0.0] * 3, [False] * 3) | {"next_action_mask": torch.tensor(valid)}
    expected = [0.5 * 3.0, 0.5 * (1.0 if double_q else 2.0), 0.5 * 1.0]
    for row, value in enumerate(expected):
        one = {name: tensor[row : row + 1] for name, tensor in batch.items()}
        assert certain_loss(algo, online, target, one, double_q=double_q)["target_mean"] == pytest.approx(value)
    whole = certain_loss(algo, online, target, batch, double_q=double_q)
    assert whole["target_mean"] == pytest.approx(np.mean(expected), rel=1e-5)


@pytest.mark.parametrize("algo", HEADS)
def test_each_row_has_the_discount_of_its_own_number_of_steps(algo: str) -> None:
    # Rewards of one, two and three steps summed; gamma = 0.5 itself must not count again.
    target = table([0.0, 0.0, 0.0], [4.0, 8.0, 0.0])
    batch = step_0_to_1([1.0, 1.5, 1.75], [False, False, True]) | {"discounts": torch.tensor([0.5, 0.25, 0.125])}
    metrics = certain_loss(algo, NO_VALUES, target, batch)
    assert metrics["target_mean"] == pytest.approx((1 + 0.5 * 8 + 1.5 + 0.25 * 8 + 1.75) / 3, rel=1e-5)


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("algo", HEADS)
def test_values_targets_and_selection_each_have_noise_of_their_own(algo: str, double_q: bool) -> None:
    online, target = table([1.0, 2.0, 3.0], [5.0, 1.0, 0.0]), table([0.0, 0.0, 0.0], [1.0, 3.0, 2.0])
    calls = set()

    def noted(params: Tensor, obs: Tensor, *more: Any, noise: Tensor) -> Any:
        calls.add(("online" if torch.equal(params, online) else "target", int(obs[0]), int(noise)))
        return certain(algo)(params, obs, *more)

    batch = step_0_to_1([0.0], [False]) | {"noise": torch.tensor([[10.0], [11.0], [12.0]])}
    certain_loss(algo, online, target, batch, apply=noted, double_q=double_q)
    value, successor, selection = ("online", 0, 10), ("target", 1, 11), ("online", 1, 12)
    # FQF also has the online network propose the fractions of the successor.
    asks_online = double_q or algo == "fqf"
    assert calls == {value, successor, *([selection] if asks_online else [])}


# --- The loss of real networks ---------------------------------------------------------------------------------------


def loss_of(learner: QLearner, batch: Batch, params: Tensor | None = None, target: Tensor | None = None) -> Metrics:
    params = learner._state["params"] if params is None else params
    target = learner._state["target"] if target is None else target
    return learner.recipe.loss(params, target, batch, learner.hparams, learner.apply)


def random_case(algo: str, seed: int, **hparams: Any) -> tuple[QLearner, Batch]:
    """A network with a target unlike itself, and a batch with all that a batch may bring."""
    learner = build(algo, num_actions=NUM_ACTIONS, seed=seed, **hparams)
    generator = torch.Generator().manual_seed(seed)
    learner._state["target"] += 0.1 * torch.randn(learner._state["target"].shape, generator=generator)
    batch = make_batch(seed, num_actions=NUM_ACTIONS)
    mask = torch.rand(8, NUM_ACTIONS, generator=generator) < 0.6
    mask[:, 0] |= ~mask.any(1)
    options = {
        "weights": torch.rand(8, generator=generator),
        "discounts": torch.rand(8, generator=generator),
        "next_action_mask": mask,
    }
    return learner, batch | options | clone(learner._draw(8))


def rows_of(batch: Batch, order: list[int]) -> Batch:
    return {name: tensor if name == "noise" else tensor[order] for name, tensor in batch.items()}


@pytest.mark.parametrize("algo", HEADS)
def test_importance_weights_scale_each_row_of_the_loss_and_nothing_else(algo: str) -> None:
    learner, batch = random_case(algo, seed=1)
    weights = batch.pop("weights")
    plain, weighted = loss_of(learner, batch), loss_of(learner, batch | {"weights": weights})
    alone = [loss_of(learner, rows_of(batch, [k])) for k in range(8)]
    parts = {"quantile_loss", "fraction_loss"} if algo == "fqf" else {"loss"}
    for name in parts:
        losses = torch.stack([metrics[name] for metrics in alone])
        torch.testing.assert_close(plain[name], losses.mean())
        torch.testing.assert_close(weighted[name], (weights * losses).mean())
    for name in plain.keys() - parts - {"loss"}:
        torch.testing.assert_close(weighted[name], plain[name], rtol=0, atol=0)


@settings(max_examples=10)
@given(order=st.permutations(range(8)), double_q=st.booleans())
@pytest.mark.parametrize("algo", HEADS)
def test_permuting_the_batch_leaves_the_loss_unchanged(algo: str, order: list[int], double_q: bool) -> None:
    learner, batch = random_case(algo, seed=2, double_q=double_q)
    plain, permuted = loss_of(learner, batch), loss_of(learner, rows_of(batch, order))
    torch.testing.assert_close(permuted["td_errors"], plain["td_errors"][order], rtol=1e-4, atol=1e-5)
    for name in plain.keys() - {"td_errors"}:
        torch.testing.assert_close(permuted[name], plain[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("algo", HEADS)
def test_no_gradient_reaches_the_target_network_or_flows_through_the_successor(algo: str, double_q: bool) -> None:
    learner, batch = random_case(algo, seed=3, double_q=double_q)
    params, target = (learner._state[name].clone().requires_grad_() for name in ("params", "target"))
    loss = loss_of(learner, batch, params, target)["loss"]
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(loss, (params, target), allow_unused=True)
    gradient, target_gradient = gradients
    assert gradient is not None
    assert target_gradient is None
    # The gradient is that of the states' values alone: with the targets as they are, successors could be anything.
    seen: list[Tensor] = []

    def apply(given: Tensor, obs: Tensor, *more: Any, noise: Tensor | None = None) -> Any:
        seen.append(given)
        return learner.apply(given, obs, *more, noise=noise)

    learner.recipe.loss(params, target, batch, learner.hparams, apply)
    assert sum(given.requires_grad and given is params for given in seen) == 1
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("algo", HEADS)
def test_metrics_are_named_scalars_and_errors_are_per_row_and_not_negative(algo: str) -> None:
    learner, batch = random_case(algo, seed=4)
    result = learner.update({name: batch[name] for name in batch.keys() - learner.recipe.random_inputs.keys()})
    more = {
        "c51_dqn": {"mass_at_v_min", "mass_at_v_max"},
        "fqf": {"quantile_loss", "fraction_loss", "entropy_loss", "fraction_entropy"},
    }
    assert set(result.metrics) == {*SHARED_METRICS, "grad_norm", *more.get(algo, set())}
    assert all(value.shape == () and not value.requires_grad for value in result.metrics.values())
    assert result.td_errors is not None
    assert result.td_errors.shape == (8,)
    assert not result.td_errors.requires_grad
    assert (result.td_errors >= 0).all()
    assert result.metrics["td_error_mean"] == pytest.approx(float(result.td_errors.mean()), rel=1e-5)


def test_the_numbers_of_an_action_are_picked_in_each_row() -> None:
    values = torch.arange(12).view(2, 3, 2)
    assert pick(values, torch.tensor([2, 0])).tolist() == [[4, 5], [6, 7]]
    assert pick(values[..., 0], torch.tensor([1, 2])).tolist() == [2, 10]


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4)])
def test_picking_by_mask_has_the_values_and_gradients_of_picking_by_index(shape: tuple[int, ...]) -> None:
    values, actions = torch.randn(shape, requires_grad=True), torch.tensor([0, 2, 1, 1, 0])
    with torch.no_grad():
        values[0, 1:], values[1, 0] = torch.inf, torch.nan  # of actions that were not taken
    by_index, by_mask = q_losses._pick_by_index(values, actions), q_losses._pick_by_mask(values, actions)
    assert torch.equal(by_index, by_mask)
    weights = torch.randn_like(by_index)
    (expected,) = torch.autograd.grad(by_index, values, weights)
    (found,) = torch.autograd.grad(by_mask, values, weights)
    assert torch.equal(expected, found)


# --- Updates ---------------------------------------------------------------------------------------------------------


def watch_batches(learner: QLearner, monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Note each batch as the loss gets it."""
    batches: list[Batch] = []
    plain = learner.recipe.loss

    def loss(params: Tensor, target_params: Tensor, batch: Batch, hparams: Any, apply: Apply) -> Metrics:
        batches.append(clone(batch))
        return plain(params, target_params, batch, hparams, apply)

    monkeypatch.setattr(learner.recipe, "loss", loss)
    return batches


@pytest.mark.parametrize("algo", HEADS)
def test_every_update_has_fresh_noise_three_times(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = build(algo, noisy=True)
    batches = watch_batches(learner, monkeypatch)
    for seed in range(3):
        learner.update(make_batch(seed))
    size = NoisyLayers(learner.recipe.network).size
    noise = torch.cat([batch["noise"] for batch in batches])
    assert noise.shape == (9, size)
    assert len({tuple(row.tolist()) for row in noise}) == 9
    normal = noise.sign() * noise.square()  # noise is f(e) = sign(e) sqrt(|e|) of standard normal numbers e
    assert float(normal.mean()) == pytest.approx(0.0, abs=4 / math.sqrt(normal.numel()))
    assert float(normal.std()) == pytest.approx(1.0, abs=4 / math.sqrt(2 * normal.numel()))


@pytest.mark.parametrize("algo", HEADS)
def test_without_noisy_layers_an_update_draws_only_what_the_head_asks_for(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = build(algo)
    batches = watch_batches(learner, monkeypatch)
    batch = make_batch()
    learner.update(batch)
    assert batches[0].keys() - batch.keys() == ({"taus", "target_taus"} if algo == "iqn" else set())


@pytest.mark.parametrize("algo", HEADS)
def test_training_changes_the_scale_of_the_noise_of_every_layer(algo: str) -> None:
    learner = build(algo, noisy=True, hidden_sizes=(16, 16), dueling=True)
    before = clone(learner.policy_state_dict())
    for seed in range(3):
        learner.update(make_batch(seed))
    after = learner.policy_state_dict()
    scales = [name for name in before if name.endswith("_sigma")]
    # Value and advantages have two layers each and the shared layer is one more; IQN's and FQF's shared layer is plain.
    assert len(scales) == 2 * (4 if algo in ("iqn", "fqf") else 5)
    assert all(not torch.equal(after[name], before[name]) for name in scales)


@pytest.mark.parametrize("hidden_sizes", [(), (8,), (8, 8, 8)])
@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("algo", HEADS)
def test_any_number_of_hidden_layers_will_do(algo: str, image: bool, hidden_sizes: tuple[int, ...]) -> None:
    space = Box(0, 255, (6, 6, 1), np.uint8) if image else Box(-1.0, 1.0, (3,), np.float32)
    learner = build(algo, observation=space, hidden_sizes=hidden_sizes, dueling=True, noisy=True)
    space.seed(0)
    obs = torch.from_numpy(np.stack([space.sample() for _ in range(8)]))
    before = clone(learner.policy_state_dict())
    result = learner.update(make_batch() | {"obs": obs, "next_obs": obs.flip(0)})
    assert all(torch.isfinite(value) for value in result.metrics.values())
    after = learner.policy_state_dict()
    # The gradient reaches every layer, from the first to the last.
    assert all(not torch.equal(after[name], before[name]) for name in before if name.endswith("weight"))
    assert learner.act(obs.numpy(), explore=True).actions.shape == (8,)


# --- Noise that explores ---------------------------------------------------------------------------------------------

# C51, QR-DQN and DQN act in numpy, IQN and FQF in PyTorch; so do large batches of any.
MANY_ROWS = 5_000


def some_obs(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)


def q_with_noise(learner: QLearner, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The Q-values of one observation, by a network with this noise in all of its layers."""
    buffers = NoisyLayers(learner.recipe.q_values).buffers(torch.from_numpy(noise))
    with torch.no_grad():
        q_values: Tensor = torch.func.functional_call(learner.recipe.q_values, buffers, (torch.from_numpy(obs[None]),))
        return q_values[0].numpy()


def next_numbers(learner: QLearner, name: str = "action") -> np.random.Generator:
    """A generator that will give what the learner's own would give next."""
    generator = np.random.default_rng()
    generator.bit_generator.state = learner._generators[name].bit_generator.state
    return generator


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("algo", HEADS)
def test_each_env_explores_with_noise_of_its_own(algo: str, dueling: bool) -> None:
    learner = build(algo, num_actions=4, noisy=True, dueling=dueling)
    obs = some_obs(20)
    normal = next_numbers(learner).standard_normal((20, NoisyLayers(learner.recipe.network).size), np.float32)
    noise = np.sign(normal) * np.sqrt(np.abs(normal))
    q_values = np.stack([q_with_noise(learner, row, row_noise) for row, row_noise in zip(obs, noise, strict=True)])
    actions = learner.act(obs, step=0, explore=True).actions
    assert actions.tolist() == q_values.argmax(1).tolist()
    np.testing.assert_allclose(learner._q_values(obs), q_values, rtol=1e-4, atol=1e-5)  # the noise stays until the next


@pytest.mark.parametrize("rows", [64, MANY_ROWS])
@pytest.mark.parametrize("algo", ["dqn", "c51_dqn", "iqn"])
def test_exploring_differs_between_envs_and_between_steps_at_fixed_weights(algo: str, rows: int) -> None:
    learner = build(algo, num_actions=4, noisy=True, num_envs=rows)
    same = np.repeat(some_obs(1), rows, axis=0)
    first, again = (learner.act(same, step=0, explore=True).actions for _ in range(2))
    assert len(set(first)) > 1
    assert not np.array_equal(first, again)


@pytest.mark.parametrize("rows", [1, 64, MANY_ROWS])
@pytest.mark.parametrize("algo", ["dqn", "c51_dqn", "fqf"])
def test_evaluation_is_free_of_noise_and_repeats_itself(algo: str, rows: int) -> None:
    learner = build(algo, num_actions=4, noisy=True)
    obs, no_noise = some_obs(rows), np.zeros(NoisyLayers(learner.recipe.network).size, np.float32)
    learner.update(make_batch(num_actions=4))
    before = clone(learner.state_dict())
    first = learner.act(obs).actions
    assert_identical(learner.state_dict(), before)
    learner.act(some_obs(3), step=0, explore=True)  # leaves the noise of three rows behind
    assert np.array_equal(learner.act(obs).actions, first)
    assert first[:64].tolist() == [q_with_noise(learner, row, no_noise).argmax() for row in obs[:64]]


def test_noise_replaces_epsilon_once_learning_has_started() -> None:
    learner = build("noisy_dqn", learning_starts=100, num_actions=4, epsilon_end=0.5)
    assert learner.status(99) == {"epsilon": 1.0}
    assert learner.status(100) == {"epsilon": 0.0}
    assert [epsilon(learner.hparams, step, 1_000) for step in (0, 500, 1_000)] == [0.0, 0.0, 0.0]
    with torch.no_grad():  # a network without noise in it, which prefers action 2
        learner._state["params"].zero_()
        *_, last = (part for part in learner.recipe.network.modules() if isinstance(part, NoisyLinear))
        last.bias[2] = 1.0
    obs = np.zeros((2_000, 3), np.float32)
    warm_up = np.bincount(learner.act(obs, step=99, explore=True).actions, minlength=4) / 2_000
    assert warm_up == pytest.approx([0.25] * 4, abs=5 * math.sqrt(0.25 * 0.75 / 2_000))
    assert set(learner.act(obs, step=100, explore=True).actions) == {2}


# --- Masks in acting -------------------------------------------------------------------------------------------------


class Prefers(nn.Module):
    """Values the actions 0, 1, 2, ... the higher the later, whatever it sees."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.arange(float(count)))

    def forward(self, obs: Tensor) -> Tensor:
        return self.values.expand(len(obs), -1)


MASK = np.array([True, False, True, True, False])


@pytest.mark.parametrize(
    ("epsilon", "expected"),
    [
        (1.0, [1 / 3, 0.0, 1 / 3, 1 / 3, 0.0]),  # all valid actions alike
        (0.3, [0.1, 0.0, 0.1, 0.8, 0.0]),  # the best valid one, 3, takes the other 0.7 as well
        (0.0, [0.0, 0.0, 0.0, 1.0, 0.0]),
    ],
)
@pytest.mark.parametrize("exploring", [True, False])
def test_random_and_greedy_actions_are_valid_ones(epsilon: float, expected: list[float], exploring: bool) -> None:
    rates = dict.fromkeys(("epsilon_start", "epsilon_end", "evaluation_epsilon"), epsilon)
    learner = build("dqn", num_actions=5, network=Prefers(5), **rates)
    rows = 6_000
    masks = np.repeat(MASK[None], rows, axis=0)
    actions = learner.act(np.zeros((rows, 3), np.float32), explore=exploring, action_mask=masks).actions
    shares = np.bincount(actions, minlength=5) / rows
    assert shares == pytest.approx(expected, abs=5 * math.sqrt(0.25 / rows))
    assert shares[~MASK].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("algo", HEADS)
def test_each_row_keeps_to_its_own_mask(algo: str, explore: bool) -> None:
    learner = build(algo, num_actions=6, learning_starts=0, epsilon_start=0.5, epsilon_end=0.5)
    rng = np.random.default_rng(0)
    masks = rng.random((500, 6)) < 0.4
    masks[np.arange(500), rng.integers(6, size=500)] = True
    obs = some_obs(500)
    actions = learner.act(obs, explore=explore, action_mask=masks).actions
    assert masks[np.arange(500), actions].all()
    q_values = learner._q_values(obs)
    greedy = np.where(masks, q_values, -np.inf).argmax(1)
    agree = (actions == greedy).mean()
    assert agree == 1.0 if not explore else 0.5 < agree < 1.0
    assert (greedy != q_values.argmax(1)).any()  # the masks do matter here


# --- Evaluation ------------------------------------------------------------------------------------------------------


def test_evaluations_have_a_share_of_random_actions_of_their_own() -> None:
    rates = {"epsilon_start": 0.0, "epsilon_end": 0.0, "evaluation_epsilon": 0.4}
    learner = build("dqn", num_actions=4, network=Prefers(4), **rates)
    obs = np.zeros((4_000, 3), np.float32)
    shares = np.bincount(learner.act(obs).actions, minlength=4) / 4_000
    assert shares == pytest.approx([0.1, 0.1, 0.1, 0.7], abs=5 * math.sqrt(0.25 / 4_000))
    assert set(learner.act(obs, explore=True).actions) == {3}


def test_evaluation_draws_from_a_stream_of_its_own() -> None:
    learner = build("dqn", evaluation_epsilon=0.5)
    before = clone(learner.state_dict()["generators"])
    learner.act(some_obs(10))
    after = learner.state_dict()["generators"]
    assert after["eval_action"] != before["eval_action"]
    assert {name: after[name] for name in ("action", "noise")} == {name: before[name] for name in ("action", "noise")}


@pytest.mark.learning
@pytest.mark.parametrize(
    ("algo", "hparams"), [("dqn", {"evaluation_epsilon": 0.5}), ("noisy_dqn", {}), ("iqn", {"evaluation_epsilon": 0.5})]
)
def test_evaluating_more_often_does_not_change_training(algo: str, hparams: Any, tmp_path: Path) -> None:
    config = partial(make_config, tmp_path, algo=algo, algo_kwargs=hparams, env_id="rl_training/Identity-v0")
    once, often = (train(config(eval_interval=every), RunOptions(show_progress=False)) for every in (0, 7))
    assert_identical(often.algorithm.policy_state_dict(), once.algorithm.policy_state_dict())
    states = [result.algorithm.state_dict() for result in (often, once)]
    assert states[0]["generators"]["action"] == states[1]["generators"]["action"]
    assert often.metrics == once.metrics
    lines = [len((result.run_dir / "eval.jsonl").read_text().splitlines()) for result in (once, often)]
    assert lines[0] < lines[1]


def test_settings_of_the_family_have_the_papers_values() -> None:
    variants: dict[str, dict[str, Any]] = {
        "double_dqn": {"double_q": True},
        "dueling_dqn": {"double_q": True, "dueling": True},
        "noisy_dqn": {"noisy": True},
        "prioritized_dqn": {"prioritized": True},
        "n_step_dqn": {"n_step": 3},
    }
    plain = DQNHParams().model_dump()
    for algo, changes in variants.items():
        assert registry()[algo].hparams().model_dump() == plain | changes
    rainbow, c51 = (registry()[algo].hparams().model_dump() for algo in ("rainbow_dqn", "c51_dqn"))
    assert rainbow == c51 | {
        "double_q": True,
        "dueling": True,
        "noisy": True,
        "prioritized": True,
        "prioritized_alpha": 0.5,
        "n_step": 3,
    }


def test_a_state_without_random_generators_is_refused() -> None:
    learner = build("dqn")
    state = learner.state_dict()
    state["generator"] = state.pop("generators")["action"]
    with pytest.raises(CheckpointError, match="lacks the states of the random generators: it can be evaluated"):
        learner.load_state_dict(state)
