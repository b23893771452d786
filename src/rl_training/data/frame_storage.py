"""Transitions whose observations are stacks of frames, each frame stored once.

Of the 2 k frames in the two stacks of a transition, all but one are also frames of the previous transition. Rows hold
frame numbers; the frames are in a ring of their own. Repeated frames are found by comparing pixels, so every stack is
returned exactly as it was added. An environment that does not stack frames only needs more of them.

The ring has room for a twentieth more frames than rows: one per row, and one more per episode for its first frame.
If episodes are shorter than twenty steps on average, the ring is full first and the oldest rows are discarded early.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from rl_training.acceleration.transfers import Block, mark_fixed
from rl_training.core.frame_space import FrameStackSpace
from rl_training.core.spaces import Field
from rl_training.core.state_checks import stored_array, stored_count
from rl_training.core.types import Batch, StateDict
from rl_training.data.annealed_n_step import AnnealedWindows
from rl_training.data.n_step import NStepWindows
from rl_training.data.row_storage import Allocate, Reader, RowStorage, write_ring
from rl_training.errors import CheckpointError

# A contiguous array of bytes. `Any`, because numpy declares the buffer protocol of arrays only from Python 3.12 on.
Pixels: TypeAlias = Any

_ROWS_PER_SPARE_FRAME = 20
_STACKS = ("obs", "next_obs")  # fields
_STACKS_KEPT = 2  # per env; 4 are as fast, 1 is slower, because its frames then move at every step


class FrameStorage:
    """Holds the last `capacity` transitions; `obs` and `next_obs` are stacks of frames."""

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        space: FrameStackSpace,
        *,
        num_envs: int = 1,
        n_step: int = 1,
        gamma: float = 1.0,
        annealed: AnnealedWindows | None = None,
        allocate: Allocate = np.zeros,
    ) -> None:
        """`annealed`: windows that are built when rows are sampled, of at most `n_step` steps."""
        self.capacity = capacity
        self.num_frames, self.num_envs = space.num_frames, num_envs
        self._fields = dict(fields)
        row_fields = _row_fields(fields, space)
        before = NStepWindows(n_step, gamma, num_envs, row_fields) if n_step > 1 and annealed is None else None
        windows = annealed or before
        self.rows = RowStorage(capacity, row_fields, windows=windows, allocate=allocate)
        self.ring_size = _ring_size(capacity, space, num_envs, n_step)
        self._spare = _spare_frames(space, num_envs, n_step)
        self._frame_shape = space.frame_shape
        self._frame_bytes = math.prod(space.frame_shape)
        self._frames = allocate((self.ring_size, self._frame_bytes), np.dtype(np.uint8))
        self._frame_memory = self._frames.data.cast("B")
        self._end = 0  # frames stored so far; frame n is in place n % ring_size
        # The numbers of the frames in the last `obs` and `next_obs` of each env, and the pixels of the latter.
        self._numbers, self._next_numbers = (_FrameNumbers(num_envs, self.num_frames) for _ in range(2))
        self._recent = [_RecentFrames(self.num_frames, self._frame_bytes) for _ in range(num_envs)]
        self._shares_frames = n_step == 1  # whether obs and next_obs of every row are k + 1 consecutive frames

    @property
    def first(self) -> int:
        return self.rows.first

    @property
    def end(self) -> int:
        return self.rows.end

    @staticmethod
    def num_bytes(
        capacity: int, fields: Mapping[str, Field], space: FrameStackSpace, *, num_envs: int = 1, n_step: int = 1
    ) -> int:
        """Return the bytes that such a storage needs."""
        frames = _ring_size(capacity, space, num_envs, n_step) * math.prod(space.frame_shape)
        return frames + RowStorage.num_bytes(capacity, _row_fields(fields, space))

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Store one step of every env."""
        self._add_step(transitions, self.num_envs)

    def add_dataset(self, transitions: Mapping[str, Any]) -> None:
        for row in range(len(transitions["rewards"])):
            self._add_step({name: values[row : row + 1] for name, values in transitions.items()}, 1)

    def _add_step(self, transitions: Mapping[str, Any], num_envs: int) -> None:
        """Store one step of the first `num_envs` envs."""
        obs = np.ascontiguousarray(transitions["obs"], np.uint8)
        next_obs = np.ascontiguousarray(transitions["next_obs"], np.uint8)
        self._store_step(obs, next_obs.reshape(num_envs, self.num_frames, self._frame_bytes))
        numbers, next_numbers = self._numbers.all[:num_envs], self._next_numbers.all[:num_envs]
        self.rows.add({**transitions, "obs_frames": numbers, "next_obs_frames": next_numbers})
        self._discard_overwritten()

    def _store_step(self, obs: np.ndarray, next_obs: np.ndarray) -> None:
        """Store the new frames of a step and record the numbers of all its frames."""
        now, after = self._next_numbers, self._numbers
        self._numbers, self._next_numbers = now, after
        after.all_but_last[...] = now.all_but_first
        for env, recent in enumerate(self._recent[: len(obs)]):
            stack, next_stack = obs[env], next_obs[env]
            if not recent.ends_with(stack):  # an episode starts
                recent.start_with(stack)
                now.all[env] = self._store_stack(stack)
                after.all_but_last[env] = now.all_but_first[env]
            if recent.continues_with(next_stack):
                frame = next_stack[-1]
                recent.append(frame)
                after.all[env, -1] = self._store(frame)
            else:  # not stacked frames, or an unrelated stack
                recent.start_with(next_stack)
                after.all[env] = self._store_stack(next_stack)
                self._shares_frames = False

    def _store(self, frame: Pixels) -> int:
        """Store one frame, (bytes,), and return its number."""
        number, size = self._end, self._frame_bytes
        start = number % self.ring_size * size
        self._frame_memory[start : start + size] = frame
        self._end = number + 1
        return number

    def _store_stack(self, stack: np.ndarray) -> list[int]:
        """Store a stack that continues no other and return the numbers of its frames.

        The first stack of an episode repeats one frame, which is stored once.
        """
        numbers: list[int] = []
        last = b""
        for frame in stack.reshape(self.num_frames, self._frame_bytes):
            pixels = frame.tobytes()
            numbers.append(numbers[-1] if pixels == last else self._store(frame))
            last = pixels
        return numbers

    def _discard_overwritten(self) -> None:
        """Discard the rows whose frames are or will soon be overwritten.

        Later rows use no frame that is older than these by `_spare` or more.
        """
        rows, oldest = self.rows, self._end - self.ring_size + self._spare
        if oldest <= 0:
            return
        frames = rows.arrays["obs_frames"]
        while rows.first < rows.end and frames.item(rows.first % rows.capacity, 0) < oldest:
            rows.discard_before(rows.first + 1)

    def reader(self, batch_size: int, device: torch.device, columns: tuple[str, ...] = ()) -> Reader:
        rows = self.rows.reader(batch_size, device, columns)
        numbers, next_numbers = rows.host["obs_frames"].numpy(), rows.host["next_obs_frames"].numpy()
        names = (*self._fields, *columns)
        no_stacks = {name: torch.empty((0, *self._fields[name].shape), dtype=torch.uint8) for name in _STACKS}
        batch = {name: (rows.batch | no_stacks)[name] for name in names}
        stacks: _StackReader | None = None

        def fill(places: np.ndarray) -> None:
            nonlocal stacks
            rows.fill(places)
            if stacks is None or stacks.shares_frames != self._shares_frames:  # handed out, or rows of another kind
                stacks = _StackReader(self, batch_size, device)
                batch.update(stacks.batch)
            stacks.fill(numbers, next_numbers)

        def snapshot() -> Batch:
            nonlocal stacks
            parts = {**batch, **rows.snapshot()}
            # Hand out the stacks instead of copying them: a copy takes as long as gathering them again.
            batch.update(no_stacks)
            stacks = None
            return {name: parts[name] for name in names}

        return Reader(batch_size, batch, rows.host, rows.wait, fill, snapshot)

    def obs_at(self, places: np.ndarray) -> np.ndarray:
        """Return the stacks in these places: (...) -> (..., *obs)."""
        numbers = self.rows.arrays["obs_frames"][places] % self.ring_size  # (..., frames)
        layers, *sides = self._frame_shape
        stacks: np.ndarray = self._frames.take(numbers, 0).reshape(*places.shape, self.num_frames * layers, *sides)
        return stacks

    def state_dict(self) -> StateDict:
        """Return the stored rows and the frames that they need."""
        return {
            **self.rows.state_dict(),
            "frame_shape": list(self._frame_shape),
            "frames": self._live_frames(),
            "frames_end": self._end,
            "numbers": self._next_numbers.all,
            "shares_frames": self._shares_frames,
        }

    def _check_numbers(self, first: int) -> None:
        """Raise `CheckpointError` if a row needs a frame that is not stored: frames `first` to the end are."""
        places = np.arange(self.rows.first, self.rows.end) % self.capacity
        for name in ("obs_frames", "next_obs_frames"):
            numbers = self.rows.arrays[name][places]
            if ((numbers < first) | (numbers >= self._end)).any():
                raise CheckpointError(f"rows need frames outside of {first} to {self._end - 1}, which are stored")

    def _live_frames(self) -> dict[str, np.ndarray]:
        """Return views of the frames in use, oldest first, in two parts: up to the ring's end and from its start."""
        places = np.arange(self.rows.first, self.rows.end) % self.capacity
        oldest = [self.rows.arrays[name][places].min(initial=self._end) for name in ("obs_frames", "next_obs_frames")]
        pending = self._end - self._spare if self.rows.windows is not None else self._next_numbers.all.min()
        first = max(0, int(min(*oldest, pending)))
        start, count = first % self.ring_size, self._end - first
        older = self._frames[start : start + count]
        return {"older": older, "newer": self._frames[: count - len(older)]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if list(state.get("frame_shape", [])) != list(self._frame_shape):
            raise CheckpointError(
                f"the stored frames do not fit: they have shape {state.get('frame_shape')}, "
                f"expected {list(self._frame_shape)}"
            )
        self.rows.load_state_dict(state)
        self._end = stored_count(state["frames_end"], "the number of frames")
        shape = (None, *self._frames.shape[1:])
        stored = [stored_array(state["frames"][name], "the frames", shape, np.uint8) for name in ("older", "newer")]
        parts = [torch.from_numpy(frames) for frames in stored]
        self._check_numbers(max(0, self._end - sum(map(len, parts))))
        number = self._end - sum(map(len, parts))
        for part in parts:
            skipped = min(len(part), max(0, self._end - self.ring_size - number))  # a smaller ring keeps the newest
            write_ring(torch.from_numpy(self._frames), number + skipped, part[skipped:])
            number += len(part)
        numbers = stored_array(state["numbers"], "the numbers of the newest frames", self._next_numbers.all.shape)
        if ((numbers < 0) | (numbers > self._end)).any():
            raise CheckpointError(f"the newest frames must have numbers of 0 to {self._end}, found others")
        self._next_numbers.all[:] = numbers
        for recent, numbers in zip(self._recent, self._next_numbers.all, strict=True):
            recent.clear()
            if self._end > 0:
                recent.start_with(self._frames[numbers % self.ring_size])
        self._shares_frames = state["shares_frames"] is True
        self._discard_overwritten()


class _FrameNumbers:
    """The numbers of the frames in one stack per env, (envs, frames).

    The views are created once, because creating them takes longer than copying the numbers.
    """

    def __init__(self, num_envs: int, num_frames: int) -> None:
        self.all = np.zeros((num_envs, num_frames), np.int64)
        self.all_but_first, self.all_but_last = self.all[:, 1:], self.all[:, :-1]


class _RecentFrames:
    """The pixels of the last frames of one env, one after the other, so that its last stack is contiguous.

    Comparing bytes is several times faster than comparing arrays, and `startswith` compares a part of them.
    """

    def __init__(self, num_frames: int, frame_bytes: int) -> None:
        self._frame_bytes, self._stack_bytes = frame_bytes, num_frames * frame_bytes
        self._bytes = bytearray(_STACKS_KEPT * self._stack_bytes)
        self._memory = memoryview(self._bytes)
        self.clear()

    def clear(self) -> None:
        """Remove all frames: there is no last stack."""
        self._start = len(self._bytes)

    def start_with(self, stack: Pixels) -> None:
        """Make this the last stack; earlier frames are dropped."""
        self._memory[: self._stack_bytes] = stack.reshape(-1)
        self._start = 0

    def append(self, frame: Pixels) -> None:
        """Add a frame to the last stack and drop its oldest frame."""
        memory, start, size = self._memory, self._start + self._frame_bytes, self._frame_bytes
        end = start + self._stack_bytes
        if end > len(memory):
            memory[: self._stack_bytes - size] = memory[start:]
            start, end = 0, self._stack_bytes
        memory[end - size : end] = frame
        self._start = start

    def ends_with(self, stack: Pixels) -> bool:
        """Return whether this is the last stack."""
        return self._bytes.startswith(stack, self._start)

    def continues_with(self, stack: Pixels) -> bool:
        """Return whether this is the last stack without its oldest frame, followed by any frame."""
        return self._bytes.startswith(stack[:-1], self._start + self._frame_bytes)


class _StackReader:
    """Gathers the stacks of a batch; if all rows share frames, as views on one block of k + 1 frames per row."""

    def __init__(self, storage: FrameStorage, batch_size: int, device: torch.device) -> None:
        self.shares_frames = storage._shares_frames
        self._frames, self._num_frames = storage._frames, storage.num_frames
        k, (layers, height, width) = storage.num_frames, storage._frame_shape
        frames_per_row = k + 1 if self.shares_frames else 2 * k
        num_bytes = batch_size * frames_per_row * storage._frame_bytes
        self._block = Block(num_bytes, device)
        self._filled = self._block.host.numpy().view(np.uint8)[:num_bytes].reshape(-1, storage._frame_bytes)
        pixels = self._block.on_device.view(torch.uint8)[:num_bytes]
        frames = pixels.view(batch_size, frames_per_row * layers, height, width)
        next_start = layers if self.shares_frames else k * layers
        self.batch: Batch = {"obs": frames[:, : k * layers], "next_obs": frames[:, next_start:]}
        mark_fixed(self.batch)
        self._numbers = np.empty((batch_size, frames_per_row), np.int64)

    def fill(self, obs_frames: np.ndarray, next_obs_frames: np.ndarray) -> None:
        """Gather the frames with these numbers, (batch, k) each."""
        numbers, k = self._numbers, self._num_frames
        numbers[:, :k] = obs_frames
        numbers[:, k:] = next_obs_frames[:, -1:] if self.shares_frames else next_obs_frames
        np.remainder(numbers, len(self._frames), out=numbers)
        self._block.wait()
        self._frames.take(numbers.reshape(-1), 0, self._filled, "clip")
        self._block.transfer()


def _row_fields(fields: Mapping[str, Field], space: FrameStackSpace) -> dict[str, Field]:
    """Return the fields of a row that holds frame numbers in place of its two stacks."""
    number = np.dtype(np.int64)
    rest = {name: field for name, field in fields.items() if name not in _STACKS}
    numbers = Field((space.num_frames,), number)
    return {"obs_frames": numbers, "next_obs_frames": numbers, **rest}


def _spare_frames(space: FrameStackSpace, num_envs: int, n_step: int) -> int:
    """Return a bound on the frames stored before a step becomes a row: 2 k per env step, over n_step + k steps."""
    return 2 * space.num_frames * num_envs * (n_step + space.num_frames)


def _ring_size(capacity: int, space: FrameStackSpace, num_envs: int, n_step: int) -> int:
    """Return the frames to hold: of the rows, of steps that are not rows yet, and of rows about to be discarded."""
    return capacity + capacity // _ROWS_PER_SPARE_FRAME + 2 * _spare_frames(space, num_envs, n_step)
