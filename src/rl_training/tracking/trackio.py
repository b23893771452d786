"""Trackio: a local database, below TRACKIO_DIR, that `trackio show` serves."""

import contextlib
import contextvars
import secrets
import sys
from collections.abc import Sequence
from typing import Any

from rl_training.results.run_record import Status
from rl_training.tracking.feed import Point
from rl_training.tracking.trackers import PROJECT, TrackedRun


class Trackio:
    """One run of a project."""

    def __init__(self, *, project: str = PROJECT) -> None:
        self._project = project
        self._run: Any = None
        self._context = contextvars.copy_context()  # Trackio ends the current run of a context when another begins

    @property
    def place(self) -> str:
        return f"project {self._project}"

    def open(self, run: TrackedRun) -> int:
        import trackio

        run.memory.setdefault("name", f"{run.name}-{secrets.token_hex(4)}")  # Trackio knows runs by their names alone
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
            self._run = self._context.run(
                trackio.init,
                project=self._project,
                name=run.memory["name"],
                config=run.config,
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        # What it stored: records wait in a queue for a moment, and a kill loses them.
        return int(self._run._next_step) - 1

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log(dict(point.values), step=point.step)

    def close(self, status: Status) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._context.run(self._run.finish)
