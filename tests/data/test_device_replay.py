"""The replay buffer on the device: its rows, n-step returns and priorities are those of the host's buffers."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from rl_training.core.counters import Keys
from rl_training.core.spaces import Spaces, replay_fields
from rl_training.data.device_priorities import LANE, PriorityPlan, find_places, new_priorities
from rl_training.data.device_replay import DeviceReplay, ReplayPlan, stack_replays
from rl_training.data.n_step import NStepWindows
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.row_storage import RowStorage
from rl_training.data.sum_tree import SumTree
from rl_training.errors import CheckpointError, ConfigError
from state_comparison import assert_identical

SPACES = Spaces(Box(-1.0, 1.0, (2,)), Discrete(3))
PRIORITIES = PriorityPlan(alpha=0.5, beta_start=0.4, beta_end=1.0, total_updates=10)


LARGE = ("table", "upper")  # what priorities hold for each place


def storage(tensor: Tensor) -> int:
    """Return the address of the memory that a tensor is a part of."""
    return tensor.untyped_storage().data_ptr()


def make_replay(
    capacity: int = 7, *, num_envs: int = 2, batch_size: int = 1_000, n_step: int = 1, seed: int = 5, **changes: Any
) -> DeviceReplay:
    fields = replay_fields(SPACES, n_step=n_step)
    plan = ReplayPlan(
        capacity=capacity, fields=fields, num_envs=num_envs, batch_size=batch_size, n_step=n_step, **changes
    )
    return DeviceReplay(plan, [seed])


def push(replay: DeviceReplay, number: int) -> None:
    """Add rows whose rewards are 2 * number and 2 * number + 1."""
    for name, values in replay.incoming.items():
        numbers = torch.tensor([2.0 * number, 2.0 * number + 1]) * (name not in ("actions", "terminated", "truncated"))
        values.copy_(numbers.view(-1, *(1,) * (values.ndim - 1)))
    replay.push()


def rewards(replay: DeviceReplay, update: int) -> list[float]:
    found: list[float] = replay.sample(torch.tensor(update))["rewards"].tolist()
    return found


# --- Rows ------------------------------------------------------------------------------------------------------------


def test_the_ring_holds_the_newest_rows_and_samples_all_of_them_evenly() -> None:
    replay = make_replay()
    push(replay, 0)
    assert set(rewards(replay, 0)) == {0.0, 1.0}
    for number in range(1, 5):  # ten rows in a ring of seven
        push(replay, number)
    assert len(replay) == 7
    found = rewards(replay, 1)
    values, counts = np.unique(found, return_counts=True)
    assert values.tolist() == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert counts.min() > 100  # of 143 on average
    assert rewards(replay, 1) == found
    assert rewards(replay, 2) != found


def test_the_rows_come_back_and_a_state_of_another_kind_is_refused() -> None:
    replay, other = make_replay(), make_replay()
    for number in range(5):
        push(replay, number)
    state = replay.state_dict()
    other.load_state_dict(state)
    assert rewards(other, 3) == rewards(replay, 3)
    push(other, 9)
    assert set(rewards(other, 3)) == {5.0, 6.0, 7.0, 8.0, 9.0, 18.0, 19.0}
    with pytest.raises(CheckpointError, match="10 transitions were added to a ring of 7, found 6"):
        other.load_state_dict(state | {"rows": state["rows"][:6]})
    with pytest.raises(CheckpointError, match="do not fit"):
        other.load_state_dict({"rows": state["rows"], "layout": state["layout"]})
    with pytest.raises(RuntimeError, match="written by its loop"):
        replay.add({})
    with pytest.raises(ConfigError, match="buffer_capacity must be at least num_envs, 2, got 1"):
        make_replay(capacity=1)


@pytest.mark.parametrize("steps", [3, 5])  # five steps of two rows are more than the ring of seven holds
def test_steps_that_are_undone_leave_no_trace(steps: int) -> None:
    replay = make_replay(batch_size=4, n_step=2, gamma=0.9, priorities=PRIORITIES)

    def tensors() -> dict[str, Tensor]:
        parts = {name: values.clone() for part in replay._parts for name, values in part.changed.items()}
        return parts | {"rows": replay.rows.clone(), "ring_count": replay.count.clone()}

    for number in range(4):
        push(replay, number)
    before, undo = tensors(), replay.undoing(steps)
    for number in range(steps):
        push(replay, 20 + number)
        replay.sample(torch.tensor(number))
        replay.update_priorities(torch.full((4,), 3.0 + number))
    changed = {name for name, values in tensors().items() if not torch.equal(values, before[name])}
    assert changed >= {"rows", "ring_count", "table", "sums", "largest", "obs", "rewards"}
    undo()
    assert_identical(tensors(), before)


# --- N-step returns --------------------------------------------------------------------------------------------------


def step_of(obs: float, reward: float, *, terminated: bool = False, truncated: bool = False) -> dict[str, Tensor]:
    """One step of one environment, from `obs` to `obs` + 1."""
    values = {"obs": [[obs, obs]], "next_obs": [[obs + 1, obs + 1]], "actions": [int(obs) % 3], "rewards": [reward]}
    flags = {"terminated": torch.tensor([terminated]), "truncated": torch.tensor([truncated])}
    return {name: torch.tensor(value) for name, value in values.items()} | flags


def stored(replay: DeviceReplay) -> list[tuple[float, float, float, bool, float]]:
    """The rows: first observation, return, successor, terminated, discount."""
    rows = replay.layout.tensors(replay.rows.view(-1), len(replay))
    names = ("rewards", "terminated", "discounts")
    columns = [rows["obs"][:, 0], *(rows[name] for name in names[:1]), rows["next_obs"][:, 0]]
    return list(zip(*(column.tolist() for column in (*columns, *(rows[name] for name in names[1:]))), strict=True))


def add_steps(replay: DeviceReplay, steps: list[dict[str, Tensor]]) -> None:
    for one in steps:
        for name, values in replay.incoming.items():
            values.copy_(one[name])
        replay.push()


def test_windows_stop_at_the_end_of_an_episode_and_bootstrap_through_a_truncation() -> None:
    replay = make_replay(20, num_envs=1, n_step=3, gamma=0.5)
    episode = [step_of(0, 1.0), step_of(1, 2.0), step_of(2, 4.0), step_of(3, 8.0, terminated=True)]
    cut = [step_of(10, 16.0), step_of(11, 32.0, truncated=True)]
    add_steps(replay, [*episode, *cut, step_of(20, 64.0), step_of(21, 128.0)])
    assert stored(replay) == [
        (0.0, 1 + 0.5 * 2 + 0.25 * 4, 3.0, False, 0.125),  # three steps
        (1.0, 2 + 0.5 * 4 + 0.25 * 8, 4.0, True, 0.125),  # the last of them terminates
        (2.0, 4 + 0.5 * 8, 4.0, True, 0.25),  # only two are left
        (3.0, 8.0, 4.0, True, 0.5),
        (10.0, 16 + 0.5 * 32, 12.0, False, 0.25),  # cut off after two steps: the target bootstraps
        (11.0, 32.0, 12.0, False, 0.5),
    ]  # the windows of the last two steps are not full yet


def test_windows_equal_those_of_the_host() -> None:
    generator = np.random.default_rng(3)
    replay = make_replay(500, num_envs=4, n_step=5, gamma=0.9)
    host = NStepWindows(5, 0.9, 4, replay_fields(SPACES, n_step=5))
    expected = []
    for number in range(100):
        ended = generator.random((2, 4)) < [[0.1], [0.05]]
        step = {
            "obs": np.full((4, 2), number, np.float32) + np.arange(4)[:, None] / 8,
            "next_obs": np.full((4, 2), number + 1, np.float32),
            "actions": generator.integers(3, size=4),
            "rewards": generator.normal(size=4).astype(np.float32),
            "terminated": ended[0],
            "truncated": ended[1] & ~ended[0],
        }
        done = host.push(step)
        expected += [
            tuple(np.asarray(done[name][row]).tolist() for name in replay.layout.fields)
            for row in range(len(done["rewards"]))
        ]
        add_steps(replay, [{name: torch.from_numpy(values) for name, values in step.items()}])
    rows = replay.layout.tensors(replay.rows.view(-1), len(replay))
    found = list(zip(*(rows[name].tolist() for name in replay.layout.fields), strict=True))
    assert len(replay) == 4 * 96  # all but the last four steps of each
    by_start = {(row[0][0], row[2]): row for row in expected}
    for row in found:
        again = by_start[(row[0][0], row[2])]
        assert (row[1], row[4]) == (again[1], again[4])
        assert row[3] == pytest.approx(again[3], rel=1e-6)
        assert row[5] == pytest.approx(again[5], rel=1e-6)


def test_nothing_is_stored_before_the_first_window_is_full() -> None:
    replay = make_replay(n_step=3, gamma=0.5, priorities=PRIORITIES, batch_size=64)
    push(replay, 1)
    push(replay, 2)
    assert len(replay) == 0
    push(replay, 3)
    assert len(replay) == 2
    assert set(rewards(replay, 0)) == {2 + 0.5 * 4 + 0.25 * 6, 3 + 0.5 * 5 + 0.25 * 7}


# --- Priorities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 2, 5, 64, 1_000])
def test_places_are_those_of_the_hosts_sum_tree(capacity: int) -> None:
    generator = np.random.default_rng(capacity)
    tree, width = SumTree(capacity), int(np.ceil(np.sqrt(capacity)))
    priorities = generator.exponential(size=capacity) ** 3
    tree.set(np.arange(capacity), priorities)
    table = torch.zeros(width * width, dtype=torch.float64)
    table[:capacity] = torch.from_numpy(priorities)
    table = table.view(width, width)
    upper = torch.ones(width, width, dtype=torch.float64).triu()
    for _ in range(20):
        fractions = generator.random(32)
        found = find_places(table, table.sum(1), upper, torch.from_numpy(fractions))
        assert found.tolist() == tree.find_stratified_places(fractions).tolist()


class Fractions:
    """Stands in for the generator of the host's buffer: the numbers that the device draws."""

    def __init__(self, seed: int) -> None:
        self.seed, self.update = seed, 0

    def random(self, count: int) -> np.ndarray:
        row = torch.arange(count)
        keys = Keys(torch.full_like(row, self.seed), row, torch.zeros_like(row), torch.full_like(row, self.update))
        numbers: np.ndarray = keys.words(LANE, 1)[:, 0].double().numpy() * 2.0**-32
        return numbers


