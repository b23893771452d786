"""DQN: the loss worked out by hand, one update, the target's copies, exploration, and the fast paths."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn

from builders import make_batch, make_setup
from rl_training.acceleration.acting import act_function
from rl_training.algorithms.dqn import build_dqn, dqn_loss
from rl_training.core.types import Batch
from rl_training.hparams.dqn import DQNHParams
from rl_training.hparams.schedules import epsilon
from rl_training.learners.q_learning import QLearner
from rl_training.learners.targets import td_loss, td_target
from rl_training.models.mlp_q_network import MLPQNetwork

# In the tests of the loss, the parameters are a table: a row per state, a column per action. Every row of a batch
# goes from state 0 to state 1.


def table_q(params: Tensor, obs: Tensor) -> Tensor:
    return params.view(-1, 2)[obs]


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
    }


ZERO = torch.zeros(4)
HALF = DQNHParams(gamma=0.5)


# --- The loss --------------------------------------------------------------------------------------------------------


def test_bootstraps_through_truncation_but_not_termination() -> None:
    # Q_target(s') = [1, 3] for both rows, gamma = 0.5: 2 + 0.5 * 3 = 3.5 if alive or at a time limit, 2 if terminated.
    metrics = dqn_loss(ZERO, table([9.0, 9.0], [1.0, 3.0]), step_0_to_1([2.0, 2.0], [False, True]), HALF, table_q)
    assert metrics["td_errors"].tolist() == [3.5, 2.0]
    assert metrics["target_mean"] == pytest.approx((3.5 + 2.0) / 2)
    assert metrics["td_error_mean"] == pytest.approx((3.5 + 2.0) / 2)
    assert metrics["loss"] == pytest.approx(((3.5 - 0.5) + (2.0 - 0.5)) / 2)  # Huber beyond 1: |error| - 1/2


def test_the_value_of_the_action_taken_is_compared() -> None:
    # Q(s) = [1, 5]; all targets are 2: |2 - 1| = 1 for action 0 and |2 - 5| = 3 for action 1.
    batch = step_0_to_1([2.0, 2.0], [True, True], actions=[0, 1])
    metrics = dqn_loss(table([1.0, 5.0], [0.0, 0.0]), ZERO, batch, HALF, table_q)
    assert metrics["td_errors"].tolist() == [1.0, 3.0]
    assert metrics["q_value_mean"] == pytest.approx(3.0)
    assert metrics["td_error_mean"] == pytest.approx(2.0)


def test_double_q_is_chosen_by_the_online_and_valued_by_the_target_network() -> None:
    # Online Q(s') = [5, 1] picks action 0; the target network values it at 1, its own best is 3.
    online, target = table([0.0, 0.0], [5.0, 1.0]), table([0.0, 0.0], [1.0, 3.0])
    batch = step_0_to_1([0.0], [False])
    plain = dqn_loss(online, target, batch, DQNHParams(gamma=0.5, double_q=False), table_q)
    double = dqn_loss(online, target, batch, DQNHParams(gamma=0.5, double_q=True), table_q)
    assert plain["target_mean"] == pytest.approx(0.5 * 3.0)
    assert double["target_mean"] == pytest.approx(0.5 * 1.0)


def test_importance_weights_scale_each_row_of_the_loss_and_nothing_else() -> None:
    # Huber losses 3 and 1.5 as in the first test, weights 0.5 and 3: (1.5 + 4.5) / 2.
    batch = step_0_to_1([2.0, 2.0], [False, True])
    target = table([0.0, 0.0], [1.0, 3.0])
    plain = dqn_loss(ZERO, target, batch, HALF, table_q)
    weighted = dqn_loss(ZERO, target, batch | {"weights": torch.tensor([0.5, 3.0])}, HALF, table_q)
    assert weighted["loss"] == pytest.approx(3.0)
    assert torch.equal(weighted["td_errors"], plain["td_errors"])
    assert weighted["td_error_mean"] == plain["td_error_mean"]


@pytest.mark.parametrize(
    ("kind", "error", "expected"),
    [
        ("huber", 0.5, 0.125),  # 0.5 ** 2 / 2
        ("huber", -1.0, 0.5),  # where both branches meet
        ("huber", 3.0, 2.5),  # 3 - 1/2
        ("huber", -3.0, 2.5),
        ("mse", 0.5, 0.25),
        ("mse", -3.0, 9.0),
    ],
)
def test_the_error_function_inside_and_outside_of_delta(kind: str, error: float, expected: float) -> None:
    assert td_loss(torch.tensor([1.0]), torch.tensor([1.0 + error]), kind).tolist() == pytest.approx([expected])
    metrics = dqn_loss(ZERO, ZERO, step_0_to_1([error], [True]), DQNHParams(loss=kind), table_q)
    assert metrics["loss"] == pytest.approx(expected)


def test_the_td_target_by_hand() -> None:
    targets = td_target(torch.tensor([1.0, 1.0]), torch.tensor([False, True]), torch.tensor([10.0, 10.0]), 0.9)
    assert targets.tolist() == pytest.approx([1.0 + 0.9 * 10.0, 1.0])


@pytest.mark.parametrize("double_q", [False, True])
def test_the_gradient_reaches_the_values_of_the_actions_taken_alone(double_q: bool) -> None:
    # Errors 3.5 (clipped to 1 by Huber) and 0.25: the loss moves Q(s, 0) by -1 / 2 and Q(s, 1) by -0.25 / 2.
    params = table([0.0, 1.75], [0.0, 1.0]).requires_grad_()
    target = table([0.0, 0.0], [1.0, 3.0]).requires_grad_()
    batch = step_0_to_1([2.0, 2.0], [False, True], actions=[0, 1])
    loss = dqn_loss(params, target, batch, DQNHParams(gamma=0.5, double_q=double_q), table_q)["loss"]
    gradient, target_gradient = torch.autograd.grad(loss, (params, target), allow_unused=True)
    assert gradient.tolist() == pytest.approx([-0.5, -0.125, 0.0, 0.0])
    assert target_gradient is None


rows = st.tuples(st.floats(-5, 5, width=32), st.booleans(), st.integers(0, 1), st.floats(0, 2, width=32))


@given(data=st.data(), batch_rows=st.lists(rows, min_size=1, max_size=8), double_q=st.booleans())
def test_permuting_the_batch_leaves_the_loss_unchanged(data: st.DataObject, batch_rows: Any, double_q: bool) -> None:
    def metrics_of(rows: Any) -> Mapping[str, Tensor]:
        rewards, terminated, actions, weights = (list(column) for column in zip(*rows, strict=True))
        batch = step_0_to_1(rewards, terminated, actions) | {"weights": torch.tensor(weights)}
        online, target = table([0.5, -1.0], [2.0, 1.0]), table([0.0, 0.0], [1.0, 3.0])
        return dqn_loss(online, target, batch, DQNHParams(double_q=double_q), table_q)

    order = data.draw(st.permutations(range(len(batch_rows))))
    plain, permuted = metrics_of(batch_rows), metrics_of([batch_rows[k] for k in order])
    assert torch.equal(permuted["td_errors"], plain["td_errors"][list(order)])
    for name in ("loss", "q_value_mean", "target_mean", "td_error_mean"):
        torch.testing.assert_close(permuted[name], plain[name], rtol=1e-5, atol=1e-6)


# --- The update ------------------------------------------------------------------------------------------------------


def params_of(algorithm: QLearner) -> Tensor:
    return torch.cat([value.reshape(-1) for value in algorithm.policy_state_dict().values()])


def test_an_update_gives_named_scalars_and_the_error_of_each_row() -> None:
    result = build_dqn(make_setup()).update(make_batch())
    assert set(result.metrics) == {"loss", "q_value_mean", "target_mean", "td_error_mean", "grad_norm"}
    assert all(value.shape == () and not value.requires_grad for value in result.metrics.values())
    assert result.num_gradient_steps == 1
    assert result.td_errors is not None
    assert result.td_errors.shape == (8,)
    assert not result.td_errors.requires_grad


@pytest.mark.parametrize(
    ("loss", "double_q", "max_grad_norm"), [("huber", False, 10.0), ("mse", True, 0.5), ("mse", False, None)]
)
def test_twenty_updates_equal_a_plain_pytorch_dqn(loss: str, double_q: bool, max_grad_norm: float | None) -> None:
    def new_network() -> nn.Module:
        torch.manual_seed(1)
        return MLPQNetwork(3, 2, (16,))

    setup = make_setup(
        network=new_network(),
        loss=loss,
        double_q=double_q,
        max_grad_norm=max_grad_norm,
        gamma=0.9,
        learning_rate=0.01,
        learning_rate_schedule="constant",
        adam_eps=1e-5,
        target_update_interval=7,
    )
    algorithm = build_dqn(setup)
    online, target = new_network(), new_network()
    optimizer = torch.optim.Adam(online.parameters(), lr=0.01, eps=1e-5)
    for count in range(1, 21):
        batch = make_batch(count)
        with torch.no_grad():
            best = (online if double_q else target)(batch["next_obs"]).argmax(1, keepdim=True)
            next_values = target(batch["next_obs"]).gather(1, best)[:, 0]
            targets = batch["rewards"] + 0.9 * next_values * (1.0 - batch["terminated"].float())
        values = online(batch["obs"]).gather(1, batch["actions"][:, None])[:, 0]
        expected = F.smooth_l1_loss(values, targets) if loss == "huber" else F.mse_loss(values, targets)
        optimizer.zero_grad()
        expected.backward()
        norm = nn.utils.clip_grad_norm_(online.parameters(), max_grad_norm or math.inf)
        optimizer.step()
        if count % 7 == 0:
            target.load_state_dict(online.state_dict())
        metrics = algorithm.update(batch).metrics
        torch.testing.assert_close(metrics["loss"], expected.detach(), rtol=1e-4, atol=1e-6)
        if max_grad_norm is not None:  # else the update does not compute it
            torch.testing.assert_close(metrics["grad_norm"], norm, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(algorithm.policy_state_dict(), dict(online.state_dict()), rtol=1e-4, atol=1e-5)


def test_the_target_is_copied_every_interval_of_gradient_steps_exactly() -> None:
    algorithm = build_dqn(make_setup(target_update_interval=3))
    expected_target = params_of(algorithm).clone()
    for count in range(1, 9):
        before = params_of(algorithm).clone()
        algorithm.update(make_batch(count))
        assert not torch.equal(params_of(algorithm), before)
        if count in (3, 6):
            expected_target = params_of(algorithm).clone()
        assert torch.equal(algorithm.state_dict()["target"], expected_target)
        assert algorithm.num_updates == count


def test_a_soft_target_moves_its_share_of_the_way_at_every_gradient_step() -> None:
    algorithm = build_dqn(make_setup(target_update_interval=1, tau=0.25))
    expected = params_of(algorithm).clone()
    for count in range(1, 6):
        algorithm.update(make_batch(count))
        expected = expected + 0.25 * (params_of(algorithm) - expected)
        torch.testing.assert_close(algorithm.state_dict()["target"], expected)
    assert not torch.equal(expected, params_of(algorithm))


def test_a_soft_target_with_an_interval_is_refused() -> None:
    message = (
        "tau 0.005 moves the target network at every gradient step, but target_update_interval is 50; "
        "set target_update_interval: 1 for soft updates, or tau: 1 for copies"
    )
    with pytest.raises(ValidationError, match=message):
        DQNHParams(tau=0.005)
    with pytest.raises(ValidationError, match="greater than 0"):
        DQNHParams(tau=0.0, target_update_interval=1)
    assert DQNHParams(tau=1.0, target_update_interval=50).tau == DQNHParams().tau


def test_a_linear_schedule_falls_from_the_learning_rate_to_zero_over_the_updates_of_the_run() -> None:
    # Ten steps make four updates (at 4, 6, 8 and 10), so the rates are 1, 3/4, 2/4 and 1/4 of the first, then none.
    setup = make_setup(
        total_timesteps=10,
        learning_starts=2,
        train_frequency=2,
        gradient_steps=1,
        learning_rate=0.01,
        learning_rate_schedule="linear",
    )
    algorithm = build_dqn(setup)
    rates = []
    for count in range(4):
        algorithm.update(make_batch(count))
        rates.append(float(algorithm.state_dict()["learning_rate"]))
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    before = params_of(algorithm).clone()
    algorithm.update(make_batch(4))
    assert torch.equal(params_of(algorithm), before)


def test_a_linear_schedule_of_a_run_without_updates_of_its_own_can_still_be_stepped() -> None:
    # Three envs may step past the end of a run in which, at its end, no update was due yet.
    algorithm = build_dqn(make_setup(total_timesteps=10, learning_starts=10, learning_rate_schedule="linear"))
    algorithm.update(make_batch())
    assert algorithm.num_updates == 1


def test_networks_of_one_seed_are_equal_and_building_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build_dqn(make_setup(seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(params_of(first), params_of(again))
    assert not torch.equal(params_of(first), params_of(other))
    assert torch.equal(first.state_dict()["target"], params_of(first))


# --- Acting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 1.0), (25, 0.55), (49, 0.118), (50, 0.1), (51, 0.1), (100, 0.1), (10_000, 0.1)]
)
def test_epsilon_falls_linearly_over_the_first_part_of_the_run(step: int, expected: float) -> None:
    # From 1 to 0.1 over half of 100 steps: 1 - 0.9 * step / 50.
    hparams = DQNHParams(epsilon_start=1.0, epsilon_end=0.1, exploration_fraction=0.5)
    assert epsilon(hparams, step, 100) == pytest.approx(expected)


def test_without_decay_epsilon_is_at_its_end_from_the_first_step() -> None:
    assert epsilon(DQNHParams(epsilon_end=0.2, exploration_fraction=0.0), 0, 100) == pytest.approx(0.2)


def test_the_status_shows_the_epsilon_that_acting_uses() -> None:
    setup = make_setup(
        learning_starts=10, epsilon_start=0.6, epsilon_end=0.1, exploration_fraction=0.5, total_timesteps=100
    )
    algorithm = build_dqn(setup)
    assert algorithm.status(9) == {"epsilon": 1.0}  # warm-up
    assert algorithm.status(10)["epsilon"] == pytest.approx(0.6 - 0.5 * 10 / 50)
    assert algorithm.status(50)["epsilon"] == pytest.approx(0.1)


class PrefersLast(nn.Module):
    """Values the last of four actions highest, whatever it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.arange(4.0))

    def forward(self, obs: Tensor) -> Tensor:
        return self.values.expand(len(obs), 4)


