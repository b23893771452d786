"""Generalised advantage estimates: against a sum of TD errors written out, and with a value function that is known."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rl_training.algorithms.ppo import PPO, build_ppo
from rl_training.data.rollout_buffer import build_rollout_buffer
from rl_training.learners.returns import discounted_sum, gae
from rollouts import make_ppo_setup

# --- The sum ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(1, 71))
def test_the_sum_in_rounds_equals_a_loop_for_any_length(steps: int) -> None:
    rng = np.random.default_rng(steps)
    values = rng.normal(size=(steps, 3))
    decay = rng.random((steps, 3)) * (rng.random((steps, 3)) < 0.8)
    expected, after = np.zeros((steps, 3)), np.zeros(3)
    for step in reversed(range(steps)):
        expected[step] = after = values[step] + decay[step] * after
    ours = discounted_sum(torch.from_numpy(values), torch.from_numpy(decay))
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_the_sum_leaves_its_arguments_alone() -> None:
    values, decay = torch.ones(5, 2), torch.full((5, 2), 0.5)
    discounted_sum(values, decay)
    assert torch.equal(values, torch.ones(5, 2))
    assert torch.equal(decay, torch.full((5, 2), 0.5))


# --- Advantages ------------------------------------------------------------------------------------------------------


def advantages_by_definition(rollout: dict[str, np.ndarray], gamma: float, gae_lambda: float) -> np.ndarray:
    """A(t) = sum over k of (gamma lambda)^k delta(t + k), from t to the end of its episode or of the rollout."""
    steps, envs = rollout["rewards"].shape
    result = np.zeros((steps, envs))
    for env in range(envs):
        for start in range(steps):
            for k, step in enumerate(range(start, steps)):
                alive = 0.0 if rollout["terminated"][step, env] else 1.0
                bootstrap = gamma * alive * rollout["next_values"][step, env]
                delta = rollout["rewards"][step, env] + bootstrap - rollout["values"][step, env]
                result[start, env] += (gamma * gae_lambda) ** k * delta
                if rollout["terminated"][step, env] or rollout["truncated"][step, env]:
                    break
    return result


@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 40),
    envs=st.integers(1, 3),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
    share=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_equals_the_brute_force_sum_of_discounted_td_errors(
    seed: int, steps: int, envs: int, gamma: float, gae_lambda: float, share: float
) -> None:
    rng = np.random.default_rng(seed)
    shape = (steps, envs)
    rollout: dict[str, np.ndarray] = {name: rng.normal(size=shape) for name in ("rewards", "values", "next_values")}
    rollout |= {name: rng.random(shape) < share for name in ("terminated", "truncated")}  # now and then both
    tensors = {name: torch.from_numpy(values) for name, values in rollout.items()}
    ours = gae(**tensors, gamma=gamma, gae_lambda=gae_lambda)
    expected = advantages_by_definition(rollout, gamma, gae_lambda)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-5, atol=1e-5)  # discounts are float32


def column(*numbers: Any) -> Tensor:
    return torch.tensor(numbers)[:, None]


def test_by_hand_at_a_termination_and_at_a_time_limit() -> None:
    # gamma = lambda = 0.5. Values 1, 2, 3 of the rows and 2, 9, 4 of their successors; row 1 ends.
    # Deltas: 1 + 0.5 * 2 - 1 = 1; terminated 1 - 2 = -1, or truncated 1 + 0.5 * 9 - 2 = 3.5; 1 + 0.5 * 4 - 3 = 0.
    rows = {"rewards": column(1.0, 1.0, 1.0), "values": column(1.0, 2.0, 3.0), "next_values": column(2.0, 9.0, 4.0)}
    ends, never = column(False, True, False), column(False, False, False)
    at_end = gae(**rows, terminated=ends, truncated=never, gamma=0.5, gae_lambda=0.5)
    at_limit = gae(**rows, terminated=never, truncated=ends, gamma=0.5, gae_lambda=0.5)
    on = gae(**rows, terminated=never, truncated=never, gamma=0.5, gae_lambda=0.5)
    assert at_end.flatten().tolist() == pytest.approx([1.0 + 0.25 * -1.0, -1.0, 0.0])
    assert at_limit.flatten().tolist() == pytest.approx([1.0 + 0.25 * 3.5, 3.5, 0.0])
    assert on.flatten().tolist() == at_limit.flatten().tolist()  # delta 2 is 0: nothing follows


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_true_values_leave_no_advantage(gae_lambda: float) -> None:
    # Reward 1 for ever, gamma 0.8: V = 1 / (1 - 0.8) = 5 everywhere, whatever is truncated.
    five = torch.full((9, 2), 5.0)
    truncated = torch.zeros(9, 2, dtype=torch.bool)
    truncated[[2, 3, 8], [0, 1, 0]] = True
    ours = gae(torch.ones(9, 2), five, five, torch.zeros_like(truncated), truncated, gamma=0.8, gae_lambda=gae_lambda)
    torch.testing.assert_close(ours, torch.zeros(9, 2), rtol=0.0, atol=1e-5)


# --- From the buffer through PPO -------------------------------------------------------------------------------------


class KnownValue(nn.Module):
    """Equal logits, and as value the observation's first number times `scale`."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, obs: Tensor) -> Tensor:
        return torch.cat((torch.zeros(len(obs), 2), obs[:, :1] * self.scale), 1)