def test_batches_weights_and_priorities_equal_those_of_the_host() -> None:
    generator, fractions = np.random.default_rng(0), Fractions(5)
    replay = make_replay(23, batch_size=16, priorities=PRIORITIES)  # 16 of 23 rows: some come twice
    host = PrioritizedReplayBuffer(
        RowStorage(23, replay_fields(SPACES)),
        generator=fractions,  # type: ignore[arg-type]
        alpha=0.5,
        beta_start=0.4,
        beta_end=1.0,
        total_draws=10,
    )
    repeated = 0
    for update in range(40):
        push(replay, update)
        host.add({name: values.numpy() for name, values in replay.incoming.items()})
        fractions.update = update
        ours, theirs = replay.sample(torch.tensor(update)), host.sample(16)
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name])
        repeated += 16 - len(set(ours["rewards"].tolist()))
        errors = torch.from_numpy(generator.exponential(size=16).astype(np.float32) * 3)
        replay.update_priorities(errors)
        host.update_priorities(errors)
        saved = replay.state_dict()
        np.testing.assert_allclose(saved["priorities"], host._tree.priorities[: len(replay)], rtol=1e-12)
        assert saved["max_priority"] == pytest.approx(host._max_priority, rel=1e-12)
    assert repeated > 40
    assert host.beta == 1.0


