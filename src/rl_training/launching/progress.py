"""Show the progress of several runs, one line each: a live view in a terminal, plain lines elsewhere."""

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rl_training.experiment.run_dir import mean_score, read_result
from rl_training.results.return_text import return_text

_LIVE_SECONDS = 1.0
_LINE_SECONDS = 30.0
_MANY = 16  # runs that fit into a terminal
_TAIL_BYTES = 2_000  # of a log, which hold its last line


class RunsProgress:
    """Shows for each run whether it waits, how far it is (the last line of its log), or its score.

    Of many runs only those that are trained now, or ended, have a line; the others are counted.
    """

    def __init__(
        self,
        labels: Mapping[Path, str],
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._labels = labels
        self._console = console
        self._clock = clock
        self._shown_at = clock()
        self._states: dict[Path, str] = {}
        self._log_starts: dict[Path, int] = {}  # the size of the log when the run's process started
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> "RunsProgress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, waiting: Collection[Path], running: Collection[Path]) -> None:
        """Show what changed since the last call and, from time to time, how far the running ones are."""
        waiting = set(waiting)
        before, self._states = self._states, {run: self._state(run, waiting, running) for run in self._labels}
        for run in running:
            if before.get(run) != "running":  # a run that is tried again starts again
                self._log_starts[run] = _size(run / "log.txt")
        is_due = self._clock() - self._shown_at >= (_LIVE_SECONDS if self._live else _LINE_SECONDS)
        changed = [run for run, state in self._states.items() if state != before.get(run)]
        if is_due:
            self._shown_at = self._clock()
        if self._live and (changed or is_due):
            self._live.start()  # not before there are lines: a run in this process may show its own until then
            self._live.update(Text("\n".join(self._lines(running)), no_wrap=True), refresh=True)
        elif not self._live:
            shown = changed if self._are_few else [run for run in changed if self._states[run] != "waiting"]
            for run in [*shown, *running] if is_due else shown:
                self._console.print(self._line(run), markup=False, highlight=False, soft_wrap=True)

    @property
    def _are_few(self) -> bool:
        return len(self._labels) <= _MANY

    def _lines(self, running: Collection[Path]) -> list[str]:
        """Return what a terminal shows."""
        if self._are_few:
            return list(map(self._line, self._labels))
        counts = Counter(state.partition(":")[0] for state in self._states.values())
        return [*map(self._line, running), ", ".join(f"{count} {state}" for state, count in counts.items())]

    def _state(self, run: Path, waiting: Collection[Path], running: Collection[Path]) -> str:
        if run in running:
            return "running"
        if run in waiting:
            return "waiting"
        before = self._states.get(run, "")
        if before.startswith("finished"):
            return before
        result = read_result(run)
        if result is None:
            return "not finished"
        return f"finished: {return_text(mean_score(result))}" if result["eval"] else "finished"

    def _line(self, run: Path) -> str:
        state = self._states[run]
        progress = last_line(run / "log.txt", self._log_starts[run]) if state == "running" else ""
        return f"{self._labels[run]}  {progress or state}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def last_line(path: Path, start: int = 0) -> str:
    """Return the last line of a log after position `start`, without control characters; empty if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - _TAIL_BYTES))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    full = [line for line in lines if line.strip()]
    return "".join(character for character in full[-1] if character.isprintable()) if full else ""
