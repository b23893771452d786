"""ReBRAC: both losses by hand, the first weights, next actions."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from builders import BOX, make_setup
from rl_training.algorithms.rebrac import rebrac_actor_loss, rebrac_critic_loss
from rl_training.algorithms.sac import minimum_over_critics
from rl_training.core.spaces import Spaces
from rl_training.data.dataset_memory import DatasetMemory
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.errors import DatasetError
from rl_training.hparams.rebrac import ReBRACHParams
from rl_training.models.encoders import build_encoder
from rl_training.models.layers import StackedLayerNorm, StackedLinear
from rl_training.models.mlp_rebrac import MLPReBRACModel
from test_td3_update import actor, critics, lines, make_rows

HALF = torch.tensor([math.atanh(0.5)])  # the output of an actor whose action is 0.5


# --- The losses by hand ----------------------------------------------------------------------------------------------


def test_the_target_is_lowered_by_the_distance_to_the_next_action_of_the_data_unless_terminated() -> None:
    # The next action is 0, that of the data 0.5: 2 + 0.5 * (min(5, 3) - 2 * 0.25) = 3.25; 2 after a termination.
    batch = make_rows([2.0, 2.0], [False, True]) | {"next_actions": torch.full((2, 1), 0.5)}
    metrics = rebrac_critic_loss(
        lines((1.0, 0.0), (4.0, 0.0)),
        lines((5.0, 0.0), (3.0, 0.0)),
        torch.zeros(1),
        batch,
        ReBRACHParams(gamma=0.5, critic_penalty=2.0),
        apply_actor=actor,
        apply_critics=critics,
    )
    assert metrics["target_mean"] == pytest.approx((3.25 + 2.0) / 2)
    assert metrics["loss"] == pytest.approx((2.25**2 + 0.75**2 + 1.0 + 4.0) / 2)


def test_the_actor_climbs_the_lesser_critic_divided_by_its_mean_size_and_stays_near_the_data() -> None:
    # Action 0.5, Q = min(1 + 2 a, -4 + 2 a) = -3, divided by 3. Squared distances to the data: 0 and 1.
    params = HALF.clone().requires_grad_()
    batch = make_rows([0.0, 0.0], [False, False]) | {"actions": torch.tensor([[0.5], [-0.5]])}
    metrics = rebrac_actor_loss(
        params,
        lines((1.0, 2.0), (-4.0, 2.0)),
        batch,
        penalty=0.4,
        estimate=minimum_over_critics,
        apply_actor=actor,
        apply_critics=critics,
    )
    assert metrics["loss"].item() == pytest.approx(0.4 * 0.5 + 1.0)
    assert metrics["action_error"].item() == pytest.approx(0.5)
    # The divisor is a constant: d/da = 0.4 * (0 + 2) / 2 - 2 / 3, times 1 - a^2 for the squashing.
    (gradient,) = torch.autograd.grad(metrics["loss"], params)
    assert gradient.item() == pytest.approx((0.4 - 2.0 / 3.0) * 0.75)


# --- First weights ---------------------------------------------------------------------------------------------------


def test_the_networks_begin_as_in_the_authors_code() -> None:
    model = MLPReBRACModel(lambda: build_encoder(make_setup().spaces.observation), 2, (16, 16, 16), layer_norm=True)
    assert [type(part).__name__ for part in model.critics.layers][:4] == [
        "StackedLinear",
        "ReLU",
        "StackedLayerNorm",
        "StackedLinear",
    ]
    assert not any(isinstance(part, nn.LayerNorm | StackedLayerNorm) for part in model.actor.modules())
    for part, limit in ((model.actor, 1e-3), (model.critics, 3e-3)):
        *hidden, last = [layer for layer in part.modules() if isinstance(layer, nn.Linear | StackedLinear)]
        assert len(hidden) == 3
        assert all(bool((layer.bias == 0.1).all()) for layer in hidden)
        assert all(0.0 < values.detach().abs().max() <= limit for values in (last.weight, last.bias))
        assert all(layer.weight.detach().abs().max() > 0.1 for layer in hidden)


# --- Next actions ----------------------------------------------------------------------------------------------------


def episodes(terminated: list[int], truncated: list[int]) -> TransitionDataset:
    """Six rows whose actions are their numbers, with episodes that end at these rows."""
    rows = np.arange(6)
    values = (rows / 10.0).astype(np.float32)
    return TransitionDataset(
        obs=np.tile(values[:, None], (1, 3)),
        next_obs=np.tile(values[:, None], (1, 3)),
        actions=np.tile(values[:, None], (1, 2)),
        rewards=values,
        terminated=np.isin(rows, terminated),
        truncated=np.isin(rows, truncated),
        spaces=Spaces(make_setup().spaces.observation, BOX),
    )


def sampled_pairs(dataset: TransitionDataset) -> set[tuple[float, float]]:
    memory = DatasetMemory(dataset, generator=np.random.default_rng(0), next_actions=True)
    batch = memory.sample(200)
    pairs = torch.stack((batch["actions"][:, 0], batch["next_actions"][:, 0]), 1).tolist()
    return {(round(action, 1), round(following, 1)) for action, following in pairs}


def test_next_actions_are_those_of_the_episode_and_rows_at_a_time_limit_are_left_out() -> None:
    # Rows 0, 1, 2 (terminates), 3, 4 (time limit), 5 (the last row, which nothing follows).
    found = sampled_pairs(episodes(terminated=[2], truncated=[4]))
    assert {pair for pair in found if pair[0] != 0.2} == {(0.0, 0.1), (0.1, 0.2), (0.3, 0.4)}
    assert {action for action, _ in found} == {0.0, 0.1, 0.2, 0.3}  # no target uses the next action of row 2


def test_a_dataset_without_a_single_next_action_is_refused() -> None:
    with pytest.raises(DatasetError, match="every episode is one truncated step"):
        sampled_pairs(episodes(terminated=[], truncated=list(range(6))))
