"""Show progress: a live view in a terminal, plain lines elsewhere."""

import time
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from rl_training.core.types import Metrics
from rl_training.runtime.callbacks import Callback, Evaluation, episode_metrics
from rl_training.runtime.evaluation import mean_return
from rl_training.runtime.run import Run

_LIVE_SECONDS = 0.25
_LINE_SECONDS = 5.0
_ROUNDS_PER_CHECK = 64  # of the clock; offline a round is several updates, and each one is checked


class Progress(Callback):
    """Shows step, speed, time left, latest returns, loss and schedules."""

    def __init__(self, evaluation: Evaluation, console: Console | None = None) -> None:
        self._evaluation = evaluation
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._rounds = 0
        self._shown_at = 0.0
        self._start = (0, 0.0)  # step and time at which this process started

    def on_start(self, run: Run) -> None:
        self._start = (run.step, time.perf_counter())
        self._shown_at = self._start[1]
        title = f"{run.config.algo} on {run.config.env_id or 'a dataset'}, seed {run.config.seed}: {run.folder.path}"
        self._console.print(title, markup=False, highlight=False, soft_wrap=True)
        if self._console.is_terminal:
            self._live = Live(self._view(run), console=self._console, auto_refresh=False, transient=False)
            self._live.start()

    def on_step(self, run: Run) -> None:
        self._rounds += 1
        rounds_per_check = _ROUNDS_PER_CHECK if run.unit == "env step" else 1
        if self._rounds % rounds_per_check and run.step < run.config.total_timesteps:
            return
        now = time.perf_counter()
        if now - self._shown_at >= (_LIVE_SECONDS if self._live else _LINE_SECONDS):
            self._shown_at = now
            self._show(run)

    def on_end(self, run: Run) -> None:
        self._show(run)
        if self._live:
            self._live.stop()
            self._live = None

    def _show(self, run: Run) -> None:
        if self._live:
            self._live.update(self._view(run), refresh=True)
        else:
            facts = "  ".join(f"{name} {value}" for name, value in self._facts(run).items())
            self._console.print(facts, highlight=False, soft_wrap=True)

    def _facts(self, run: Run) -> dict[str, str]:
        total = run.config.total_timesteps
        speed = (run.step - self._start[0]) / max(time.perf_counter() - self._start[1], 1e-9)
        facts = {
            run.unit.removeprefix("env "): f"{run.step:,}/{total:,} ({100 * min(run.step / total, 1.0):.0f} %)",
            "steps/s": f"{speed:,.0f}",
        }
        if speed > 0 and run.step < total:
            facts["left"] = str(timedelta(seconds=round((total - run.step) / speed)))
        episodes = episode_metrics(run)
        if "episodes" in episodes:
            facts["episodes"] = f"{episodes.pop('episodes'):,.0f}"
        values = {name: float(value) for name, value in _shown(run.last_metrics).items()}
        facts |= {
            name: f"{value:.4g}" for name, value in {**episodes, **values, **run.algorithm.status(run.step)}.items()
        }
        if self._evaluation.latest:
            facts["evaluation"] = f"{mean_return(self._evaluation.latest):.1f}"
        return facts

    def _view(self, run: Run) -> Table:
        view = Table.grid(padding=(0, 2))
        view.add_row("", ProgressBar(total=run.config.total_timesteps, completed=run.step, width=40))
        for name, value in self._facts(run).items():
            view.add_row(name, value)
        return view


def _shown(metrics: Metrics) -> Metrics:
    """Return the loss, or the losses of the parts, and the metrics of an evaluation on held-out data, if any."""
    losses = ["loss"] if "loss" in metrics else [name for name in metrics if name.endswith("_loss")]
    return {name: metrics[name] for name in (*losses, *(name for name in metrics if name.startswith("held_out_")))}