def test_a_rows_share_of_the_batches_follows_its_td_error() -> None:
    replay = make_replay(4, batch_size=4_000, priorities=PRIORITIES)
    push(replay, 0)
    push(replay, 1)
    first = replay.sample(torch.tensor(0))
    assert first["weights"].tolist() == [1.0] * 4_000  # all priorities are equal at first
    replay.update_priorities(first["rewards"] ** 2)  # (|error| + 1e-6) ** 0.5: 0.001, 1, 2, 3
    batch = replay.sample(torch.tensor(0))
    counts = torch.bincount(batch["rewards"].long(), minlength=4) / 4_000
    assert counts.tolist() == pytest.approx([0.0, 1 / 6, 2 / 6, 3 / 6], abs=0.002)
    # beta is 0.4 at update 0, and the smallest priority has the weight 1.
    by_reward = {int(reward): weight for reward, weight in zip(batch["rewards"], batch["weights"], strict=True)}
    assert float(by_reward[3]) == pytest.approx(float(by_reward[1]) * (1 / 3) ** 0.4, rel=1e-3)
    push(replay, 4)  # new rows get the largest priority so far, 3, in place of the first two
    counts = torch.bincount(replay.sample(torch.tensor(0))["rewards"].long(), minlength=10) / 4_000
    assert counts[[2, 3, 8, 9]].tolist() == pytest.approx([2 / 11, 3 / 11, 3 / 11, 3 / 11], abs=0.002)


def test_a_row_that_comes_twice_gets_the_priority_of_its_last_error() -> None:
    # At both of its places in the batch, because on a GPU either may be written last.
    batch = {"td_errors": torch.tensor([1.0, 4.0, 9.0]), "places": torch.tensor([5, 2, 5])}
    new, _ = new_priorities({"largest": torch.tensor(1.0, dtype=torch.float64)}, batch, alpha=0.5)
    assert new["values"].tolist() == pytest.approx([3.0, 2.0, 3.0], rel=1e-5)
    assert float(new["largest"]) == pytest.approx(3.0, rel=1e-5)


