"""Blocks are copied without waiting and never overwritten too early; captured steps read fixed tensors in place."""

from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.acceleration import steps, transfers
from rl_training.acceleration.acting import act_function, meanwhile
from rl_training.acceleration.steps import accelerate
from rl_training.acceleration.transfers import Block, is_fixed, mark_fixed
from rl_training.core.types import Batch, Metrics, State
from rl_training.learners.random_inputs import MemberInputs, RandomInput, RandomInputs, normal, uniform

CPU = torch.device("cpu")


def test_on_the_cpu_a_block_is_one_piece_of_memory() -> None:
    block = Block(20, CPU)
    assert block.host is block.on_device
    assert len(block.host) == 3  # words of 8 bytes
    block.wait()
    block.transfer()


def test_a_transfer_is_marked_by_an_event_that_is_waited_for_before_the_next() -> None:
    block, order = Block(16, CPU), MagicMock()
    block.on_device, block._copied = MagicMock(copy_=order.copy), order
    block.transfer()
    block.wait()
    assert [call[0] for call in order.mock_calls] == ["copy", "record", "synchronize"]
    assert order.copy.call_args.kwargs == {"non_blocking": True}


# --- Captured steps --------------------------------------------------------------------------------------------------


def add_rows(state: State, batch: Batch) -> tuple[State, Metrics]:
    total = state["total"] + batch["rows"].sum()
    return {"total": total}, {"total": total}


@pytest.fixture
def _plain_captures(recorded_graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_compile", lambda step, *_: accelerate(step, "eager"))


def fixed(*values: float) -> Tensor:
    rows = torch.tensor(values)
    mark_fixed({"rows": rows})
    return rows


@pytest.mark.usefixtures("_plain_captures")
def test_a_captured_step_reads_fixed_tensors_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = MagicMock(side_effect=torch._foreach_copy_)
    monkeypatch.setattr(torch, "_foreach_copy_", copy)
    state, update, rows = {"total": torch.tensor(0.0)}, accelerate(add_rows, "cuda_graph"), fixed(1.0, 2.0)
    assert update(state, {"rows": rows})["total"] == 3.0
    rows[0] = 5.0
    assert update(state, {"rows": rows})["total"] == 10.0
    assert copy.call_count == 0


@pytest.mark.usefixtures("_plain_captures")
def test_other_fixed_tensors_have_a_capture_of_their_own_and_overwrite_nothing() -> None:
    state, update = {"total": torch.tensor(0.0)}, accelerate(add_rows, "cuda_graph")
    first, second = fixed(1.0, 2.0), fixed(10.0, 20.0)
    totals = [
        float(update(state, {"rows": rows})["total"]) for rows in (first, second, first, torch.tensor([0.5, 0.5]))
    ]
    assert totals == [3.0, 33.0, 36.0, 37.0]
    assert (first.tolist(), second.tolist()) == ([1.0, 2.0], [10.0, 20.0])


@pytest.mark.usefixtures("_plain_captures")
@pytest.mark.parametrize(("reuses", "kept"), [(False, 1.0), (True, 3.0)])
def test_metrics_are_copied_unless_the_caller_wants_the_latest_only(reuses: bool, kept: float) -> None:
    state, update = {"total": torch.tensor(0.0)}, accelerate(add_rows, "cuda_graph", reuses_metrics=reuses)
    first = update(state, {"rows": torch.tensor([1.0])})
    assert update(state, {"rows": torch.tensor([2.0])})["total"] == 3.0
    assert first["total"] == kept


# --- Acting ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("recorded_graphs")
def test_the_host_works_while_the_device_computes_actions() -> None:
    order, network = MagicMock(), nn.Linear(2, 2)
    forward = act_function(network.requires_grad_(False), CPU, "cuda_graph")
    obs = np.ones((1, 2), np.float32)
    expected = network(torch.from_numpy(obs)).numpy()
    torch.cuda.Event.return_value = order  # type: ignore[attr-defined]
    with meanwhile(order.work):
        np.testing.assert_array_equal(forward(obs), expected)
        network.weight.zero_()
    assert [call[0] for call in order.mock_calls] == ["record", "work", "synchronize"]
    np.testing.assert_array_equal(forward(obs), network.bias.numpy()[None])  # reads the new weights; no work is left
    assert order.work.call_count == 1


def test_work_is_done_at_the_end_where_no_device_was_asked() -> None:
    order = MagicMock()
    with meanwhile(order.work):
        order.act()
    assert [call[0] for call in order.mock_calls] == ["act", "work"]


def test_an_error_while_acting_leaves_no_work_behind() -> None:
    work = MagicMock()
    with pytest.raises(ZeroDivisionError), meanwhile(work):
        raise ZeroDivisionError
    with meanwhile(lambda: None):
        pass
    assert work.call_count == 0


# --- Random inputs ---------------------------------------------------------------------------------------------------


def fill_places(generator: np.random.Generator, out: np.ndarray) -> None:
    out[:] = generator.integers(10, size=out.shape)


INPUTS = {
    "noise": RandomInput((500, 3), normal),
    "places": RandomInput((7,), fill_places, np.int64),
    "taus": RandomInput((40, 5), uniform),
    "more": RandomInput((500, 3), normal),
}


def drawn(seed: int, *, draws: bool) -> dict[str, np.ndarray]:
    batch = RandomInputs(INPUTS, CPU, draws=draws).fill(np.random.default_rng(seed))
    assert all(map(is_fixed, batch.values()))
    return {name: values.numpy().copy() for name, values in batch.items()}


def test_the_host_draws_inputs_in_their_order_from_one_generator() -> None:
    generator, found = np.random.default_rng(3), drawn(3, draws=False)
    for name, draw in INPUTS.items():
        expected = np.zeros(draw.shape, draw.dtype)
        draw.fill(generator, expected)
        np.testing.assert_array_equal(found[name], expected)


def test_numbers_of_the_device_depend_on_the_generator_alone() -> None:
    first, again, other = drawn(3, draws=True), drawn(3, draws=True), drawn(4, draws=True)
    for name in INPUTS:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])
    assert first["places"].dtype == np.int64
    assert not np.array_equal(first["noise"], first["more"])
    assert first["taus"].min() >= 0.0
    assert first["taus"].max() < 1.0
    assert abs(first["taus"].mean() - 0.5) < 0.1
    assert abs(first["noise"].mean()) < 0.1
    assert abs(first["noise"].std() - 1.0) < 0.1


