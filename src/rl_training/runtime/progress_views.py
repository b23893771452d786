"""Where progress is shown: lines, a live view in a terminal, one output of a notebook that is updated in place."""

import importlib
import sys
from collections.abc import Mapping
from html import escape
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from rl_training.results.html import table

Facts = Mapping[str, str]


class View(Protocol):
    """One place that shows the progress of a run."""

    seconds: float  # between two updates
    in_place: bool  # an update replaces the one before

    def note(self, text: str) -> None:
        """Show a line that stays."""

    def show(self, facts: Facts, share: float) -> None:
        """Show how far the run is, with the share of its steps that are taken."""

    def close(self) -> None:
        """Leave what was shown last; nothing is shown after it."""


def find_view(console: Console) -> View:
    """Return the view for a console, or for the notebook that the process runs in."""
    if _in_notebook():
        return NotebookView()
    return LiveView(console) if console.is_terminal else LineView(console)


class LineView:
    """Prints a line from time to time."""

    seconds, in_place = 5.0, False

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, facts: Facts, share: float) -> None:
        self.note("  ".join(f"{name} {value}" for name, value in facts.items()))

    def close(self) -> None:
        pass


class LiveView(LineView):
    """Keeps a bar and a table at the bottom of a terminal; notes are printed above."""

    seconds, in_place = 0.25, True

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live: Live | None = None

    def show(self, facts: Facts, share: float) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        view = Table.grid(padding=(0, 2))
        view.add_row("", ProgressBar(total=1.0, completed=share, width=40))
        for name, value in facts.items():
            view.add_row(name, value)
        self._live.update(view, refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class NotebookView:
    """Keeps all it shows in one output of the cell. Needs only IPython, which a notebook has."""

    seconds, in_place = 0.5, True

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._shown = ""
        self._output: Any = None  # IPython's handle of the output

    def note(self, text: str) -> None:
        self._notes.append(f"<div>{escape(text)}</div>")
        self._update()

    def show(self, facts: Facts, share: float) -> None:
        bar = f'<progress value="{share:.4f}" max="1" style="width: 24em">{100 * share:.0f} %</progress>'
        self._shown = bar + table("Progress", list(facts), [list(facts.values())])
        self._update()

    def close(self) -> None:
        pass

    def _update(self) -> None:
        ipython = importlib.import_module("IPython.display")
        page = ipython.HTML("".join(self._notes) + self._shown)
        if self._output is None:
            self._output = ipython.display(page, display_id=True)
        else:
            self._output.update(page)


def _in_notebook() -> bool:
    """Return whether this is the kernel of a notebook; the IPython of a terminal has none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
