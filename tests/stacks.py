"""What tests of stacked populations share: the folders of members, and faults."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from rl_training.launching.populations import PopulationResult
from rl_training.runtime.trainer import RunOptions

QUIET = RunOptions(show_progress=False)


class Killed(KeyboardInterrupt):
    """The only exception that training lets through as it is."""


def member(result: PopulationResult, number: int) -> Path:
    return result.folder / "members" / f"{number:03d}"


def saved(folder: Path, part: str) -> dict[str, Any]:
    return open_checkpoint(find_checkpoint(folder)).load(part)


def kill_at(monkeypatch: pytest.MonkeyPatch, work: type, step: int) -> None:
    """Kill the stack before it does the work after this step."""
    real = work.advance  # type: ignore[attr-defined]

    def dying(self: Any, at: int) -> Any:
        if at == step:
            raise Killed
        return real(self, at)

    monkeypatch.setattr(work, "advance", dying)


def poison(monkeypatch: pytest.MonkeyPatch, work: type, entry: str, members: Mapping[int, Sequence[int]]) -> None:
    """Make this entry of the state of some members NaN, by the step before which it happens."""
    real = work.advance  # type: ignore[attr-defined]

    def poisoned(self: Any, at: int) -> Any:
        for number in members.get(at, ()):
            self.state[entry][number] = torch.nan
        return real(self, at)

    monkeypatch.setattr(work, "advance", poisoned)
