"""A stacked step updates all members at once; one that diverges keeps its state."""

import pytest
import torch

from rl_training.acceleration.stacking import ALIVE, stacked
from rl_training.core.types import Batch, Metrics, State


def square_step(state: State, batch: Batch) -> tuple[State, Metrics]:
    """Descend (params - target)^2 with step size 0.25; infinite targets diverge in the parameters, not in the loss."""
    params = state["params"] - 0.5 * (state["params"] - batch["target"])
    return {"params": params, "count": state["count"] + 1}, {"loss": (state["params"] - batch["target"]).square().sum()}


def test_a_member_that_diverges_keeps_its_state_and_the_others_do_not_notice() -> None:
    state = {"params": torch.ones(3, 2), "count": torch.zeros(3), ALIVE: torch.tensor([True] * 3)}
    batch = {"target": torch.tensor([[3.0, 5.0], [torch.nan, 0.0], [1.0, 1.0]])}
    new, _ = stacked(square_step)(state, batch)
    assert new["params"].tolist() == [[2.0, 3.0], [1.0, 1.0], [1.0, 1.0]]
    assert new["count"].tolist() == [1.0, 0.0, 1.0]
    assert new[ALIVE].tolist() == [True, False, True]
    again, _ = stacked(square_step)(new, {"target": torch.zeros(3, 2)})  # finite again, but it has ended
    assert again["params"].tolist() == [[1.0, 1.5], [1.0, 1.0], [0.5, 0.5]]
    assert again[ALIVE].tolist() == [True, False, True]


def test_parameters_that_are_no_longer_finite_are_not_kept_although_the_loss_is() -> None:
    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        return {"actor.params": state["actor.params"] / batch["divisor"]}, {"actor_loss": batch["divisor"]}

    state = {"actor.params": torch.ones(2, 4), ALIVE: torch.tensor([True, True])}
    new, _ = stacked(step)(state, {"divisor": torch.tensor([2.0, 0.0])})
    assert new["actor.params"].tolist() == [[0.5] * 4, [1.0] * 4]
    assert new[ALIVE].tolist() == [True, False]


def test_a_step_that_draws_random_numbers_is_refused() -> None:
    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        return {"params": state["params"] + torch.rand(2)}, {"loss": state["params"].sum()}

    with pytest.raises(RuntimeError, match="random"):
        stacked(step)({"params": torch.ones(2, 2), ALIVE: torch.tensor([True, True])}, {})
