"""Show a study: a line for each event, and how far its runs are."""

from collections.abc import Collection
from pathlib import Path
from types import TracebackType

from rich.console import Console

from rl_training.launching.progress import RunsProgress


class StudyProgress:
    """Prints what happens to trials; below, in a terminal, one line for each run that is trained now."""

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = folder
        self._console = console
        self._labels: dict[Path, str] = {}  # of the runs that are trained now
        self._runs = RunsProgress(self._labels, console)

    def __enter__(self) -> "StudyProgress":
        self._runs.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._runs.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, running: Collection[Path]) -> None:
        """Show how far the runs are, from time to time."""
        self._labels.clear()
        self._labels.update({run: str(run.relative_to(self._folder)) for run in running})
        self._runs.show([], running)
