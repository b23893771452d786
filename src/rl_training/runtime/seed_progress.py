"""Show the progress of several seeds, one line each: a live view in a terminal, plain lines elsewhere."""

import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rl_training.experiment.run_dir import mean_score, read_result

_LIVE_SECONDS = 1.0
_LINE_SECONDS = 30.0
_TAIL_BYTES = 2_000  # of a log, which hold its last line


class SeedsProgress:
    """Shows for each seed whether it waits, how far it is (the last line of its log), or its score."""

    def __init__(
        self,
        folders: Mapping[int, Path],
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = folders
        self._console = console
        self._clock = clock
        self._shown_at = clock()
        self._states: dict[int, str] = {}
        self._log_starts: dict[int, int] = {}  # the size of the log when the seed's process started
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> "SeedsProgress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, waiting: Collection[int], running: Collection[int]) -> None:
        """Show what changed since the last call and, from time to time, how far the running seeds are."""
        before, self._states = self._states, {seed: self._state(seed, waiting, running) for seed in self._folders}
        for seed in running:
            self._log_starts.setdefault(seed, _size(self._folders[seed] / "log.txt"))
        is_due = self._clock() - self._shown_at >= (_LIVE_SECONDS if self._live else _LINE_SECONDS)
        changed = [seed for seed, state in self._states.items() if state != before.get(seed)]
        if is_due:
            self._shown_at = self._clock()
        if self._live and (changed or is_due):
            self._live.update(Text("\n".join(map(self._line, self._folders)), no_wrap=True), refresh=True)
        elif not self._live:
            for seed in [*changed, *running] if is_due else changed:
                self._console.print(self._line(seed), markup=False, highlight=False, soft_wrap=True)

    def _state(self, seed: int, waiting: Collection[int], running: Collection[int]) -> str:
        if seed in running:
            return "running"
        if seed in waiting:
            return "waiting"
        before = self._states.get(seed, "")
        if before.startswith("finished"):
            return before
        result = read_result(self._folders[seed])
        return "not finished" if result is None else f"finished: {mean_score(result):.1f}"

    def _line(self, seed: int) -> str:
        state = self._states[seed]
        log = self._folders[seed] / "log.txt"
        progress = _last_line(log, self._log_starts[seed]) if state == "running" else ""
        return f"seed {seed}  {progress or state}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _last_line(path: Path, start: int) -> str:
    """Return the last line of a log after position `start`, without control characters; empty if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - _TAIL_BYTES))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    full = [line for line in lines if line.strip()]
    return "".join(character for character in full[-1] if character.isprintable()) if full else ""
