"""PPO: the loss worked out by hand, whole updates against plain PyTorch, schedules, acting, and the fast paths."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rl_training.acceleration.compiled_steps import trace
from rl_training.acceleration.steps import _write_in_place
from rl_training.algorithms.ppo import PPO, build_ppo, ppo_loss
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.types import Batch, Metrics
from rl_training.errors import SpaceError
from rl_training.hparams.ppo import PPOHParams
from rl_training.learners.on_device import fit
from rl_training.models.distributions import build_distribution
from rollouts import make_ppo_setup, make_rollout
from state_comparison import assert_identical, clone

# In the tests of the loss, the parameters are a table: per row of the batch two logits and a value. Logits are logs of
# probabilities, so that the probability of action 0, which was always taken, can be read off.

PLAIN = PPOHParams(normalize_advantages=False, vf_coef=0.0, ent_coef=0.0)
TWO_ACTIONS = build_distribution(Discrete(2))


def table_outputs(params: Tensor, obs: Tensor) -> Tensor:
    return params.view(-1, 3)[obs]


def table(probabilities: list[float], values: list[float]) -> Tensor:
    rows = [(math.log(p), math.log(1.0 - p), value) for p, value in zip(probabilities, values, strict=True)]
    return torch.tensor(rows).view(-1).requires_grad_()


def old_rows(
    *,
    probabilities: list[float],
    advantages: list[float],
    values: list[float] | None = None,
    returns: list[float] | None = None,
) -> Batch:
    size = len(probabilities)
    return {
        "obs": torch.arange(size),
        "actions": torch.zeros(size, dtype=torch.int64),
        "log_probs": torch.tensor(probabilities).log(),
        "advantages": torch.tensor(advantages),
        "values": torch.tensor(values or [0.0] * size),
        "returns": torch.tensor(returns or [0.0] * size),
    }


def loss_of(params: Tensor, batch: Batch, hparams: PPOHParams, clip: float = 0.2) -> Metrics:
    return ppo_loss(params, batch, hparams, table_outputs, TWO_ACTIONS, torch.tensor(clip))


# --- The loss --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "learns"),
    [
        (1.1, 2.0, 1.1 * 2.0, True),
        (1.5, 2.0, 1.2 * 2.0, False),  # good, and likelier by more than 20 % already: nothing more to earn
        (0.5, 2.0, 0.5 * 2.0, True),  # good, but less likely than before: the lower bound is the plain one
        (0.9, -2.0, 0.9 * -2.0, True),
        (0.5, -2.0, 0.8 * -2.0, False),  # bad, and less likely by more than 20 % already
        (1.5, -2.0, 1.5 * -2.0, True),  # bad, yet likelier than before
    ],
)
def test_the_gain_is_clipped_on_the_side_that_the_advantage_points_to(
    ratio: float, advantage: float, gain: float, learns: bool
) -> None:
    # Old probability 0.4, new 0.4 * ratio. d ratio / d logit of the action taken = ratio * (1 - p).
    p = 0.4 * ratio
    params = table([p], [0.0])
    metrics = loss_of(params, old_rows(probabilities=[0.4], advantages=[advantage]), PLAIN)
    assert metrics["loss"].item() == pytest.approx(-gain, rel=1e-5)
    assert metrics["policy_loss"].item() == pytest.approx(-gain, rel=1e-5)
    (gradient,) = torch.autograd.grad(metrics["loss"], params)
    slope = -advantage * ratio * (1.0 - p) if learns else 0.0
    assert gradient.tolist() == pytest.approx([slope, -slope, 0.0], rel=1e-5)


def test_every_row_has_its_own_clip_and_the_loss_is_their_mean() -> None:
    # Ratios 1.5, 0.5 and 1 with clip 0.1: gains 1.1 * 1, 0.9 * -1 and 1 * 3.
    batch = old_rows(probabilities=[0.4, 0.4, 0.4], advantages=[1.0, -1.0, 3.0])
    params = table([0.6, 0.2, 0.4], [0.0] * 3)
    metrics = loss_of(params, batch, PLAIN, clip=0.1)
    assert metrics["policy_loss"].item() == pytest.approx(-(1.1 - 0.9 + 3.0) / 3, rel=1e-5)
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 3)
    (gradient,) = torch.autograd.grad(metrics["loss"], params)
    assert gradient.view(3, 3)[:2].abs().max() == 0.0  # the clipped rows
    assert gradient.view(3, 3)[2, 0].item() == pytest.approx(-3.0 * (1.0 - 0.4) / 3, rel=1e-5)


def test_approximate_kl_and_clip_fraction_by_hand() -> None:
    # Ratios 1.5, 0.5, 1 and 1.1: the mean of r - 1 - log r, and two of four beyond 1 +- 0.2.
    batch = old_rows(probabilities=[0.4] * 4, advantages=[1.0] * 4)
    metrics = loss_of(table([0.6, 0.2, 0.4, 0.44], [0.0] * 4), batch, PLAIN)
    terms = [ratio - 1.0 - math.log(ratio) for ratio in (1.5, 0.5, 1.0, 1.1)]
    assert metrics["approx_kl"].item() == pytest.approx(sum(terms) / 4, rel=1e-4)
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 4)


@pytest.mark.parametrize(
    ("value", "expected", "slope"),
    [
        # Old value 2, clip 0.5, return 5; slopes are 2 * (value - 5) where the plain error counts.
        (3.0, (2.5 - 5.0) ** 2, 0.0),  # moved by 1, of which 0.5 counts: 6.25 beats the plain 4, and is constant
        (2.25, (2.25 - 5.0) ** 2, 2 * (2.25 - 5.0)),  # within the clip both are one
        (1.0, (1.0 - 5.0) ** 2, 2 * (1.0 - 5.0)),  # moved the wrong way: the plain 16 beats 3.5 ** 2
    ],
)
def test_with_value_clip_the_larger_error_counts(value: float, expected: float, slope: float) -> None:
    batch = old_rows(probabilities=[0.4], advantages=[0.0], values=[2.0], returns=[5.0])
    hparams = PPOHParams(normalize_advantages=False, vf_coef=1.0, value_clip=True)
    params = table([0.4], [value])
    metrics = loss_of(params, batch, hparams, clip=0.5)
    assert metrics["value_loss"].item() == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(metrics["loss"], params)
    assert gradient.tolist() == pytest.approx([0.0, 0.0, slope])


def test_without_value_clip_the_value_loss_is_the_mean_squared_error() -> None:
    # (3 - 5) ** 2 = 4 and (1 - 0) ** 2 = 1, however far from the old values 2 and 9.
    batch = old_rows(probabilities=[0.4] * 2, advantages=[0.0] * 2, values=[2.0, 9.0], returns=[5.0, 0.0])
    metrics = loss_of(table([0.4] * 2, [3.0, 1.0]), batch, PPOHParams(normalize_advantages=False))
    assert metrics["value_loss"].item() == pytest.approx((4.0 + 1.0) / 2)


def test_the_loss_weighs_policy_value_and_entropy() -> None:
    # Ratio 1 and advantage 3: policy -3. Value error 4. Entropy of (1/4, 3/4) and of (1/2, 1/2).
    batch = old_rows(probabilities=[0.25, 0.5], advantages=[3.0, 3.0], returns=[2.0, -2.0])
    hparams = PPOHParams(normalize_advantages=False, vf_coef=0.25, ent_coef=0.1)
    metrics = loss_of(table([0.25, 0.5], [0.0, 0.0]), batch, hparams)
    entropy = (-0.25 * math.log(0.25) - 0.75 * math.log(0.75) + math.log(2)) / 2
    assert metrics["entropy"].item() == pytest.approx(entropy, rel=1e-5)
    assert metrics["loss"].item() == pytest.approx(-3.0 + 0.25 * 4.0 - 0.1 * entropy, rel=1e-5)


def test_entropy_pulls_towards_the_even_policy() -> None:
    batch = old_rows(probabilities=[0.9], advantages=[0.0])
    params = table([0.9], [0.0])
    hparams = PPOHParams(normalize_advantages=False, vf_coef=0.0, ent_coef=1.0)
    (gradient,) = torch.autograd.grad(loss_of(params, batch, hparams)["loss"], params)
    assert gradient[0] > 0.0 > gradient[1]  # down with the logit of the likelier action


def test_advantages_are_normalised_within_the_minibatch() -> None:
    # Ratio 1, advantages 1 and 3: mean 2, deviation sqrt(2), so -1 / sqrt(2) and 1 / sqrt(2); their mean is 0, but the
    # gradients of two rows with their own logits are -A (1 - p) / 2.
    params = table([0.4, 0.4], [0.0, 0.0])
    batch = old_rows(probabilities=[0.4, 0.4], advantages=[1.0, 3.0])
    metrics = loss_of(params, batch, PPOHParams(vf_coef=0.0))
    assert metrics["policy_loss"].item() == pytest.approx(0.0, abs=1e-6)
    (gradient,) = torch.autograd.grad(metrics["loss"], params)
    assert gradient.view(2, 3)[:, 0].tolist() == pytest.approx([0.6 / math.sqrt(8), -0.6 / math.sqrt(8)], rel=1e-5)


def test_equal_advantages_become_zero_and_not_infinite() -> None:
    batch = old_rows(probabilities=[0.4] * 3, advantages=[5.0] * 3)
    metrics = loss_of(table([0.5] * 3, [0.0] * 3), batch, PPOHParams(vf_coef=0.0))
    assert metrics["loss"].item() == pytest.approx(0.0, abs=1e-6)


def test_masked_choices_have_no_part_in_ratio_and_entropy() -> None:
    # Logits 0, 0, 9 with the last one masked: probability 1/2, so the ratio to 0.4 is 1.25, and the entropy log 2.
    outputs = torch.tensor([0.0, 0.0, 9.0, 7.0])
    batch = old_rows(probabilities=[0.4], advantages=[1.0], returns=[7.0])
    batch |= {"action_mask": torch.tensor([[True, True, False]])}
    hparams = PPOHParams(normalize_advantages=False)
    distribution = build_distribution(Discrete(3))
    metrics = ppo_loss(outputs, batch, hparams, lambda p, obs: p.view(1, 4)[obs], distribution, torch.tensor(0.5))
    assert metrics["policy_loss"].item() == pytest.approx(-1.25)
    assert metrics["entropy"].item() == pytest.approx(math.log(2))
    assert metrics["value_loss"].item() == 0.0


numbers = st.floats(-3, 3, width=32)
probabilities = st.floats(0.125, 0.875, width=32)
rows = st.tuples(probabilities, probabilities, numbers, numbers, numbers, numbers)


@given(data=st.data(), batch_rows=st.lists(rows, min_size=2, max_size=8), value_clip=st.booleans())
def test_permuting_the_batch_leaves_the_loss_unchanged(data: st.DataObject, batch_rows: Any, value_clip: bool) -> None:
    def metrics_of(rows: Any) -> Metrics:
        new, old, advantages, values, old_values, returns = (list(column) for column in zip(*rows, strict=True))
        batch = old_rows(probabilities=old, advantages=advantages, values=old_values, returns=returns)
        return loss_of(table(new, values), batch, PPOHParams(value_clip=value_clip, ent_coef=0.1))

    order = data.draw(st.permutations(batch_rows))
    torch.testing.assert_close(metrics_of(order), metrics_of(batch_rows), rtol=1e-4, atol=1e-5)


# --- The update ------------------------------------------------------------------------------------------------------


def params_of(algorithm: PPO) -> Tensor:
    return torch.cat([value.reshape(-1) for value in algorithm._network.named(algorithm._state["params"]).values()])


def watch_steps(algorithm: PPO) -> list[tuple[Batch, Metrics]]:
    """Note of every gradient step the minibatch, the parameters before it and the metrics."""
    seen: list[tuple[Batch, Metrics]] = []
    step = algorithm._step_in_place

    def watched(state: Any, batch: Batch) -> Metrics:
        rows = {name: values[batch["indices"]].clone() for name, values in batch.items() if name != "indices"}
        rows |= {"indices": batch["indices"].clone(), "params": state["params"].clone()}
        metrics = step(state, batch)
        seen.append((rows, metrics))
        return metrics

    algorithm._step_in_place = watched
    return seen


METRICS = {
    "loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "grad_norm",
    "explained_variance",
}


def test_an_update_gives_named_scalars_and_counts_its_gradient_steps() -> None:
    setup = make_ppo_setup(update_epochs=3)
    result = build_ppo(setup).update(make_rollout(setup))
    assert set(result.metrics) == METRICS
    assert all(value.shape == () and not value.requires_grad for value in result.metrics.values())
    assert all(torch.isfinite(value) for value in result.metrics.values())
    assert result.num_gradient_steps == 3 * 12 // 4


def test_the_metrics_are_means_over_the_gradient_steps() -> None:
    setup = make_ppo_setup(learning_rate=0.01)
    algorithm = build_ppo(setup)
    seen = watch_steps(algorithm)
    result = algorithm.update(make_rollout(setup))
    for name in METRICS - {"explained_variance"}:
        expected = sum(metrics[name].item() for _, metrics in seen) / 6
        assert result.metrics[name].item() == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_at_the_first_gradient_step_the_policy_is_the_one_that_acted() -> None:
    setup = make_ppo_setup(learning_rate=0.01)
    algorithm = build_ppo(setup)
    seen = watch_steps(algorithm)
    algorithm.update(make_rollout(setup))
    (_, first), *_, (_, last) = seen
    assert first["approx_kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert first["clip_fraction"].item() == 0.0
    assert last["approx_kl"].item() > 1e-5


def test_the_first_gradient_is_the_plain_policy_gradient() -> None:
    setup = make_ppo_setup(minibatch_size=12, update_epochs=1, normalize_advantages=False, vf_coef=0.0)
    algorithm, twin = build_ppo(setup), build_ppo(setup)
    rollout = make_rollout(setup)
    advantages = twin._advantages(rollout)["advantages"]
    params = params_of(twin).clone().requires_grad_()
    outputs = twin._network.apply(params, rollout["obs"])
    log_probs = torch.log_softmax(outputs[:, :2], 1)[torch.arange(12), rollout["actions"]]
    (gradient,) = torch.autograd.grad(-(advantages * log_probs).mean(), params)
    metrics = algorithm.update(rollout).metrics
    assert metrics["grad_norm"].item() == pytest.approx(gradient.norm().item(), rel=1e-4)
    mean = algorithm.state_dict()["adam_mean"]  # 0.1 times the clipped gradient after one step
    torch.testing.assert_close(mean / mean.norm(), gradient / gradient.norm(), rtol=1e-3, atol=1e-5)


def test_every_row_is_used_exactly_once_in_every_epoch_and_in_another_order() -> None:
    setup = make_ppo_setup(update_epochs=3)
    algorithm = build_ppo(setup)
    seen = watch_steps(algorithm)
    algorithm.update(make_rollout(setup))
    orders = [
        torch.cat([rows["indices"] for rows, _ in seen[3 * epoch : 3 * epoch + 3]]).tolist() for epoch in range(3)
    ]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_the_rows_of_a_minibatch_belong_together() -> None:
    setup = make_ppo_setup(update_epochs=1)
    algorithm = build_ppo(setup)
    seen = watch_steps(algorithm)
    rollout = make_rollout(setup)
    judged = algorithm._advantages(rollout)
    algorithm.update(rollout)
    for rows, _ in seen:
        for name, values in {**judged, "obs": rollout["obs"], "actions": rollout["actions"]}.items():
            torch.testing.assert_close(rows[name], values[rows["indices"]])


@pytest.mark.parametrize(
    ("action", "hparams"),
    [
        (Discrete(3), {"ent_coef": 0.05, "max_grad_norm": 0.05}),
        (Box(-1.0, 1.0, (2,), np.float32), {"value_clip": True, "normalize_advantages": False, "max_grad_norm": 5.0}),
    ],
    ids=["discrete", "box"],
)
def test_updates_equal_a_plain_pytorch_ppo(action: gym.Space[Any], hparams: dict[str, Any]) -> None:
    constant: dict[str, Any] = {
        "learning_rate": 0.01,
        "learning_rate_schedule": "constant",
        "gamma": 0.9,
        "gae_lambda": 0.8,
    }
    setup = make_ppo_setup(action=action, **hparams, **constant)
    algorithm = build_ppo(setup)
    expected = PlainPPO(setup, build_ppo(setup)._network.module)
    for seed in range(4):
        rollout = make_rollout(setup, seed)
        ours, theirs = algorithm.update(rollout).metrics, expected.update(rollout)
        assert {name: ours[name].item() for name in theirs} == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    torch.testing.assert_close(params_of(algorithm), expected.params(), rtol=1e-3, atol=1e-5)


class PlainPPO:
    """PPO as one would write it with torch.optim and torch.distributions, without any sharing with ours."""

    def __init__(self, setup: Setup[PPOHParams], network: nn.Module) -> None:
        self.setup, self.hparams, self.network = setup, setup.hparams, network
        for parameter in network.parameters():
            parameter.data = parameter.data.clone()
            parameter.requires_grad_(True)
        self.optimizer = torch.optim.Adam(
            network.parameters(), lr=self.hparams.learning_rate, eps=self.hparams.adam_eps
        )
        self.shuffle = Streams(setup.streams.seed).numpy("shuffle")

    def params(self) -> Tensor:
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.network.parameters()])

    def evaluate(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs = self.network(obs)
        if isinstance(self.setup.spaces.action, Box):
            normal = torch.distributions.Normal(outputs[:, :2], outputs[:, 2:4].exp())
            return outputs[:, 4], normal.log_prob(actions).sum(1), normal.entropy().sum(1)
        choice = torch.distributions.Categorical(logits=outputs[:, :3])
        return outputs[:, 3], choice.log_prob(actions), choice.entropy()

    def update(self, rollout: Batch) -> dict[str, float]:
        hparams, (steps, envs) = self.hparams, (self.hparams.num_steps, self.setup.num_envs)
        with torch.no_grad():
            values, old_log_probs, _ = self.evaluate(rollout["obs"], rollout["actions"])
            final = dict(
                zip(rollout["final_rows"].tolist(), self.network(rollout["final_obs"])[:, -1].tolist(), strict=True)
            )
        advantages = torch.zeros(steps * envs)
        for env in range(envs):
            after = torch.zeros(())
            for step in reversed(range(steps)):
                row = step * envs + env
                terminated, truncated = bool(rollout["terminated"][row]), bool(rollout["truncated"][row])
                next_value = final[row] if row in final else values[row + envs].item()
                delta = rollout["rewards"][row] + hparams.gamma * next_value * (not terminated) - values[row]
                after = delta + hparams.gamma * hparams.gae_lambda * after * (not (terminated or truncated))
                advantages[row] = after
        returns = advantages + values
        totals = {"value_loss": 0.0, "entropy": 0.0, "grad_norm": 0.0}
        for _ in range(hparams.update_epochs):
            order = torch.from_numpy(self.shuffle.permutation(steps * envs))
            for chosen in order.split(hparams.minibatch_size):
                value, log_prob, entropy = self.evaluate(rollout["obs"][chosen], rollout["actions"][chosen])
                ratio = (log_prob - old_log_probs[chosen]).exp()
                gain = advantages[chosen]
                if hparams.normalize_advantages:
                    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clip = hparams.clip_coef
                policy_loss = -torch.min(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()
                error = (value - returns[chosen]) ** 2
                if hparams.value_clip:
                    old = values[chosen]
                    near = old + (value - old).clamp(-clip, clip)
                    error = torch.max(error, (near - returns[chosen]) ** 2)
                self.optimizer.zero_grad()
                loss = policy_loss + hparams.vf_coef * error.mean() - hparams.ent_coef * entropy.mean()
                loss.backward()
                norm = nn.utils.clip_grad_norm_(self.network.parameters(), hparams.max_grad_norm)
                self.optimizer.step()
                totals["value_loss"] += error.mean().item() / 6
                totals["entropy"] += entropy.mean().item() / 6
                totals["grad_norm"] += norm.item() / 6
        return totals


@pytest.mark.parametrize(
    ("returns", "values", "expected"),
    [
        ([1.0, 3.0], [1.0, 2.0], 1.0 - 0.25 / 1.0),  # residuals 0 and 1: variance 1/4; of the returns: 1
        ([1.0, 3.0], [1.0, 3.0], 1.0),
        ([1.0, 3.0], [7.0, 7.0], 0.0),  # a constant explains nothing
        ([1.0, 3.0], [3.0, 1.0], 1.0 - 4.0 / 1.0),  # worse than a constant
        ([2.0], [5.0], 1.0),  # of a single row nothing is left to explain
    ],
)
def test_explained_variance_by_hand(returns: list[float], values: list[float], expected: float) -> None:
    metrics = fit({"returns": torch.tensor(returns), "values": torch.tensor(values)})
    assert metrics["explained_variance"].item() == pytest.approx(expected, abs=1e-6)


def test_a_rollout_of_one_row_is_learnt_from() -> None:
    setup = make_ppo_setup(num_steps=1, num_envs=1, minibatch_size=1, normalize_advantages=False)
    result = build_ppo(setup).update(make_rollout(setup))
    assert all(torch.isfinite(value) for value in result.metrics.values())


# --- Schedules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total_timesteps", "updates"),
    [
        (36, 3),
        (46, 3),
        (47, 4),
        (25, 2),
        (48, 4),
        (5, 1),
    ],  # rollouts of 6 * 2 rows; what is left at the end is not learnt from
)
def test_the_first_update_learns_at_the_full_rate_and_the_last_not_at_zero(total_timesteps: int, updates: int) -> None:
    setup = make_ppo_setup(total_timesteps=total_timesteps, learning_rate=0.01, clip_coef=0.4, clip_schedule="linear")
    algorithm = build_ppo(setup)
    rates, clips = [], []
    for seed in range(updates):
        algorithm.update(make_rollout(setup, seed))
        rates.append(algorithm.status(0)["learning_rate"])
        clips.append(algorithm.status(0)["clip_coef"])
    left = [(updates - count) / updates for count in range(updates)]
    assert rates == pytest.approx([0.01 * share for share in left])
    assert clips == pytest.approx([0.4 * share for share in left])


def test_envs_that_step_past_the_end_still_learn_in_the_last_update() -> None:
    # 22 steps of 4 envs are taken as 24: two rollouts of 3 * 4 rows, although 22 rows hold only one.
    setup = make_ppo_setup(total_timesteps=22, num_envs=4, num_steps=3, learning_rate=0.01)
    algorithm = build_ppo(setup)
    for seed in range(2):
        algorithm.update(make_rollout(setup, seed))
    assert algorithm.status(24)["learning_rate"] == pytest.approx(0.005)


def test_constant_schedules_stay() -> None:
    setup = make_ppo_setup(total_timesteps=24, learning_rate=0.01, learning_rate_schedule="constant")
    algorithm = build_ppo(setup)
    for seed in range(3):
        algorithm.update(make_rollout(setup, seed))
        assert algorithm.status(0) == {"learning_rate": pytest.approx(0.01), "clip_coef": pytest.approx(0.2)}


def test_the_clip_of_the_schedule_is_the_one_of_the_loss() -> None:
    # The second of two updates clips at 0.05 in place of 0.1: ratios beyond it are counted.
    schedule: dict[str, Any] = {"total_timesteps": 24, "clip_coef": 0.1, "clip_schedule": "linear"}
    setup = make_ppo_setup(**schedule, learning_rate=0.02, learning_rate_schedule="constant")
    algorithm = build_ppo(setup)
    algorithm.update(make_rollout(setup, 0))
    seen = watch_steps(algorithm)
    algorithm.update(make_rollout(setup, 1))
    shares = []
    for rows, metrics in seen:
        outputs = algorithm._network.apply(rows["params"], rows["obs"])
        log_probs = torch.log_softmax(outputs[:, :2], 1)[torch.arange(4), rows["actions"]]
        moved = ((log_probs - rows["log_probs"]).exp() - 1.0).abs()
        shares.append(
            (metrics["clip_fraction"].item(), *((moved > clip).float().mean().item() for clip in (0.05, 0.1)))
        )
    assert all(share == expected for share, expected, _ in shares)
    assert any(share > with_first_clip for share, _, with_first_clip in shares)  # the two can be told apart


def test_target_kl_ends_the_update_before_the_first_step_beyond_it() -> None:
    setup = make_ppo_setup(update_epochs=10, learning_rate=0.02, target_kl=0.01, max_grad_norm=10.0)
    algorithm = build_ppo(setup)
    seen = watch_steps(algorithm)
    result = algorithm.update(make_rollout(setup))
    kls = [metrics["approx_kl"].item() for _, metrics in seen]
    assert 1 < result.num_gradient_steps == len(kls) - 1 < 30
    assert kls[-1] > 1.5 * 0.01 >= max(kls[:-1])
    assert torch.equal(params_of(algorithm), seen[-1][0]["params"])  # the last one was not taken
    assert algorithm._state["adam_count"] == result.num_gradient_steps


def test_a_distant_target_kl_changes_nothing() -> None:
    def learn(target_kl: float | None) -> PPO:
        setup = make_ppo_setup(target_kl=target_kl)
        algorithm = build_ppo(setup)
        assert algorithm.update(make_rollout(setup)).num_gradient_steps == 6
        return algorithm

    assert torch.equal(params_of(learn(1e6)), params_of(learn(None)))


def test_recomputed_advantages_follow_the_values_and_leave_the_old_policy_alone() -> None:
    def epochs(recompute: bool) -> list[Batch]:
        setup = make_ppo_setup(recompute_advantages=recompute, learning_rate=0.02, minibatch_size=12, update_epochs=3)
        algorithm = build_ppo(setup)
        seen = watch_steps(algorithm)
        algorithm.update(make_rollout(setup))
        return [{name: values[rows["indices"].argsort()] for name, values in rows.items()} for rows, _ in seen]

    first, second, third = epochs(recompute=True)
    for earlier, later in ((first, second), (second, third)):
        assert torch.equal(later["log_probs"], earlier["log_probs"])
        assert torch.equal(later["obs"], earlier["obs"])
        for name in ("values", "advantages", "returns"):
            assert not torch.allclose(later[name], earlier[name], rtol=1e-3), name
    first, second, _ = epochs(recompute=False)
    for name in ("values", "advantages", "returns", "log_probs"):
        assert torch.equal(second[name], first[name])


# --- Acting ----------------------------------------------------------------------------------------------------------

OBS = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)


def test_exploring_samples_and_evaluating_takes_the_likeliest() -> None:
    network = nn.Sequential(nn.Linear(3, 4))
    with torch.no_grad():
        network[0].get_parameter("weight").zero_()
        network[0].get_parameter("bias").copy_(torch.tensor([math.log(0.2), math.log(0.7), math.log(0.1), 0.0]))
    algorithm = build_ppo(make_ppo_setup(action=Discrete(3), network=network))
    obs = np.zeros((20_000, 3), np.float32)
    shares = np.bincount(algorithm.act(obs, explore=True).actions, minlength=3) / 20_000
    deviation = 5 * math.sqrt(0.25 / 20_000)
    assert shares == pytest.approx([0.2, 0.7, 0.1], abs=deviation)
    assert set(algorithm.act(obs).actions) == {1}


def test_greedy_acting_uses_no_random_numbers() -> None:
    algorithm = build_ppo(make_ppo_setup())
    before = clone(algorithm.state_dict())
    first, again = algorithm.act(OBS).actions, algorithm.act(OBS).actions
    assert np.array_equal(first, again)
    assert_identical(algorithm.state_dict(), before)


def test_sampled_evaluation_draws_from_a_stream_of_its_own() -> None:
    algorithm, twin = (build_ppo(make_ppo_setup(sampled_evaluation=True)) for _ in range(2))
    evaluated = algorithm.act(OBS).actions
    assert set(evaluated) == {0, 1}
    assert not np.array_equal(evaluated, algorithm.act(OBS).actions)
    assert np.array_equal(algorithm.act(OBS, explore=True).actions, twin.act(OBS, explore=True).actions)


def test_masks_hold_for_both_ways_of_acting() -> None:
    mask = np.zeros((200, 4), np.bool_)
    mask[np.arange(200), np.arange(200) % 4] = True
    algorithm = build_ppo(make_ppo_setup(action=Discrete(4), action_mask=True))
    for explore in (False, True):
        assert np.array_equal(algorithm.act(OBS, explore=explore, action_mask=mask).actions, np.arange(200) % 4)


def test_acting_follows_the_updates() -> None:
    # Action 1 is always rewarded, action 0 punished, and every episode has one step.
    setup = make_ppo_setup(learning_rate=0.05, learning_rate_schedule="constant")
    algorithm = build_ppo(setup)
    for seed in range(10):
        rollout = make_rollout(setup, seed)
        rollout |= {"rewards": 2.0 * rollout["actions"] - 1.0, "terminated": torch.ones(12, dtype=torch.bool)}
        algorithm.update(rollout)
    assert algorithm.act(OBS).actions.tolist() == [1] * 200


def test_networks_of_one_seed_are_equal_and_building_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build_ppo(make_ppo_setup(seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(params_of(first), params_of(again))
    assert not torch.equal(params_of(first), params_of(other))


def test_a_network_of_the_users_is_trained() -> None:
    setup = make_ppo_setup(action=Discrete(3), network=nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)))
    algorithm = build_ppo(setup)
    before = params_of(algorithm).clone()
    algorithm.update(make_rollout(setup))
    assert not torch.equal(params_of(algorithm), before)
    assert algorithm.act(OBS).actions.shape == (200,)


@pytest.mark.parametrize("outputs", [3, 5])
def test_a_network_of_the_users_must_give_the_policy_and_the_value(outputs: int) -> None:
    message = rf"3 numbers for the policy over Discrete\(3\), and the value\), shape \(2, 4\) .* shape \(2, {outputs}\)"
    with pytest.raises(ValueError, match=message):
        build_ppo(make_ppo_setup(action=Discrete(3), network=nn.Linear(3, outputs)))


@pytest.mark.parametrize("normalize", ["obs", "both"])
@pytest.mark.parametrize("observation", [Box(0, 255, (8, 8, 1), np.uint8), Discrete(4)], ids=["image", "discrete"])
def test_only_vectors_can_be_normalised(normalize: str, observation: gym.Space[Any]) -> None:
    message = rf"normalize: {normalize} needs vector observations, but these are .*; use `returns`"
    with pytest.raises(SpaceError, match=message):
        build_ppo(make_ppo_setup(observation=observation, normalize=normalize))


# --- The fast paths --------------------------------------------------------------------------------------------------

ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": Discrete(3),
    "box": Box(-1.0, 1.0, (2,), np.float32),
    "multidiscrete": MultiDiscrete([2, 3]),
    "multibinary": MultiBinary(3),
}


@pytest.mark.parametrize("kind", ACTIONS)
def test_numpy_acting_equals_pytorch_acting(kind: str) -> None:
    plain, fast = (build_ppo(make_ppo_setup(action=ACTIONS[kind], acceleration=mode)) for mode in ("eager", "compile"))
    for explore in (False, True):
        ours, theirs = (algorithm.act(OBS, explore=explore).actions for algorithm in (fast, plain))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "action_mask"),
    [("discrete", True), ("multidiscrete", True), ("multibinary", False), ("box", False)],
)
def test_the_step_can_be_traced_for_the_compiler(kind: str, action_mask: bool) -> None:
    # What compiling starts from: the same operations whatever the values, nothing read from outside.
    setup = make_ppo_setup(action=ACTIONS[kind], action_mask=action_mask, value_clip=True)
    algorithm = build_ppo(setup)
    rollout = make_rollout(setup)
    rollout |= algorithm._advantages(rollout)
    names = ("obs", "actions", "action_mask", "log_probs", "values", "advantages", "returns")
    batch = {name: rollout[name] for name in names if name in rollout} | {"indices": torch.tensor([3, 1, 4, 8])}
    graph, inputs, metric_names = trace(_write_in_place(algorithm.pure_step), algorithm._state, batch)
    state = {name: algorithm._state[name].clone() for name in sorted(algorithm._state)}
    traced = dict(zip(metric_names, graph(*state.values(), *inputs[len(state) :]), strict=True))
    expected = algorithm._step_in_place(algorithm._state, batch)
    torch.testing.assert_close(traced, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state, {name: algorithm._state[name] for name in state}, rtol=1e-4, atol=1e-6)


def learn_five_rollouts(kind: str, mode: str) -> tuple[PPO, list[dict[str, float]]]:
    setup = make_ppo_setup(
        action=ACTIONS[kind],
        acceleration=mode,
        learning_rate=0.01,
        clip_schedule="linear",
        normalize="both",
        ent_coef=0.01,
        recompute_advantages=True,
        total_timesteps=60,
    )
    algorithm = build_ppo(setup)
    results = [algorithm.update(make_rollout(setup, seed)) for seed in range(5)]
    return algorithm, [{name: float(value) for name, value in result.metrics.items()} for result in results]


@pytest.mark.compile
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_compiled_updates_equal_eager_ones(kind: str) -> None:
    (plain, expected), (fast, metrics) = (learn_five_rollouts(kind, mode) for mode in ("eager", "compile"))
    for ours, theirs in zip(metrics, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    torch.testing.assert_close(fast.policy_state_dict(), plain.policy_state_dict(), rtol=1e-3, atol=1e-5)
    for name in ("adam_mean", "adam_square", "adam_count"):
        torch.testing.assert_close(fast.state_dict()[name], plain.state_dict()[name], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(fast.act(OBS).actions, plain.act(OBS).actions, rtol=1e-3, atol=1e-4)
