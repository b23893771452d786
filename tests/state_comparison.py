"""Copies and bit-for-bit comparison of nested state, checkpoints and runs."""

from itertools import chain
from typing import Any

import numpy as np
import torch

from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.saved_checkpoint import open_checkpoint
from rl_training.runtime.trainer import TrainResult


def assert_identical(ours: Any, theirs: Any, path: str = "") -> None:
    """Compare nested state leaf by leaf, bit for bit."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), path
        for key in theirs:
            assert_identical(ours[key], theirs[key], f"{path}/{key}")
    elif isinstance(theirs, torch.Tensor | np.ndarray):
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype, path
        assert np.array_equal(np.asarray(ours), np.asarray(theirs)), path
    else:
        assert ours == theirs, path


def clone(state: Any) -> Any:
    """Copy nested state, its tensors and arrays included."""
    if isinstance(state, dict):
        return {key: clone(value) for key, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state.copy() if hasattr(state, "copy") else state


def moved_by(num_bytes: int, values: np.ndarray) -> np.ndarray:
    """Copy an array to memory that starts `num_bytes` after a multiple of 64, as a checkpoint's arrays may."""
    memory = np.empty(values.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + num_bytes
    moved = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    moved[...] = values
    return moved


def parts_of(result: TrainResult) -> dict[str, Any]:
    """Return everything in the last checkpoint of a run except its positions in the logs."""
    checkpoint = open_checkpoint(result.checkpoint)
    parts = {part: checkpoint.load(part) for part in (POLICY, TRAINING, MEMORY)}
    parts[TRAINING].pop("log_positions")  # the logs hold wall times, whose number of digits varies
    return parts


def assert_same_run(ours: TrainResult, theirs: TrainResult) -> None:
    """Compare the last checkpoints and the logs of two runs bit for bit; the time they took may differ."""
    assert_identical(parts_of(ours), parts_of(theirs))
    for log in ("metrics", "eval"):
        lines = [read_json_lines(result.run_dir / f"{log}.jsonl") for result in (ours, theirs)]
        for line in chain(*lines):
            for time in ("wall_s", "steps_per_s"):
                line.pop(time, None)
        assert lines[0] == lines[1], log