def explore(algorithm: QLearner, step: int, rows: int = 4_000) -> np.ndarray:
    actions = algorithm.act(np.zeros((rows, 3), np.float32), step=step, explore=True).actions
    assert actions.shape == (rows,)
    assert actions.dtype == np.int64
    return np.bincount(actions, minlength=4) / rows


def test_warm_up_is_all_random_and_afterwards_each_env_draws_for_itself() -> None:
    setup = make_setup(
        num_actions=4,
        network=PrefersLast(),
        learning_starts=100,
        epsilon_start=0.4,
        epsilon_end=0.4,
        total_timesteps=1_000,
    )
    algorithm = build_dqn(setup)
    deviation = 5 * math.sqrt(0.25 * 0.75 / 4_000)  # five standard deviations of a share of a quarter
    assert explore(algorithm, step=99) == pytest.approx([0.25] * 4, abs=deviation)
    # A share of 0.4 is random, and a quarter of that is each action; the rows of one call differ.
    assert explore(algorithm, step=100) == pytest.approx([0.1, 0.1, 0.1, 0.7], abs=deviation)


def test_without_epsilon_exploring_is_greedy() -> None:
    setup = make_setup(num_actions=4, network=PrefersLast(), epsilon_start=0.0, epsilon_end=0.0)
    assert explore(build_dqn(setup), step=0).tolist() == [0.0, 0.0, 0.0, 1.0]