def test_windows_and_priorities_come_back() -> None:
    settings: dict[str, Any] = {"n_step": 3, "gamma": 0.5, "priorities": PRIORITIES, "batch_size": 16}
    replay, other = (make_replay(**settings) for _ in range(2))
    for number in range(6):
        push(replay, number)
    replay.sample(torch.tensor(0))
    replay.update_priorities(torch.linspace(0.0, 5.0, 16))
    state = replay.state_dict()
    other.load_state_dict(state)
    for update in range(1, 4):
        for one in (replay, other):
            push(one, 6 + update)
        assert rewards(replay, update) == rewards(other, update)
    with pytest.raises(CheckpointError, match="prioritized was false"):
        other.load_state_dict({name: value for name, value in state.items() if name != "priorities"})
    with pytest.raises(CheckpointError, match="priorities must be above 0"):
        other.load_state_dict(state | {"priorities": 0 * state["priorities"]})
    with pytest.raises(CheckpointError, match="n-step windows must hold"):
        other.load_state_dict({name: value for name, value in state.items() if name != "windows"})


def test_members_release_their_memory_before_the_stack_takes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [make_replay(seed=seed, priorities=PRIORITIES) for seed in (5, 6)]
    tables: list[Any] = [member._priorities for member in members]
    own = [weakref.ref(each) for one in members for each in (one.rows, *(getattr(one._priorities, n) for n in LARGE))]
    held, build = list[bool](), DeviceReplay.__init__

    def noting(*args: Any, **kwargs: Any) -> None:
        held.extend(tensor() is not None for tensor in own)
        build(*args, **kwargs)

    monkeypatch.setattr(DeviceReplay, "__init__", noting)
    stack = stack_replays(members)
    assert held == [False] * 6
    shared: Any = stack._priorities
    for member, table in zip(members, tables, strict=True):
        assert storage(member.rows) == storage(stack.rows)
        assert [storage(getattr(table, name)) for name in LARGE] == [storage(getattr(shared, name)) for name in LARGE]


def test_a_member_of_a_stack_loads_what_it_held_alone() -> None:
    settings: dict[str, Any] = {"n_step": 3, "gamma": 0.5, "priorities": PRIORITIES, "batch_size": 16}
    single, *members = (make_replay(seed=seed, **settings) for seed in (5, 4, 5))
    stack_replays(members)
    for number in range(6):
        push(single, number)
    single.sample(torch.tensor(0))
    single.update_priorities(torch.linspace(0.0, 5.0, 16))
    members[1].load_state_dict(single.state_dict())
    assert_identical(members[1].state_dict(), single.state_dict())
    for update in range(1, 4):
        for one in (single, members[1]):
            push(one, 6 + update)
        assert rewards(single, update) == rewards(members[1], update)
    assert len(members[0]) == 0


def test_buffers_with_rows_cannot_be_stacked() -> None:
    members = [make_replay(seed=seed) for seed in (5, 6)]
    push(members[1], 3)
    with pytest.raises(RuntimeError, match="replay buffers must be stacked before rows are added or loaded"):
        stack_replays(members)


def test_the_members_of_a_stack_sample_as_each_does_alone() -> None:
    settings: dict[str, Any] = {"n_step": 2, "gamma": 0.5, "priorities": PRIORITIES, "batch_size": 16}
    singles, members = ([make_replay(9, seed=seed, **settings) for seed in (1, 2, 3)] for _ in range(2))
    stack = stack_replays(members)
    for one in (*singles, *members):
        push(one, 0)
    for update in range(12):
        for number, single in enumerate(singles):
            push(single, update + number)
            for name, values in single.incoming.items():
                stack.incoming[name][number] = values
        stack.push()
        batch = stack.sample(torch.full((3,), update))
        errors = batch["rewards"] + 0.1
        for number, single in enumerate(singles):
            alone = single.sample(torch.tensor(update))
            for name, values in alone.items():
                torch.testing.assert_close(batch[name][number], values)
            single.update_priorities(errors[number])
        stack.update_priorities(errors)
    for member, single in zip(members, singles, strict=True):
        ours, theirs = member.state_dict(), single.state_dict()
        assert torch.equal(ours["rows"], theirs["rows"])
        torch.testing.assert_close(ours["priorities"], theirs["priorities"])