class Known:
    """PPO whose values are known, with its buffer; observations are what they are worth."""

    def __init__(self, num_steps: int, num_envs: int, **hparams: Any) -> None:
        setup = make_ppo_setup(
            observation=Box(-99.0, 99.0, (1,), np.float32),
            network=KnownValue(),
            num_envs=num_envs,
            num_steps=num_steps,
            minibatch_size=num_steps * num_envs,
            **hparams,
        )
        self.ppo: PPO = build_ppo(setup)
        self.buffer = build_rollout_buffer(setup)

    def add(self, worth: Any, next_worth: Any, rewards: Any, terminated: Any = 0, truncated: Any = 0) -> None:
        envs = self.buffer.num_envs

        def row(numbers: Any, dtype: Any) -> np.ndarray:
            return np.full((envs,), numbers, dtype)

        self.buffer.add(
            {
                "obs": row(worth, np.float32)[:, None],
                "next_obs": row(next_worth, np.float32)[:, None],
                "actions": np.zeros(envs, np.int64),
                "rewards": row(rewards, np.float64),
                "terminated": row(terminated, np.bool_),
                "truncated": row(truncated, np.bool_),
            }
        )

    def judged(self) -> dict[str, Any]:
        """What the update learns from, (steps, envs)."""
        rollout = self.ppo._advantages(self.buffer.rollout())
        shape = (self.buffer.num_steps, self.buffer.num_envs)
        return {name: values.view(shape).tolist() for name, values in rollout.items()}


def test_a_time_limit_bootstraps_from_the_final_observation_and_not_from_the_next_episode() -> None:
    # gamma 0.5, lambda 0: A = r + 0.5 V(s') - V(s). The next episode begins with an observation worth 50.
    known = Known(3, 1, gamma=0.5, gae_lambda=0.0)
    known.add(1, 2, rewards=1)
    known.add(2, 8, rewards=1, truncated=True)  # ends in an observation worth 8
    known.add(50, 60, rewards=1)
    judged = known.judged()
    assert judged["values"] == [[1.0], [2.0], [50.0]]
    assert judged["advantages"] == [[1 + 0.5 * 2 - 1], [1 + 0.5 * 8 - 2], [1 + 0.5 * 60 - 50]]
    assert judged["returns"] == [[1 + 0.5 * 2], [1 + 0.5 * 8], [1 + 0.5 * 60]]


def test_a_termination_is_worth_its_reward_alone() -> None:
    known = Known(3, 1, gamma=0.5, gae_lambda=0.0)
    known.add(1, 2, rewards=1)
    known.add(2, 8, rewards=1, terminated=True)
    known.add(50, 60, rewards=1, terminated=True)  # at the rollout's end, too
    assert known.judged()["returns"] == [[1 + 0.5 * 2], [1.0], [1.0]]


def test_both_flags_at_once_are_a_termination() -> None:
    known = Known(2, 1, gamma=0.5, gae_lambda=0.0)
    known.add(1, 2, rewards=1, terminated=True, truncated=True)
    known.add(3, 4, rewards=1)
    assert known.judged()["returns"] == [[1.0], [1 + 0.5 * 4]]


def test_each_env_has_its_own_ends() -> None:
    # lambda 1: returns are discounted sums up to the end, then gamma * V of what follows.
    known = Known(2, 3, gamma=0.5, gae_lambda=1.0)
    known.add([1, 2, 3], [5, 6, 7], rewards=[1, 1, 1], truncated=[True, False, False], terminated=[False, True, False])
    known.add([10, 20, 30], [8, 9, 4], rewards=[2, 2, 2])
    assert known.judged()["returns"] == [
        [1 + 0.5 * 5, 1.0, 1 + 0.5 * (2 + 0.5 * 4)],
        [2 + 0.5 * 8, 2 + 0.5 * 9, 2 + 0.5 * 4],
    ]


def test_a_lost_life_cuts_what_comes_after_it() -> None:
    # The collector marks the step as terminated, although the episode goes on; lambda 1, no discount.
    known = Known(3, 1, gamma=1.0, gae_lambda=1.0)
    known.add(0, 0, rewards=1)
    known.add(0, 0, rewards=1, terminated=True)
    known.add(0, 7, rewards=100)
    assert known.judged()["returns"] == [[2.0], [1.0], [107.0]]


def test_a_rollout_goes_on_in_the_next_one() -> None:
    known = Known(1, 2, gamma=0.5, gae_lambda=0.9)
    known.add([1, 1], [4, 6], rewards=1)
    assert known.judged()["returns"] == [[1 + 0.5 * 4, 1 + 0.5 * 6]]
    known.add([4, 6], [0, 2], rewards=1, terminated=[True, False])
    assert known.judged()["returns"] == [[1.0, 1 + 0.5 * 2]]
