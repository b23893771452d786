"""A buffer in a file uses only memory that the system can reclaim, in training and when saved or loaded."""

import contextlib
import ctypes
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from builders import make_config, make_setup
from rl_training.core import memory_limits
from rl_training.core.frame_space import FrameStackSpace
from rl_training.data.mapped_memory import mapped_zeros
from rl_training.data.replay_buffer import ReplayBuffer, build_replay_buffer
from rl_training.errors import ConfigError
from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from rl_training.experiment.state_files import flatten, read_tensors, write_tensors
from rl_training.runtime.trainer import train
from state_comparison import assert_identical, clone

MEBIBYTE = 2**20
NUMBERS = 16_384 - 2  # of an observation
STATUS = Path("/proc/self/status")

needs_proc = pytest.mark.skipif(not STATUS.is_file(), reason="the system does not tell what a process holds")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mapped"
    folder.mkdir()
    monkeypatch.setenv("RL_TRAINING_MMAP_DIR", str(folder))
    return folder


def own_memory() -> int:
    """Return the bytes of RAM that only this process can free; pages read from files do not count.

    Memory that is free goes back to the system first. What the C library keeps of it depends on earlier tests.
    """
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == "RssAnon:")


def growth(action: Callable[[], Any]) -> tuple[int, Any]:
    before = own_memory()
    result = action()
    return own_memory() - before, result


def large_buffer(memory: str, seed: int = 0) -> ReplayBuffer:
    """1,000 rows of 128 KiB, half of it an observation.

    The C library takes arrays of up to 32 MiB from memory that earlier tests freed; filling those takes none.
    """
    space = Box(-np.inf, np.inf, (NUMBERS,), np.float32)
    buffer = build_replay_buffer(make_setup(observation=space, memory=memory, buffer_capacity=1_000, seed=seed))
    assert isinstance(buffer, ReplayBuffer)
    return buffer


def fill(buffer: ReplayBuffer, rows: int = 1_000) -> None:
    for number in range(rows):
        obs = np.full((1, NUMBERS), number, np.float32)
        buffer.add(
            {
                "obs": obs,
                "next_obs": obs + 1,
                "actions": np.array([number % 2]),
                "rewards": np.array([number]),
                "terminated": np.array([False]),
            }
        )


def test_a_mapped_buffer_holds_what_one_in_memory_holds(folder: Path) -> None:
    mapped, plain = large_buffer("mmap"), large_buffer("ram")
    for buffer in (mapped, plain):
        fill(buffer, 1_100)
    assert_identical(mapped.sample(64), plain.sample(64))


def test_a_mapped_buffer_leaves_no_file_behind(folder: Path) -> None:
    buffer = large_buffer("mmap")
    fill(buffer, 10)
    assert list(folder.iterdir()) == []  # there is no name to remove, even if the process is killed


@needs_proc
def test_filling_a_mapped_buffer_uses_no_memory_of_the_process(folder: Path) -> None:
    buffer = large_buffer("ram")
    assert growth(lambda: fill(buffer))[0] > 50 * MEBIBYTE  # the measure sees it where it is taken
    buffer = large_buffer("mmap")
    assert growth(lambda: fill(buffer))[0] < 8 * MEBIBYTE


@needs_proc
def test_neither_saving_nor_loading_copies_the_buffer_into_memory(folder: Path, tmp_path: Path) -> None:
    buffer, copy = large_buffer("mmap"), large_buffer("mmap", seed=1)
    fill(buffer)
    path = tmp_path / "memory.safetensors"
    tensors, values = flatten(buffer.state_dict())
    assert growth(lambda: write_tensors(path, tensors))[0] < 8 * MEBIBYTE
    taken, state = growth(lambda: read_tensors(path))
    assert taken < 8 * MEBIBYTE
    generator = {"generator": buffer.state_dict()["generator"]}
    assert growth(lambda: copy.load_state_dict({**state, **values, **generator}))[0] < 8 * MEBIBYTE
    assert_identical(copy.sample(64), buffer.sample(64))


def test_a_buffer_larger_than_the_disk_is_refused_with_both_figures(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rl_training.data.mapped_memory.shutil.disk_usage", lambda path: SimpleNamespace(free=3 * 2**30)
    )
    setup = make_setup(observation=Box(0, 255, (84, 84, 4), np.uint8), memory="mmap", buffer_capacity=100_000)
    with pytest.raises(ConfigError, match=rf"needs 5\.3 GiB, but only 3\.0 GiB are free in {folder}; lower .*MMAP_DIR"):
        build_replay_buffer(setup)


def test_a_mapped_buffer_may_be_larger_than_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 1)
    build_replay_buffer(make_setup(memory="mmap"))
    with pytest.raises(ConfigError, match=r"lower algo_kwargs\.buffer_capacity, or .* algo_kwargs\.memory: mmap"):
        build_replay_buffer(make_setup(memory="ram"))


def test_the_log_names_the_folder_of_the_file(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rl_training"):
        build_replay_buffer(make_setup(memory="mmap", buffer_capacity=10_000))
    assert caplog.messages == [f"replay buffer: 10,000 transitions, 0.4 MiB in a file in {folder}"]


def test_a_folder_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_MMAP_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"RL_TRAINING_MMAP_DIR names '.*nowhere', which is not a folder"):
        build_replay_buffer(make_setup(memory="mmap"))


def test_without_the_variable_files_are_in_the_systems_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RL_TRAINING_MMAP_DIR", raising=False)
    array = mapped_zeros((3, 5), np.dtype(np.float32))
    array[1] = 2.0
    assert array.sum() == 10.0
    assert array.flags.writeable


@pytest.mark.parametrize("observation", [None, FrameStackSpace(2, (2, 3, 3))], ids=["rows", "frames"])
def test_a_mapped_buffer_continues_from_one_in_memory_and_back(observation: Any, folder: Path) -> None:
    buffers = [build_replay_buffer(make_setup(observation=observation, memory=memory)) for memory in ("ram", "mmap")]
    shape = (1, 3) if observation is None else (1, 2, 3, 3)
    for number in range(30):
        obs = np.full(shape, number, np.uint8)
        ends = {"terminated": np.array([False]), "truncated": np.array([False])}
        step = {"obs": obs, "next_obs": obs + 1, "actions": np.array([0]), "rewards": np.array([1.0])}
        buffers[0].add({**step, **ends})
    buffers[1].load_state_dict(clone(buffers[0].state_dict()))
    expected = clone(buffers[0].state_dict())
    assert_identical(buffers[1].state_dict(), expected)
    buffers[0].load_state_dict(buffers[1].state_dict())
    assert_identical(buffers[0].state_dict(), expected)


def test_a_run_learns_the_same_from_a_mapped_buffer(folder: Path, tmp_path: Path) -> None:
    ends = []
    for memory in ("ram", "mmap"):
        result = train(make_config(tmp_path / memory, algo_kwargs={"memory": memory}))
        checkpoint = open_checkpoint(find_checkpoint(result.run_dir))
        ends.append({part: checkpoint.load(part) for part in ("policy", "memory")})
    assert_identical(ends[1], ends[0])
