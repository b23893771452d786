"""Each frame is stored once, and every stack is returned as it was added."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from builders import make_setup
from rl_training.acceleration.transfers import Block
from rl_training.core import memory_limits
from rl_training.core.frame_space import FrameStackSpace
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces, replay_fields
from rl_training.data import frame_storage, row_storage
from rl_training.data.frame_storage import FrameStorage
from rl_training.data.n_step import NStepWindows
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer, build_replay_buffer
from rl_training.data.row_storage import RowStorage, Storage
from rl_training.errors import CheckpointError, ConfigError
from rl_training.hparams.dqn import DQNHParams
from state_comparison import assert_identical, clone

GAMMA = 0.5


def make_space(num_frames: int, layers: int = 1, size: int = 3) -> FrameStackSpace:
    return FrameStackSpace(num_frames, (num_frames * layers, size, size))


class StackingEnvs:
    """Envs that stack random pictures, now and then a repeated one, as the envs of the package do.

    `leaps`: the share of steps after which the stack is another one altogether, although the episode goes on.
    """

    def __init__(
        self, space: FrameStackSpace, num_envs: int, seed: int, *, ends: float = 0.15, leaps: float = 0.0
    ) -> None:
        self.space, self.num_envs = space, num_envs
        self.ends, self.leaps = ends, leaps
        self.rng = np.random.default_rng(seed)
        self.obs = np.stack([self._begin() for _ in range(num_envs)])

    def _picture(self) -> np.ndarray:
        if self.rng.random() < 0.1:
            return np.zeros(
                self.space.frame_shape, np.uint8
            )  # the same picture twice may be stored as one frame or two
        return self.rng.integers(0, 256, self.space.frame_shape, np.uint8)

    def _begin(self) -> np.ndarray:
        return np.concatenate([self._picture()] * self.space.num_frames)

    def step(self) -> dict[str, np.ndarray]:
        layers = self.space.frame_shape[0]
        obs, next_obs = self.obs, self.obs.copy()
        kinds = self.rng.choice(3, self.num_envs, p=[1 - self.ends, self.ends / 2, self.ends / 2])
        for env in range(self.num_envs):
            next_obs[env] = np.concatenate([obs[env, layers:], self._picture()])
            if self.rng.random() < self.leaps:
                next_obs[env] = self.rng.integers(0, 256, self.space.shape, np.uint8)
        self.obs = next_obs.copy()
        for ended in np.flatnonzero(kinds):
            self.obs[ended] = self._begin()
        return {
            "obs": obs,
            "next_obs": next_obs,
            "actions": self.rng.integers(4, size=self.num_envs),
            "rewards": self.rng.integers(-3, 4, size=self.num_envs).astype(np.float64),
            "terminated": kinds == 1,
            "truncated": kinds == 2,
        }


def make_storages(
    capacity: int, space: FrameStackSpace, *, num_envs: int = 1, n_step: int = 1
) -> tuple[FrameStorage, RowStorage]:
    """A storage that keeps each frame once, and a plain one."""
    fields = replay_fields(Spaces(space, Discrete(4)), n_step=n_step)
    windows = NStepWindows(n_step, GAMMA, num_envs, fields) if n_step > 1 else None
    frames = FrameStorage(capacity, fields, space, num_envs=num_envs, n_step=n_step, gamma=GAMMA)
    return frames, RowStorage(capacity, fields, windows=windows)


def all_rows(storage: Storage, first: int | None = None) -> dict[str, torch.Tensor]:
    """The stored rows from number `first` on, oldest first."""
    first = storage.first if first is None else first
    reader = storage.reader(storage.end - first, torch.device("cpu"))
    reader.fill(np.arange(first, storage.end) % storage.capacity)
    return {name: values.clone() for name, values in reader.batch.items()}


SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 2), st.sampled_from([3, 4]))  # frames, layers, size


@given(
    shape=SHAPES,
    num_envs=st.integers(1, 3),
    n_step=st.sampled_from([1, 3]),
    capacity=st.integers(3, 40),
    steps=st.integers(1, 60),
    leaps=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 2**32),
)
def test_stacks_equal_those_of_a_plain_storage(
    shape: tuple[int, int, int], num_envs: int, n_step: int, capacity: int, steps: int, leaps: float, seed: int
) -> None:
    space = make_space(*shape)
    frames, plain = make_storages(capacity, space, num_envs=num_envs, n_step=n_step)
    envs = StackingEnvs(space, num_envs, seed, leaps=leaps)
    for _ in range(steps):
        transitions = envs.step()
        frames.add(transitions)
        plain.add(transitions)
        assert frames.end == plain.end
        assert frames.first >= plain.first  # if the ring is full first, the oldest rows are discarded
        if frames.end > frames.first:
            assert_identical(all_rows(frames), all_rows(plain, frames.first))


@given(shape=SHAPES, num_envs=st.integers(1, 4), n_step=st.sampled_from([1, 3]), seed=st.integers(0, 2**32))
def test_long_episodes_fill_the_storage_to_its_capacity(
    shape: tuple[int, int, int], num_envs: int, n_step: int, seed: int
) -> None:
    space = make_space(*shape)
    frames, _ = make_storages(50, space, num_envs=num_envs, n_step=n_step)
    envs = StackingEnvs(space, num_envs, seed, ends=0.03)
    for _ in range(150):
        frames.add(envs.step())
    assert frames.end - frames.first == 50


def test_each_frame_is_stored_once() -> None:
    space = make_space(4)
    frames, _ = make_storages(100, space)
    envs = StackingEnvs(space, 1, seed=0, ends=0.0)
    for _ in range(30):
        frames.add(envs.step())
    assert len(frames.state_dict()["frames"]["older"]) == 31  # the first picture and one per step


def test_an_env_may_write_its_pictures_to_the_same_memory_again() -> None:
    space = make_space(3)
    frames, plain = make_storages(40, space, num_envs=2)
    envs = StackingEnvs(space, 2, seed=0)
    memory = {name: np.empty((2, *space.shape), np.uint8) for name in ("obs", "next_obs")}
    for _ in range(40):
        transitions = envs.step()
        for name, array in memory.items():
            array[:] = transitions[name]
        frames.add({**transitions, **memory})
        plain.add(transitions)
    assert_identical(all_rows(frames), all_rows(plain, frames.first))


def test_a_run_may_start_with_a_blank_picture() -> None:
    space = make_space(2)
    frames, plain = make_storages(10, space)
    envs = StackingEnvs(space, 1, seed=0, ends=0.0)
    envs.obs[:] = 0
    for _ in range(4):
        transitions = envs.step()
        frames.add(transitions)
        plain.add(transitions)
    assert_identical(all_rows(frames), all_rows(plain))


def test_an_env_whose_picture_does_not_change_does_not_hold_back_the_others() -> None:
    space = make_space(2)
    frames, plain = make_storages(10, space, num_envs=2)
    envs = StackingEnvs(space, 2, seed=0, ends=0.0)
    for _ in range(200):
        transitions = envs.step()
        for name in ("obs", "next_obs"):
            transitions[name][1] = 7
        frames.add(transitions)
        plain.add(transitions)
    assert frames.end - frames.first == 10
    assert_identical(all_rows(frames), all_rows(plain))


@given(seed=st.integers(0, 2**32), ends=st.sampled_from([0.1, 0.3, 0.6]), leaps=st.sampled_from([0.1, 0.5, 1.0]))
def test_no_row_outlives_its_frames(seed: int, ends: float, leaps: float) -> None:
    # Episodes end at different times, so that rows come in another order than their frames, of which there are too few.
    space = make_space(2, size=2)
    frames, plain = make_storages(120, space, num_envs=3, n_step=3)
    envs = StackingEnvs(space, 3, seed, ends=ends, leaps=leaps)
    for _ in range(120):
        transitions = envs.step()
        frames.add(transitions)
        plain.add(transitions)
        if frames.end > frames.first:
            assert_identical(all_rows(frames), all_rows(plain, frames.first))


def test_episodes_of_one_step_discard_the_oldest_rows_before_the_capacity_is_reached() -> None:
    space = make_space(2)
    frames, plain = make_storages(400, space)
    envs = StackingEnvs(space, 1, seed=0, ends=1.0)
    for _ in range(1_000):
        transitions = envs.step()
        frames.add(transitions)
        plain.add(transitions)
    held = frames.end - frames.first
    assert 420 // 2 <= held <= frames.ring_size // 2  # two frames per row, and room for a little more than 420
    assert_identical(all_rows(frames), all_rows(plain, frames.first))


def test_stacks_of_single_steps_are_views_on_one_block() -> None:
    space = make_space(3, layers=2)
    frames, _ = make_storages(20, space)
    envs = StackingEnvs(space, 1, seed=0)
    for _ in range(10):
        frames.add(envs.step())
    reader = frames.reader(8, torch.device("cpu"))
    reader.fill(np.arange(8))
    batch = reader.batch
    assert batch["obs"].untyped_storage().data_ptr() == batch["next_obs"].untyped_storage().data_ptr()
    assert batch["obs"].untyped_storage().nbytes() == 8 * 4 * 2 * 3 * 3  # k + 1 frames per row


def test_a_reader_continues_when_rows_without_shared_frames_are_added() -> None:
    space = make_space(3)
    frames, plain = make_storages(20, space)
    reader = frames.reader(12, torch.device("cpu"))
    envs = StackingEnvs(space, 1, seed=0)
    for step in range(12):
        envs.leaps = float(step == 8)
        transitions = envs.step()
        frames.add(transitions)
        plain.add(transitions)
        places = np.arange(12) % (step + 1)
        reader.fill(places)
        expected = plain.reader(12, torch.device("cpu"))
        expected.fill(places)
        assert_identical(reader.batch, expected.batch)


class FarBlock(Block):
    """A block whose device is another memory, as that of a GPU is."""

    transfers = 0

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        super().__init__(num_bytes, device)
        self.on_device = self.host.clone()

    def transfer(self) -> None:
        super().transfer()
        FarBlock.transfers += 1


@pytest.mark.parametrize("leaps", [0.0, 0.3])
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_batch_reaches_another_device_in_two_transfers(
    prioritized: bool, leaps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = make_space(3)
    near = make_buffer(make_storages(20, space)[0], prioritized=prioritized)
    far = make_buffer(make_storages(20, space)[0], prioritized=prioritized)
    envs = StackingEnvs(space, 1, seed=0, leaps=leaps)
    draw = near.sampler(6)
    monkeypatch.setattr(row_storage, "Block", FarBlock)
    monkeypatch.setattr(frame_storage, "Block", FarBlock)
    draw_far = far.sampler(6)
    for _ in range(10):
        transitions = envs.step()
        near.add(transitions)
        far.add(transitions)
        FarBlock.transfers = 0
        batch = draw_far()
        assert FarBlock.transfers == 2
        assert_identical(batch, draw())
        assert_identical(far.sample(6), near.sample(6))


# --- Sampling and saving ---------------------------------------------------------------------------------------------


def make_buffer(
    storage: Storage, *, prioritized: bool = False, seed: int = 0
) -> ReplayBuffer | PrioritizedReplayBuffer:
    generator = np.random.default_rng(seed)
    if not prioritized:
        return ReplayBuffer(storage, generator=generator)
    settings = {"alpha": 0.6, "beta_start": 0.4, "beta_end": 1.0, "total_draws": 50}
    return PrioritizedReplayBuffer(storage, generator=generator, **settings)  # type: ignore[arg-type]


def work(buffer: ReplayBuffer | PrioritizedReplayBuffer, envs: StackingEnvs, steps: int) -> list[dict[str, Any]]:
    batches = []
    for _ in range(steps):
        buffer.add(envs.step())
        if len(buffer):
            batch = buffer.sample(4)
            buffer.update_priorities(batch["obs"].float().mean((1, 2, 3)))
            batches.append(batch)
    return batches


@pytest.mark.parametrize("leaps", [0.0, 0.3])
def test_later_samples_and_adds_do_not_change_a_sample(leaps: float) -> None:
    space = make_space(3)
    buffer = make_buffer(make_storages(10, space)[0], prioritized=True)
    envs = StackingEnvs(space, 1, seed=0, leaps=leaps)
    kept = []
    for _ in range(20):
        buffer.add(envs.step())
        batch = buffer.sample(5)
        kept.append((batch, clone(batch)))
    for batch, copy in kept:
        assert_identical(batch, copy)


@pytest.mark.parametrize("prioritized", [False, True])
def test_discarded_rows_are_not_sampled(prioritized: bool) -> None:
    space = make_space(2)
    storage, _ = make_storages(200, space)
    buffer = make_buffer(storage, prioritized=prioritized)
    envs = StackingEnvs(space, 1, seed=0, ends=1.0)
    for number in range(500):
        buffer.add({**envs.step(), "rewards": np.array([number])})  # a row's reward is its number
        drawn = buffer.sample(8)["rewards"].long()
        assert storage.first <= int(drawn.min())
        assert int(drawn.max()) < storage.end
        buffer.update_priorities(torch.ones(8))
    assert len(buffer) < 200  # some were discarded
    expected = set(range(storage.first, storage.end))
    assert {int(number) for _ in range(40) for number in buffer.sample(100)["rewards"]} == expected


@given(
    num_envs=st.integers(1, 2),
    n_step=st.sampled_from([1, 3]),
    prioritized=st.booleans(),
    ends=st.sampled_from([0.1, 0.7]),
    leaps=st.sampled_from([0.0, 0.1]),
    before=st.integers(0, 80),
    seed=st.integers(0, 2**32),
)
def test_a_loaded_buffer_continues_like_the_saved_one(
    num_envs: int, n_step: int, prioritized: bool, ends: float, leaps: float, before: int, seed: int
) -> None:
    space = make_space(3)
    kind = {"num_envs": num_envs, "n_step": n_step}
    buffer = make_buffer(make_storages(30, space, **kind)[0], prioritized=prioritized)
    copy = make_buffer(make_storages(30, space, **kind)[0], prioritized=prioritized, seed=1)
    envs = StackingEnvs(space, num_envs, seed, ends=ends, leaps=leaps)
    work(buffer, envs, before)
    work(copy, StackingEnvs(space, num_envs, seed + 1, leaps=leaps), 20)  # loading replaces this content
    copy.load_state_dict(clone(buffer.state_dict()))
    assert_identical(copy.state_dict(), buffer.state_dict())
    for _ in range(60):
        transitions = envs.step()
        for other in (copy, buffer):
            other.add(transitions)
        if len(buffer):
            ours, theirs = copy.sample(4), buffer.sample(4)
            assert_identical(ours, theirs)
            for other in (copy, buffer):
                other.update_priorities(theirs["obs"].float().mean((1, 2, 3)))
    assert_identical(copy.state_dict(), buffer.state_dict())


@given(
    capacity=st.integers(12, 60),
    before=st.integers(1, 80),
    after=st.integers(0, 80),
    ends=st.sampled_from([0.1, 1.0]),
    n_step=st.sampled_from([1, 3]),
)
def test_a_full_storage_continues_in_a_larger_one(
    capacity: int, before: int, after: int, ends: float, n_step: int
) -> None:
    space = make_space(2)
    small, plain_small = make_storages(12, space, n_step=n_step)
    large, plain_large = make_storages(capacity, space, n_step=n_step)
    envs = StackingEnvs(space, 1, seed=before, ends=ends)
    for _ in range(before):
        transitions = envs.step()
        small.add(transitions)
        plain_small.add(transitions)
    large.load_state_dict(clone(small.state_dict()))
    assert large.end - large.first == small.end - small.first
    plain_large.load_state_dict(clone(plain_small.state_dict()))
    for _ in range(after):
        transitions = envs.step()
        large.add(transitions)
        plain_large.add(transitions)
    count = large.end - large.first
    assert count >= min(small.end - small.first, 12)
    if count:
        assert_identical(all_rows(large), all_rows(plain_large, plain_large.end - count))


def test_more_frames_than_a_smaller_storage_holds_leave_its_newest_rows() -> None:
    space = make_space(4)
    large, plain = make_storages(1_000, space)
    small, _ = make_storages(200, space)
    envs = StackingEnvs(space, 1, seed=0, leaps=1.0)  # four frames per row
    for _ in range(200):
        transitions = envs.step()
        large.add(transitions)
        plain.add(transitions)
    assert large.state_dict()["frames"]["older"].shape[0] > 2 * small.ring_size
    small.load_state_dict(clone(large.state_dict()))
    assert 0 < small.end - small.first < 200
    assert_identical(all_rows(small), all_rows(plain, plain.end - (small.end - small.first)))


def test_a_storage_that_loads_an_empty_one_is_empty() -> None:
    space = make_space(2)
    (frames, plain), (empty, _) = make_storages(10, space), make_storages(10, space)
    envs = StackingEnvs(space, 1, seed=0, ends=0.0)
    frames.add(envs.step())
    frames.load_state_dict(clone(empty.state_dict()))
    transitions = envs.step()  # continues from the one that is no longer stored
    frames.add(transitions)
    plain.add(transitions)
    assert_identical(all_rows(frames), all_rows(plain))


def test_only_live_frames_are_saved() -> None:
    space = make_space(4)
    frames, _ = make_storages(40, space)
    envs = StackingEnvs(space, 1, seed=0, ends=0.0)
    for _ in range(100):
        frames.add(envs.step())
    saved = frames.state_dict()["frames"]
    assert len(saved["older"]) + len(saved["newer"]) == 40 + 4  # four frames of the oldest row, one of each other row


def test_frames_of_another_shape_are_refused() -> None:
    small, _ = make_storages(10, make_space(2, size=3))
    large, _ = make_storages(10, make_space(2, size=4))
    with pytest.raises(CheckpointError, match=r"stored frames do not fit: they have shape \[1, 3, 3\].*\[1, 4, 4\]"):
        large.load_state_dict(small.state_dict())


def test_a_stack_of_another_depth_is_refused() -> None:
    with pytest.raises(CheckpointError, match="stored transitions do not fit"):
        make_storages(10, make_space(2))[0].load_state_dict(make_storages(10, make_space(3))[0].state_dict())


# --- Built from the settings -----------------------------------------------------------------------------------------

ATARI = FrameStackSpace(4, (4, 84, 84))


@pytest.mark.parametrize(("capacity", "gibibytes"), [(1_000_000, 7.05), (100_000, 0.75)])
@pytest.mark.parametrize("n_step", [1, 3])
def test_the_memory_of_atari_transitions_is_about_that_of_one_frame_each(
    capacity: int, gibibytes: float, n_step: int
) -> None:
    fields = replay_fields(Spaces(ATARI, Discrete(18)), n_step=n_step)
    estimate = FrameStorage.num_bytes(capacity, fields, ATARI, num_envs=8, n_step=n_step)
    assert capacity * 84 * 84 < estimate < gibibytes * 2**30


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_estimate_is_what_is_allocated(n_step: int) -> None:
    allocated = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        allocated.append(np.zeros(shape, dtype))
        return allocated[-1]

    fields = replay_fields(Spaces(ATARI, Discrete(18)), n_step=n_step)
    FrameStorage(200, fields, ATARI, num_envs=2, n_step=n_step, allocate=allocate)
    estimate = FrameStorage.num_bytes(200, fields, ATARI, num_envs=2, n_step=n_step)
    assert sum(array.nbytes for array in allocated) == estimate


def make_atari_setup(**hparams: Any) -> Setup[DQNHParams]:
    return make_setup(observation=ATARI, num_actions=6, **hparams)


def test_the_builder_logs_the_size_of_the_buffer_before_the_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limits, "available_memory", lambda: None)
    with caplog.at_level(logging.INFO, "rl_training"):
        build_replay_buffer(make_atari_setup(buffer_capacity=1_000_000))
        build_replay_buffer(make_setup(buffer_capacity=10_000))
    assert caplog.messages == [
        "replay buffer: 1,000,000 transitions, 7.0 GiB",
        "replay buffer: 10,000 transitions, 0.4 MiB",  # 2 * 3 floats, action, reward, flag: 37, in words 40 bytes
    ]


def test_the_builder_refuses_frames_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 5 * 2**30)
    with pytest.raises(ConfigError, match=r"1,000,000 transitions needs 7\.0 GiB, but only 5\.0 GiB of memory"):
        build_replay_buffer(make_atari_setup(buffer_capacity=1_000_000))


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_the_builder_composes_frames_with_the_other_settings(prioritized: bool, n_step: int) -> None:
    buffer = build_replay_buffer(make_atari_setup(prioritized=prioritized, n_step=n_step, gamma=GAMMA))
    assert isinstance(buffer, PrioritizedReplayBuffer if prioritized else ReplayBuffer)
    assert isinstance(buffer.storage, FrameStorage)
    envs = StackingEnvs(ATARI, 1, seed=0)
    for _ in range(6):
        buffer.add(envs.step())
    batch = buffer.sample(5)
    assert batch["obs"].shape == batch["next_obs"].shape == (5, 4, 84, 84)
    assert batch["obs"].dtype == torch.uint8
    assert list(batch) == [
        *("obs", "next_obs", "actions", "rewards", "terminated"),
        *["discounts"] * (n_step > 1),
        *["weights"] * prioritized,
    ]
    assert set(batch.get("discounts", torch.empty(0)).tolist()) <= {GAMMA, GAMMA**2, GAMMA**3}


# --- The space -------------------------------------------------------------------------------------------------------


def test_spaces_with_stacks_of_different_depths_are_not_equal() -> None:
    space = FrameStackSpace(2, (6, 5, 5))
    assert space.frame_shape == (3, 5, 5)
    assert space == FrameStackSpace(2, (6, 5, 5))
    assert space != FrameStackSpace(3, (6, 5, 5))
    assert space != Box(0, 255, (6, 5, 5), np.uint8)
    assert space != FrameStackSpace(2, (6, 5, 5), high=1)
    assert repr(space) == "FrameStackSpace(2, (6, 5, 5), high=255)"


def test_a_number_of_layers_that_is_not_a_multiple_of_the_frames_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a stack of 4 frames needs a multiple of 4 layers, got \(6, 5, 5\)"):
        FrameStackSpace(4, (6, 5, 5))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_dataset_is_stored_row_by_row_before_the_steps_of_all_envs(num_envs: int) -> None:
    space = make_space(4)
    fields = replay_fields(Spaces(space, Discrete(4)))
    storage = FrameStorage(200, fields, space, num_envs=num_envs)
    recorded = StackingEnvs(space, 1, 6)
    steps = [recorded.step() for _ in range(50)]
    dataset = {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}
    storage.add_dataset(dataset)
    envs = StackingEnvs(space, num_envs, 7)
    later = [envs.step() for _ in range(20)]
    for step in later:
        storage.add(step)
    expected = {name: np.concatenate([dataset[name], *(step[name] for step in later)]) for name in dataset}
    rows = len(expected["rewards"])
    assert storage.end - storage.first == rows
    reader = storage.reader(rows, torch.device("cpu"))
    reader.fill(np.arange(rows))
    stored = reader.snapshot()
    for name in ("obs", "next_obs", "actions", "rewards", "terminated"):
        assert np.array_equal(stored[name].numpy(), expected[name]), name
    assert storage._end < 3 * rows  # frames that follow each other are shared