def test_each_fill_draws_new_numbers_into_the_same_tensors() -> None:
    inputs, generator = RandomInputs(INPUTS, CPU, draws=True), np.random.default_rng(0)
    first = inputs.fill(generator)
    before = {name: values.clone() for name, values in first.items()}
    second = inputs.fill(generator)
    for name, values in second.items():
        assert values is first[name]
        assert not torch.equal(values, before[name])


def test_no_inputs_draw_nothing() -> None:
    generator: Any = MagicMock()
    assert RandomInputs({}, CPU).fill(generator) == {}
    assert generator.mock_calls == []


def test_words_of_numpy_become_those_of_torch() -> None:
    assert transfers.torch_dtype(np.dtype(np.float32)) is torch.float32


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("rounds", [1, 2])
def test_each_member_of_a_stack_draws_what_it_would_draw_alone(rounds: int, draws: bool) -> None:
    def integers(generator: np.random.Generator, out: np.ndarray) -> None:
        out[:] = generator.integers(10, size=out.shape)

    inputs = {
        "noise": RandomInput((4, 3), normal),
        "choice": RandomInput((2,), integers, np.int64),
        "more_noise": RandomInput((2, 5), normal),
        "shares": RandomInput((2,), uniform),
    }
    together = MemberInputs(inputs, rounds, 3, CPU, draws=draws)
    generators = [np.random.default_rng(seed) for seed in range(3)]
    alone = [(RandomInputs(inputs, CPU, draws=draws), np.random.default_rng(seed)) for seed in range(3)]
    for _ in range(2):  # calls
        batch = {name: values.clone() for name, values in together.fill(generators).items()}
        for member, (own, generator) in enumerate(alone):
            for name, values in own.fill(generator).items():
                of_member = batch[name].unflatten(0, (rounds, 3))[:, member].flatten(0, 1)
                assert torch.equal(of_member, values), name
