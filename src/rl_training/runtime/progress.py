"""Show progress: a live view in a terminal, one output in a notebook, plain lines elsewhere."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

from rich.console import Console

from rl_training.acceleration.compile_watch import compilations_watched
from rl_training.core.types import Metrics
from rl_training.results.return_text import return_text
from rl_training.runtime.callbacks import Callback, Evaluation, episode_metrics
from rl_training.runtime.evaluation import mean_return
from rl_training.runtime.progress_views import View, find_view
from rl_training.runtime.run import Run

_ROUNDS_PER_CHECK = 8  # of the clock; offline a round is several updates, and each one is checked
_SPEED_SECONDS = 10.0
_LEFT_SECONDS = 60.0  # longer than for the speed, so that one evaluation changes the estimate little
_LEAST_SECONDS = 0.2  # for a speed
_LEAST_LEFT_SECONDS = 2.0  # for an estimate of the time left


class SpeedMeter:
    """Steps per second over the last seconds."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()  # times and steps, the oldest first

    def restart(self, now: float, step: int) -> None:
        """Forget what came before: the pace changes here."""
        self._marks.clear()
        self.add(now, step)

    def add(self, now: float, step: int) -> None:
        self._marks.append((now, step))
        while len(self._marks) > 2 and self._marks[1][0] <= now - _LEFT_SECONDS:
            self._marks.popleft()

    @property
    def seconds(self) -> float:
        """Time since the oldest mark."""
        return self._marks[-1][0] - self._marks[0][0]

    def speed(self, seconds: float) -> float | None:
        """Return the steps per second of the last `seconds`, or since the restart; None if that is too short."""
        now, step = self._marks[-1]
        old_enough = [mark for mark in self._marks if mark[0] <= now - seconds]
        start, first = old_enough[-1] if old_enough else self._marks[0]
        return (step - first) / (now - start) if now - start >= _LEAST_SECONDS else None


class Progress(Callback):
    """Shows step, speed, time left, latest returns, loss and schedules, and when the update is being compiled."""

    def __init__(
        self,
        evaluation: Evaluation,
        console: Console | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._evaluation = evaluation
        self._view: View = find_view(console or Console(stderr=True))
        self._clock = clock
        self._open = contextlib.ExitStack()
        self._rounds = 0
        self._shown_at = 0.0
        self._meter = SpeedMeter()
        self._learns = False  # whether updates have begun; the steps before are much faster
        self._activity = ""  # what keeps the run from taking steps

    def on_start(self, run: Run) -> None:
        self._shown_at = self._clock()
        self._meter.restart(self._shown_at, run.step)
        self._learns = run.gradient_step > 0
        self._view.note(
            f"{run.config.algo} on {run.config.env_id or 'a dataset'}, seed {run.config.seed}: {run.folder.path}"
        )
        if self._view.in_place:
            self._show(run)
        self._open.enter_context(compilations_watched(partial(self._compiling, run)))

    def on_step(self, run: Run) -> None:
        self._rounds += 1
        rounds_per_check = _ROUNDS_PER_CHECK if run.unit == "env step" else 1
        if self._rounds % rounds_per_check or run.step >= run.config.total_timesteps:  # `on_end` shows the last step
            return
        now = self._clock()
        if run.gradient_step and not self._learns:
            self._learns = True
            self._meter.restart(now, run.step)
        if now - self._shown_at >= self._view.seconds:
            self._shown_at = now
            self._show(run)

    def on_end(self, run: Run) -> None:
        self._open.close()
        self._show(run)
        self._view.close()

    @contextlib.contextmanager
    def _compiling(self, run: Run, name: str) -> Iterator[None]:
        """Show that the update is being compiled, and leave this time out of the speed."""
        started = self._clock()
        self._activity = f"compiling the {name} (once; later runs load it from the cache)"
        if self._view.in_place:
            self._show(run)
        else:
            self._view.note(self._activity)
        try:
            yield
        finally:
            self._activity = ""
            self._shown_at = self._clock()
            self._meter.restart(self._shown_at, run.step)
            if self._view.in_place:
                self._show(run)
        self._view.note(f"compiled the {name} in {self._clock() - started:.0f} s")

    def _show(self, run: Run) -> None:
        self._meter.add(self._clock(), run.step)
        self._view.show(self._facts(run), min(run.step / run.config.total_timesteps, 1.0))

    def _facts(self, run: Run) -> dict[str, str]:
        total = run.config.total_timesteps
        facts = {run.unit.removeprefix("env "): f"{run.step:,}/{total:,} ({100 * min(run.step / total, 1.0):.0f} %)"}
        if self._activity:
            return facts | {"now": self._activity}
        speed, long_speed = self._meter.speed(_SPEED_SECONDS), self._meter.speed(_LEFT_SECONDS)
        if speed is not None:
            facts["steps/s"] = f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"
        if long_speed and self._learns and self._meter.seconds >= _LEAST_LEFT_SECONDS and run.step < total:
            facts["left"] = str(timedelta(seconds=round((total - run.step) / long_speed)))
        episodes = episode_metrics(run)
        if "episodes" in episodes:
            facts["episodes"] = f"{episodes.pop('episodes'):,.0f}"
        values = {name: float(value) for name, value in _shown(run.last_metrics).items()}
        facts |= {
            name: f"{value:.4g}" for name, value in {**episodes, **values, **run.algorithm.status(run.step)}.items()
        }
        if self._evaluation.latest:
            facts["evaluation"] = return_text(mean_return(self._evaluation.latest))
        return facts


def _shown(metrics: Metrics) -> Metrics:
    """Return the loss, or the losses of the parts, and the metrics of an evaluation on held-out data, if any."""
    losses = ["loss"] if "loss" in metrics else [name for name in metrics if name.endswith("_loss")]
    return {name: metrics[name] for name in (*losses, *(name for name in metrics if name.startswith("held_out_")))}
