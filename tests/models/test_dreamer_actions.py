"""Dreamer's actions of every kind: probabilities and entropies by hand, samples, and what the world model sees."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor

from rl_training.errors import SpaceError
from rl_training.models.dreamer_actions import Actions, build_actions

SPACES: dict[str, gym.Space[Any]] = {
    "discrete": Discrete(3, start=5),
    "multidiscrete": MultiDiscrete([2, 3, 3]),
    "multibinary": MultiBinary((2, 2)),
    "box": Box(-3.0, 5.0, (2, 1), np.float32),
}


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def entropy(*probabilities: float) -> float:
    return -sum(p * math.log(p) for p in probabilities)


def evaluated(kind: Actions, outputs: list[float], action: Any) -> tuple[float, float]:
    """Log-probability and entropy of one action, with two axes in front as in an imagined batch."""
    log_prob, spread = kind.evaluate(torch.tensor([[outputs]]), torch.tensor([[action]]))
    assert log_prob.shape == spread.shape == (1, 1)
    return log_prob.item(), spread.item()


# --- Log-probabilities and entropies by hand -------------------------------------------------------------------------


def test_a_choice_by_hand() -> None:
    found = evaluated(build_actions(Discrete(3), 0.0), logs(0.5, 0.3, 0.2), 1)
    assert found == pytest.approx((math.log(0.3), entropy(0.5, 0.3, 0.2)))


def test_a_uniform_share_is_part_of_the_policy() -> None:
    # 0.8 (3/4, 1/4) + 0.2 (1/2, 1/2) = (0.7, 0.3).
    found = evaluated(build_actions(Discrete(2), 0.2), logs(0.75, 0.25), 0)
    assert found == pytest.approx((math.log(0.7), entropy(0.7, 0.3)))


def test_several_choices_are_summed_not_averaged() -> None:
    kind = build_actions(MultiDiscrete([2, 3, 3]), 0.0)
    outputs = logs(0.9, 0.1) + logs(0.5, 0.3, 0.2) + logs(0.2, 0.2, 0.6)
    expected = entropy(0.9, 0.1) + entropy(0.5, 0.3, 0.2) + entropy(0.2, 0.2, 0.6)
    assert evaluated(kind, outputs, [0, 2, 1]) == pytest.approx((math.log(0.9 * 0.2 * 0.2), expected))


def test_switches_are_choices_of_two() -> None:
    kind = build_actions(MultiBinary(2), 0.0)
    outputs = logs(0.9, 0.1) + logs(0.4, 0.6)
    expected = entropy(0.9, 0.1) + entropy(0.4, 0.6)
    assert evaluated(kind, outputs, [0, 1]) == pytest.approx((math.log(0.9 * 0.6), expected))


def test_numbers_by_hand() -> None:
    # Means tanh(0) and tanh(1); deviations 0.9 sigmoid(x + 2) + 0.1 at x = -2 and 0: 0.55 and 0.8927.
    kind, mean, std = build_actions(Box(-1.0, 1.0, (2,), np.float32), 0.0), math.tanh(1.0), 0.9 / (1 + math.e**-2) + 0.1
    log_prob = -0.5 * (0.55 / 0.55) ** 2 - math.log(0.55) - 0.5 * (0.5 / std) ** 2 - math.log(std)
    spread = 1.0 + math.log(2 * math.pi) + math.log(0.55) + math.log(std)
    found = evaluated(kind, [0.0, 1.0, -2.0, 0.0], [0.55, mean - 0.5])
    assert found == pytest.approx((log_prob - math.log(2 * math.pi), spread), rel=1e-5)


def test_a_number_outside_the_bounds_keeps_the_density_of_the_normal() -> None:
    kind = build_actions(Box(-1.0, 1.0, (1,), np.float32), 0.0)
    std = 0.9 / (1 + math.e**-2) + 0.1
    expected = -0.5 * (3.0 / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)
    assert evaluated(kind, [0.0, 0.0], [3.0])[0] == pytest.approx(expected)


def test_deviations_stay_in_their_range() -> None:
    kind = build_actions(Box(-1.0, 1.0, (1,), np.float32), 0.0)
    outputs = torch.tensor([[0.0, -1e3], [0.0, 0.0], [0.0, 1e3]])
    drawn = kind.draw(outputs, torch.ones(3, 1)).flatten().tolist()  # the mean, 0, and one deviation
    assert drawn == pytest.approx([0.1, 0.8927, 1.0], abs=1e-4)


# --- For every kind --------------------------------------------------------------------------------------------------


def drawn_actions(name: str, rows: int, seed: int = 0) -> tuple[Actions, Tensor, Tensor]:
    kind = build_actions(SPACES[name], 0.01)
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(kind.num_outputs, generator=generator).expand(rows, -1)
    sample = torch.rand if kind.noise == "uniform" else torch.randn
    return kind, outputs, kind.draw(outputs, sample(rows, kind.noise_size, generator=generator))


@pytest.mark.parametrize("name", SPACES)
def test_the_mean_surprise_of_samples_is_the_entropy(name: str) -> None:
    kind, outputs, actions = drawn_actions(name, 20_000)
    log_prob, spread = kind.evaluate(outputs, actions)
    assert -log_prob.mean().item() == pytest.approx(spread[0].item(), abs=0.03)


@pytest.mark.parametrize("name", SPACES)
def test_without_noise_the_most_likely_action_is_taken(name: str) -> None:
    kind, outputs, actions = drawn_actions(name, 200)
    best = kind.draw(outputs, None)
    assert best.shape == actions.shape == (200, *(SPACES[name].shape or ()))
    assert kind.evaluate(outputs, best)[0][0] >= kind.evaluate(outputs, actions)[0].max()


@pytest.mark.parametrize("name", SPACES)
def test_leading_axes_make_no_difference(name: str) -> None:
    kind, outputs, actions = drawn_actions(name, 6)
    shape = SPACES[name].shape or ()
    log_prob, _ = kind.evaluate(outputs.reshape(2, 3, -1), actions.reshape(2, 3, *shape))
    torch.testing.assert_close(log_prob.flatten(), kind.evaluate(outputs, actions)[0])
    encoded = kind.encode(actions.reshape(2, 3, *shape))
    assert encoded.shape == (2, 3, kind.num_inputs)
    assert torch.equal(encoded.flatten(0, 1), kind.encode(actions))


def test_the_world_model_sees_one_hots_or_numbers_within_the_bounds() -> None:
    choices = build_actions(SPACES["multidiscrete"], 0.01).encode(torch.tensor([[1, 2, 0]]))
    assert choices.tolist() == [[0, 1, 0, 0, 1, 1, 0, 0]]
    switches = build_actions(MultiBinary(2), 0.01).encode(torch.tensor([[1, 0]]))
    assert switches.tolist() == [[0, 1, 1, 0]]
    numbers = build_actions(SPACES["box"], 0.01).encode(torch.tensor([[[-0.5], [7.0]]]))
    assert numbers.tolist() == [[-0.5, 1.0]]


def test_scores_of_an_export_decide_as_the_policy_does() -> None:
    kind, outputs, _ = drawn_actions("multibinary", 1)
    scores = kind.scores(outputs)
    assert scores is not None
    assert torch.equal((scores > 0.0).long().view(1, 2, 2), kind.draw(outputs, None))
    kind, outputs, _ = drawn_actions("discrete", 1)
    scores = kind.scores(outputs)
    assert scores is not None
    assert torch.equal(scores.argmax(-1), kind.draw(outputs, None))
    assert build_actions(SPACES["box"], 0.0).scores(torch.zeros(1, 4)) is None


def test_other_spaces_are_refused() -> None:
    with pytest.raises(SpaceError, match="there are no actions of Dict"):
        build_actions(Dict({"a": Discrete(2)}), 0.0)