def test_greedy_acting_is_repeatable_and_uses_no_random_numbers() -> None:
    algorithm = build_dqn(make_setup(learning_starts=1_000))
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    before = algorithm.state_dict()["generators"]
    first, again = algorithm.act(obs, step=0), algorithm.act(obs, step=0)
    assert np.array_equal(first.actions, again.actions)
    assert set(first.actions) == {0, 1}
    assert algorithm.state_dict()["generators"] == before


def test_acting_follows_the_updates() -> None:
    algorithm = build_dqn(make_setup(gamma=0.0, learning_rate=0.05))
    batch = make_batch() | {"actions": torch.tensor([0, 1] * 4), "rewards": torch.tensor([-1.0, 1.0] * 4)}
    for _ in range(100):
        algorithm.update(batch)
    assert algorithm.act(batch["obs"].numpy()).actions.tolist() == [1] * 8


# --- The fast paths --------------------------------------------------------------------------------------------------


def test_numpy_acting_equals_pytorch_acting() -> None:
    network = MLPQNetwork(3, 4, (32, 32))
    obs = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    plain = act_function(network.requires_grad_(False), torch.device("cpu"), "eager")
    fast = act_function(network, torch.device("cpu"), "compile")
    np.testing.assert_allclose(fast(obs), plain(obs), rtol=1e-5, atol=1e-6)
    slow_agent, fast_agent = (
        build_dqn(make_setup(num_actions=4, acceleration=mode, hidden_sizes=(32, 32))) for mode in ("eager", "compile")
    )
    assert np.array_equal(fast_agent.act(obs).actions, slow_agent.act(obs).actions)
    assert np.array_equal(
        fast_agent.act(obs, step=50, explore=True).actions, slow_agent.act(obs, step=50, explore=True).actions
    )


@pytest.mark.compile
def test_twenty_compiled_updates_equal_eager_ones() -> None:
    def run(mode: str) -> tuple[QLearner, list[dict[str, float]]]:
        algorithm = build_dqn(
            make_setup(acceleration=mode, double_q=True, target_update_interval=7, learning_rate=0.01)
        )
        results = [algorithm.update(make_batch(seed)) for seed in range(20)]
        return algorithm, [{name: float(value) for name, value in result.metrics.items()} for result in results]

    (plain, expected), (fast, metrics) = run("eager"), run("compile")
    for ours, theirs in zip(metrics, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(fast.policy_state_dict(), plain.policy_state_dict(), rtol=1e-4, atol=1e-6)
    for name in ("target", "adam_mean", "adam_square", "adam_count"):
        torch.testing.assert_close(fast.state_dict()[name], plain.state_dict()[name], rtol=1e-4, atol=1e-6)
    obs = make_batch(99, size=64)["obs"].numpy()
    assert np.array_equal(fast.act(obs).actions, plain.act(obs).actions)
