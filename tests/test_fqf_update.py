"""FQF: fractions from 0 to 1, their gradient against the true 1-Wasserstein distance, and two losses kept apart."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from builders import make_batch, make_setup
from quantile_reference import best_valid_action, quantile_loss, random_quantile_batch, target_quantiles
from rl_training.algorithms.fqf import FQFOptimizer, build_fqf, fqf_loss
from rl_training.core.types import Batch, Metrics
from rl_training.errors import ConfigError
from rl_training.hparams.fqf import FQFHParams
from rl_training.learners.distributional import quantile_huber
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.optim import ClippedAdam, rmsprop
from rl_training.models.layers import HeadStyle
from rl_training.models.mlp_fqf_network import EVEN_SHARE, FQFOutput, MLPFQFNetwork

# --- The network -----------------------------------------------------------------------------------------------------


def make_network(num_quantiles: int = 6, hidden_sizes: tuple[int, ...] = (16,), **settings: Any) -> MLPFQFNetwork:
    torch.manual_seed(0)
    return MLPFQFNetwork(3, 4, hidden_sizes, num_quantiles=num_quantiles, embedding_dim=8, **settings)


def test_fractions_start_nearly_even() -> None:
    output = make_network(32)(torch.randn(20, 3))
    even = torch.linspace(0.0, 1.0, 33).expand(20, -1)
    torch.testing.assert_close(output.taus, even, rtol=0, atol=0.005)
    torch.testing.assert_close(output.entropy, torch.full((20,), math.log(32.0)), rtol=0, atol=0.001)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_fractions_rise_from_exactly_0_to_exactly_1_whatever_is_proposed(scale: float) -> None:
    network = make_network()
    with torch.no_grad():
        network.fraction.weight.normal_(0.0, scale)
    output = network(10 * torch.randn(50, 3))
    assert output.taus.shape == (50, 7)
    assert output.taus[:, 0].unique().tolist() == [0.0]
    assert output.taus[:, -1].unique().tolist() == [1.0]
    # No fraction vanishes: each keeps a share of an even width (up to rounding of the sums).
    assert output.widths.min() > 0.99 * EVEN_SHARE / 6
    torch.testing.assert_close(output.widths.sum(1), torch.ones(50))
    torch.testing.assert_close(output.tau_hats, (output.taus[:, 1:] + output.taus[:, :-1]) / 2, rtol=0, atol=0)


def test_fractions_by_hand() -> None:
    # Proposals of 1/4 and 3/4, of which 98 % count, and 2 % are even: widths 0.255 and 0.745.
    network = make_network(2)
    with torch.no_grad():
        network.fraction.weight.zero_()
        network.fraction.bias.copy_(torch.tensor([0.0, math.log(3.0)]))
    output = network(torch.randn(1, 3))
    assert output.taus[0].tolist() == pytest.approx([0.0, 0.98 * 0.25 + 0.01, 1.0])
    assert output.tau_hats[0].tolist() == pytest.approx([0.1275, 0.6275])
    assert output.entropy.item() == pytest.approx(-0.255 * math.log(0.255) - 0.745 * math.log(0.745))


def test_q_values_are_widths_times_values() -> None:
    # Widths 0.2, 0.3 and 0.5 on values 1, 2, 4 and on 0, 10, 0.
    output = FQFOutput(
        values=torch.tensor([[[1.0, 2.0, 4.0], [0.0, 10.0, 0.0]]]),
        taus=torch.tensor([[0.0, 0.2, 0.5, 1.0]]),
        tau_hats=torch.tensor([[0.1, 0.35, 0.75]]),
        entropy=torch.zeros(1),
        edge_values=None,
    )
    assert output.q_values[0].tolist() == pytest.approx([0.2 * 1 + 0.3 * 2 + 0.5 * 4, 3.0])


def test_values_are_those_of_the_implicit_network_at_the_midpoints_and_edges() -> None:
    network, obs = make_network(style=HeadStyle(dueling=True)), torch.randn(5, 3)
    with torch.no_grad():
        network.fraction.weight.normal_(0.0, 2.0)
        output = network(obs, None, True)
        torch.testing.assert_close(output.values, network.quantile(obs, output.tau_hats)[0])
        torch.testing.assert_close(output.edge_values, network.quantile(obs, output.taus[:, 1:-1])[0])
        assert network(obs).edge_values is None
        given = torch.linspace(0.0, 1.0, 4).square().expand(5, -1)  # 0, 1/9, 4/9, 1: another number of fractions
        of_given = network(obs, given)
    torch.testing.assert_close(of_given.taus, given)
    torch.testing.assert_close(of_given.values, network.quantile(obs, (given[:, 1:] + given[:, :-1]) / 2)[0])
    assert (output.widths.std(1) > 0.01).all()  # uneven, else much of this would be hidden


# --- Two losses in one sum -------------------------------------------------------------------------------------------


def flat_case(**hparams: Any) -> tuple[FlatModule, int, Batch, FQFHParams]:
    """A network whose fractions are uneven; the number of its fraction parameters; a batch."""
    # Two layers: the second belongs to the streams, the first makes the features, which both parts look at.
    network = make_network(hidden_sizes=(16, 8), style=HeadStyle(layer_norm=True, dueling=True))
    with torch.no_grad():
        network.fraction.weight.normal_(0.0, 1.0)
    flat = FlatModule(network)
    assert any(name.startswith("quantile.trunk.") for name in flat.names)
    count = 6 * network.quantile.features + 6
    return flat, count, make_batch(num_actions=4, size=16), FQFHParams(num_quantiles=6, **hparams)


def gradient_of(value: Tensor, params: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(value, params, allow_unused=True, retain_graph=True)
    return torch.zeros_like(params) if gradient is None else gradient


def test_the_outputs_depend_on_the_parameters_they_may_depend_on() -> None:
    flat, count, batch, _ = flat_case()
    params = flat.params.clone().requires_grad_()
    output = flat.apply(params, batch["obs"], None, True)
    weights = torch.randn(16, 7, generator=torch.Generator().manual_seed(0))
    for fractions in ((output.taus * weights).sum(), output.entropy.sum()):
        gradient = gradient_of(fractions, params)
        assert gradient[:-count].abs().sum() == 0.0
        assert gradient[-count:].abs().sum() > 0.0
    values = gradient_of(output.values.square().sum(), params)
    assert values[-count:].abs().sum() == 0.0
    assert values[:-count].abs().sum() > 0.0
    assert not output.edge_values.requires_grad
    assert not output.widths.requires_grad


@pytest.mark.parametrize("entropy_coef", [0.0, 0.5])
def test_no_gradient_of_one_loss_reaches_the_parameters_of_the_other(entropy_coef: float) -> None:
    flat, count, batch, hparams = flat_case(entropy_coef=entropy_coef, kappa=0.5)
    params = flat.params.clone().requires_grad_()
    target = flat.params + 0.1
    total = gradient_of(fqf_loss(params, target, batch, hparams, flat.apply)["loss"], params)

    # The quantile regression loss alone, at midpoints that are plain numbers.
    rows = torch.arange(16)
    output = flat.apply(params, batch["obs"], None, True)
    proposal = flat.apply(flat.params, batch["next_obs"])
    successor = flat.apply(target, batch["next_obs"], proposal.taus)
    best = (successor.widths[:, None] * successor.values).sum(2).argmax(1)
    targets = batch["rewards"][:, None] + 0.99 * (~batch["terminated"])[:, None] * successor.values[rows, best]
    values = output.values[rows, batch["actions"]]
    quantile_part = gradient_of(
        quantile_huber(values, targets, output.tau_hats.detach(), 0.5, proposal.widths).mean(), params
    )
    torch.testing.assert_close(total[:-count], quantile_part[:-count], rtol=1e-4, atol=1e-6)

    # The fractions: slopes that are plain numbers, times d tau / d parameters, and the entropy.
    edges = output.edge_values[rows, batch["actions"]]
    known = values.detach()
    slopes = (edges - known[:, :-1]).abs() - (edges - known[:, 1:]).abs()
    widths = output.taus[:, 1:] - output.taus[:, :-1]
    entropy = -(widths * widths.log()).sum(1)
    fractions = (slopes * output.taus[:, 1:-1]).sum(1).mean() - entropy_coef * entropy.mean()
    torch.testing.assert_close(total[-count:], gradient_of(fractions, params)[-count:], rtol=1e-3, atol=1e-6)
    assert total[-count:].abs().sum() > 0.0


def test_the_target_network_values_the_online_networks_fractions() -> None:
    flat, _, batch, hparams = flat_case()
    target = flat.params + 0.5 * torch.randn(flat.params.shape, generator=torch.Generator().manual_seed(0))
    asked: list[tuple[Tensor, Tensor]] = []

    def noted(params: Tensor, obs: Tensor, taus: Tensor | None = None, edges: bool = False) -> Any:
        if params is target:
            assert taus is not None
            asked.append((obs, taus))
        return flat.apply(params, obs, taus, edges)

    fqf_loss(flat.params, target, batch, hparams, noted)
    ((obs, taus),) = asked
    assert torch.equal(obs, batch["next_obs"])
    torch.testing.assert_close(taus, flat.apply(flat.params, batch["next_obs"]).taus, rtol=0, atol=0)
    assert not torch.allclose(taus, flat.apply(target, batch["next_obs"]).taus, atol=0.01)


# --- The fractions' gradient -----------------------------------------------------------------------------------------

NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(20)


def wasserstein(function: Callable[[Any], Any], taus: np.ndarray) -> float:
    """The 1-Wasserstein distance of a quantile function and its steps at the midpoints, by Gauss-Legendre quadrature.

    On each half of a step the difference keeps its sign, as the function is monotone: there it is smooth.
    """
    total = 0.0
    for left, right in itertools.pairwise(taus):
        middle = (left + right) / 2
        for low, high in ((left, middle), (middle, right)):
            places = (low + high) / 2 + (high - low) / 2 * NODES
            total += (high - low) / 2 * (NODE_WEIGHTS * np.abs(function(places) - function(middle))).sum()
    return total


QUANTILE_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "convex": lambda tau: (2.5 * tau).exp() if isinstance(tau, Tensor) else np.exp(2.5 * tau),
    "concave": lambda tau: (tau + 0.05) ** 0.5,
    "s-shaped": lambda tau: 8 * (tau - 0.4) ** 3 + tau,
    "falling": lambda tau: 3 - 2 * tau**2,  # not what quantiles do, but a network may
}


def taus_of(logits: np.ndarray) -> np.ndarray:
    widths = np.exp(logits) / np.exp(logits).sum()
    return np.concatenate([[0.0], np.cumsum(widths[:-1]), [1.0]])


def fraction_gradient(function: Callable[[Any], Any], logits: np.ndarray) -> np.ndarray:
    """What `fqf_loss` sends to the proposals of one state, where all else is known."""

    def apply(params: Tensor, obs: Tensor, taus: Tensor | None = None, edges: bool = False) -> FQFOutput:
        widths = params.softmax(0)
        zero = torch.zeros_like(widths[:1])
        inner = widths[:-1].cumsum(0)
        given = torch.cat((zero, inner, zero + 1.0))[None] if taus is None else taus
        tau_hats = (given[:, 1:] + given[:, :-1]) / 2
        edge_values = function(given[:, 1:-1].detach())[:, None] if edges else None
        return FQFOutput(function(tau_hats.detach())[:, None], given, tau_hats, torch.zeros(1), edge_values)

    params = torch.from_numpy(logits).requires_grad_()
    batch = {
        "obs": torch.tensor([0]),
        "next_obs": torch.tensor([0]),
        "actions": torch.tensor([0]),
        "rewards": torch.tensor([0.0]),
        "terminated": torch.tensor([True]),
    }
    fqf_loss(params, params.detach(), batch, FQFHParams(entropy_coef=0.0), apply)["loss"].backward()
    assert params.grad is not None
    return params.grad.numpy()


@pytest.mark.parametrize("name", QUANTILE_FUNCTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_the_fraction_gradient_is_that_of_the_true_wasserstein_distance(name: str, seed: int) -> None:
    function = QUANTILE_FUNCTIONS[name]
    logits = np.random.default_rng(seed).normal(size=5)
    step = 1e-5
    differences = [
        (wasserstein(function, taus_of(logits + shift)) - wasserstein(function, taus_of(logits - shift))) / (2 * step)
        for shift in step * np.eye(5)
    ]
    np.testing.assert_allclose(fraction_gradient(function, logits), differences, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", QUANTILE_FUNCTIONS)
def test_the_fraction_gradient_equals_autograd_of_the_true_distance(name: str) -> None:
    # The same distance on a fine grid, differentiated by autograd with the midpoints' values moving along.
    function = QUANTILE_FUNCTIONS[name]
    taus = torch.tensor([0.0, 0.17, 0.45, 0.8, 1.0], dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    shares = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    for i in range(4):
        places = taus[i] + (taus[i + 1] - taus[i]) * shares
        middle = function((taus[i] + taus[i + 1]) / 2)
        total = total + (function(places) - middle).abs().mean() * (taus[i + 1] - taus[i])
    (expected,) = torch.autograd.grad(total, taus)
    edges = function(taus.detach()[1:-1])
    hats = function((taus.detach()[1:] + taus.detach()[:-1]) / 2)
    slopes = (edges - hats[:-1]).abs() - (edges - hats[1:]).abs()
    torch.testing.assert_close(slopes, expected[1:-1], rtol=1e-3, atol=1e-6)
    if name != "falling":  # the paper's form of it, equation 5
        torch.testing.assert_close(slopes, 2 * edges - hats[1:] - hats[:-1])


def test_following_the_gradient_finds_the_best_fractions() -> None:
    # Two fractions of exp(2.5 tau): one edge, whose best place a search over all places finds.
    function = QUANTILE_FUNCTIONS["convex"]
    places = np.linspace(0.01, 0.99, 981)
    best = places[np.argmin([wasserstein(function, np.array([0.0, place, 1.0])) for place in places])]
    logits = np.zeros(2)
    for _ in range(400):
        logits -= 0.1 * fraction_gradient(function, logits)
    assert taus_of(logits)[1] == pytest.approx(best, abs=0.002)
    assert best > 0.6  # far from the even 1/2


# --- The loss against plain loops ------------------------------------------------------------------------------------
# Parameters: coefficients (states, actions, 2) of Z(tau) = c0 + c1 tau^2, then logits (states, 3) of the widths.


def table_output(params: Tensor, obs: Tensor, taus: Tensor | None = None, edges: bool = False) -> FQFOutput:
    c0, c1 = params[:24].view(4, 3, 2)[obs].unsqueeze(-1).unbind(2)
    widths = params[24:].view(4, 3)[obs].softmax(1)
    zero = torch.zeros_like(widths[:, :1])
    given = torch.cat((zero, widths[:, :-1].cumsum(1), zero + 1.0), 1) if taus is None else taus
    tau_hats = (given[:, 1:] + given[:, :-1]) / 2
    edge_values = (c0 + c1 * given[:, None, 1:-1].square()).detach() if edges else None
    entropy = -(widths * widths.log()).sum(1)
    return FQFOutput(c0 + c1 * tau_hats[:, None].detach().square(), given, tau_hats, entropy, edge_values)


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_the_losses_equal_plain_loops_in_float64(kappa: float, double_q: bool) -> None:
    rng = np.random.default_rng(2)
    online, target = (rng.normal(size=36) for _ in range(2))
    batch = random_quantile_batch(rng)

    def value(table: np.ndarray, state: int, action: int, tau: float) -> float:
        c0, c1 = table[:24].reshape(4, 3, 2)[state, action]
        return float(c0 + c1 * tau**2)

    quantile_losses, fraction_losses, entropies, errors = [], [], [], []
    for row in range(len(batch["rewards"])):
        obs, next_obs, action = (int(batch[name][row]) for name in ("obs", "next_obs", "actions"))
        taus, next_taus = (taus_of(online[24:].reshape(4, 3)[state]) for state in (obs, next_obs))
        hats, next_hats = ((edges[1:] + edges[:-1]) / 2 for edges in (taus, next_taus))
        widths, next_widths = np.diff(taus), np.diff(next_taus)
        selecting = online if double_q else target
        q_values = [
            sum(width * value(selecting, next_obs, a, hat) for width, hat in zip(next_widths, next_hats, strict=True))
            for a in range(3)
        ]
        best = best_valid_action(q_values, batch["next_action_mask"][row].numpy())
        targets = target_quantiles(batch, row, np.array([value(target, next_obs, best, hat) for hat in next_hats]))
        values = [value(online, obs, action, hat) for hat in hats]
        quantile_losses.append(quantile_loss(values, targets, hats.tolist(), kappa, next_widths.tolist()))
        fraction_loss = 0.0
        for i in (1, 2):
            edge = value(online, obs, action, taus[i])
            fraction_loss += (abs(edge - values[i - 1]) - abs(edge - values[i])) * taus[i]
        fraction_losses.append(fraction_loss)
        entropies.append(-sum(width * math.log(width) for width in widths))
        errors.append(abs(np.dot(next_widths, targets) - np.dot(widths, values)))
    metrics = fqf_loss(
        torch.from_numpy(online),
        torch.from_numpy(target),
        batch,
        FQFHParams(kappa=kappa, double_q=double_q, entropy_coef=0.25),
        table_output,
    )
    weights = batch["weights"].numpy()
    expected = {
        "quantile_loss": (weights * quantile_losses).mean(),
        "fraction_loss": (weights * fraction_losses).mean(),
        "entropy_loss": -0.25 * np.mean(entropies),
    }
    for name, value_of in expected.items():
        assert metrics[name] == pytest.approx(value_of, rel=1e-6)
    assert metrics["loss"] == pytest.approx(sum(expected.values()), rel=1e-6)
    assert metrics["td_errors"].tolist() == pytest.approx(errors, rel=1e-6)


# --- The optimizer ---------------------------------------------------------------------------------------------------


def test_rmsprop_equals_torchs_over_fifty_steps() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(20, generator=generator).requires_grad_()
    optimizer = torch.optim.RMSprop([reference], lr=0.01, alpha=0.95, eps=1e-5)
    params, square = reference.detach().clone(), torch.zeros(20)
    for _ in range(50):
        gradient = torch.randn(20, generator=generator)
        reference.grad = gradient.clone()
        optimizer.step()
        params, square = rmsprop(params, gradient, square, learning_rate=0.01, alpha=0.95, eps=1e-5)
        torch.testing.assert_close(params, reference.detach(), rtol=1e-6, atol=1e-6)


def test_each_part_has_its_own_optimizer_and_only_the_quantile_part_is_clipped() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(30, generator=generator)
    optimizer = FQFOptimizer(ClippedAdam(learning_rate=0.01, eps=1e-4, max_grad_norm=0.5), 10, 0.003)
    state = optimizer.state(start.clone())
    quantile, fraction = (nn.Parameter(part.clone()) for part in (start[:20], start[20:]))
    adam = torch.optim.Adam([quantile], lr=0.01, eps=1e-4)
    rms = torch.optim.RMSprop([fraction], lr=0.003, alpha=0.95, eps=1e-5)
    for _ in range(20):
        gradient = torch.randn(30, generator=generator)
        quantile.grad, fraction.grad = gradient[:20].clone(), gradient[20:].clone()
        norm = nn.utils.clip_grad_norm_([quantile], 0.5)
        adam.step()
        rms.step()
        new, metrics = optimizer.step(gradient, state)
        state = {**state, **new}
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
        torch.testing.assert_close(state["params"], torch.cat((quantile, fraction)).detach(), rtol=1e-5, atol=1e-6)
    assert state.keys() == {"params", "adam_mean", "adam_square", "adam_count", "learning_rate", "fraction_square"}


# --- The learner -----------------------------------------------------------------------------------------------------


def test_ten_updates_equal_torchs_optimizers_on_the_two_losses() -> None:
    settings: dict[str, Any] = {
        "learning_rate": 0.01,
        "learning_rate_schedule": "constant",
        "fraction_learning_rate": 1e-3,
    }
    setup = make_setup(algo="fqf", num_actions=4, target_update_interval=100, max_grad_norm=0.5, **settings)
    learner, network = build_fqf(setup), build_fqf(setup).recipe.network
    assert isinstance(network, MLPFQFNetwork)
    parameters = dict(network.requires_grad_().named_parameters())
    of_fractions = [p for name, p in parameters.items() if name.startswith("fraction.")]
    of_quantiles = [p for name, p in parameters.items() if not name.startswith("fraction.")]
    target = {name: p.detach().clone() for name, p in parameters.items()}
    adam = torch.optim.Adam(of_quantiles, lr=0.01)
    rms = torch.optim.RMSprop(of_fractions, lr=1e-3, alpha=0.95, eps=1e-5)

    def apply(named: dict[str, Tensor], *inputs: Any) -> Any:
        return torch.func.functional_call(network, named, inputs)

    class Named(dict[str, Tensor]):
        """Parameters by name, with what the loss asks of a vector."""

        def detach(self) -> "Named":
            return Named({name: p.detach() for name, p in self.items()})

    for count in range(10):
        batch = make_batch(count, num_actions=4)
        metrics: Metrics = fqf_loss(Named(parameters), target, batch, setup.hparams, apply)  # type: ignore[arg-type]
        adam.zero_grad()
        rms.zero_grad()
        metrics["loss"].backward()
        nn.utils.clip_grad_norm_(of_quantiles, 0.5)
        adam.step()
        rms.step()
        ours = learner.update(batch).metrics
        torch.testing.assert_close(ours["loss"], metrics["loss"].detach(), rtol=1e-4, atol=1e-5)
    for name, found in learner.policy_state_dict().items():
        torch.testing.assert_close(found, parameters[name].detach(), rtol=1e-3, atol=1e-4)


def test_the_learning_rate_schedule_reaches_the_fractions() -> None:
    # RMSprop moves a parameter by its step size times a number of order 1, whatever the size of the gradient.
    learner = build_fqf(make_setup(algo="fqf", total_timesteps=100, fraction_learning_rate=1e-3))

    def next_move() -> float:
        before = learner.policy_state_dict()["fraction.bias"].clone()
        learner.update(make_batch(learner.num_updates))
        return float((learner.policy_state_dict()["fraction.bias"] - before).abs().mean())

    moves = [next_move() for _ in range(100)]
    assert np.mean(moves[45:55]) == pytest.approx(0.5 * np.mean(moves[5:15]), rel=0.5)
    assert np.mean(moves[-5:]) < 0.1 * np.mean(moves[5:15])
    assert next_move() == 0.0  # after the run's last update


def test_the_fractions_of_the_default_settings_move_over_a_run_and_do_not_collapse() -> None:
    # RMSprop moves by its step size, whatever the gradient: 200 updates of 250 times its size reach as far as 50,000.
    rate = 250 * FQFHParams().fraction_learning_rate
    learner = build_fqf(make_setup(algo="fqf", learning_rate_schedule="constant", fraction_learning_rate=rate))
    entropies = [float(learner.update(make_batch(count)).metrics["fraction_entropy"]) for count in range(200)]
    assert entropies[0] == pytest.approx(math.log(6), rel=1e-4)
    assert 1e-4 < 1.0 - entropies[-1] / entropies[0] < 0.1  # the paper's step size: 1e-7


def test_acting_looks_at_the_values_weighted_by_the_widths() -> None:
    learner = build_fqf(make_setup(algo="fqf", num_actions=4))
    assert isinstance(learner.recipe.network, MLPFQFNetwork)
    with torch.no_grad():
        learner.recipe.network.fraction.bias.copy_(torch.tensor([4.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    obs = make_batch(size=200)["obs"]
    output = learner.recipe.network(obs)
    weighted = ((output.taus[:, 1:] - output.taus[:, :-1])[:, None] * output.values).sum(2)
    assert learner.act(obs.numpy()).actions.tolist() == weighted.argmax(1).tolist()
    assert (weighted.argmax(1) != output.values.mean(2).argmax(1)).any()


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)


def test_a_network_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        build_fqf(make_setup(algo="fqf", network=Plain()))
    assert str(caught.value) == "fqf trains an MLPFQFNetwork or a subclass, got Plain"


class Extended(MLPFQFNetwork):
    """A user's own, with a layer that comes after that of the fractions."""

    def __init__(self) -> None:
        super().__init__(3, 2, (16,))
        self.more = nn.Linear(3, 3)


def test_a_network_whose_fractions_are_not_its_last_parameters_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        build_fqf(make_setup(algo="fqf", network=Extended()))
    assert str(caught.value) == (
        "fqf needs the layer `fraction` to be the network's last, but more.bias comes after it; "
        "put your own layers into the encoder"
    )


def test_a_network_of_ones_own_is_trained_part_by_part() -> None:
    network = MLPFQFNetwork(8, 2, (16,), nn.Linear(3, 8), num_quantiles=6)
    learner = build_fqf(make_setup(algo="fqf", network=network, fraction_learning_rate=1e-12, learning_rate=0.01))
    before = {name: value.clone() for name, value in learner.policy_state_dict().items()}
    learner.update(make_batch())
    moved = {name for name, value in learner.policy_state_dict().items() if (value - before[name]).abs().max() > 1e-4}
    assert moved == {name for name in before if not name.startswith("fraction.")}
