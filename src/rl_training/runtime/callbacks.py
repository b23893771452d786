"""Callbacks of the training loops: logs of episodes and metrics, evaluations, checkpoints.

Their order matters and is set in trainer.py: the checkpoint comes after the logs, so that it holds what they wrote at
its step, and before the evaluation, so that an evaluation that never returns loses nothing.
"""

import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np

from rl_training.errors import CheckpointError, EnvError, TrainingError
from rl_training.experiment.checkpointing import (
    amend_checkpoint,
    checkpoint_name,
    prune_checkpoints,
    remove_checkpoint,
    save_checkpoint,
    write_pointer,
)
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import POLICY
from rl_training.hparams.base import closest
from rl_training.runtime.evaluation import (
    EvalEpisode,
    EvaluationInterrupted,
    compare_values,
    evaluate_run,
    mean_return,
    success_rate,
)
from rl_training.runtime.no_collector import NoCollector
from rl_training.runtime.run import Run

MAX_SHARE_OF_SAVES = 0.05  # of the time: a run whose checkpoints are large saves them less often

log = logging.getLogger("rl_training")


class Callback:
    """Override what you need. Set `run.stop_reason` to end the run after the current step (docs/callbacks.md)."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Warn of methods that look like those of a callback, but that training does not call."""
        super().__init_subclass__(**options)
        known = [name for name in vars(Callback) if name.startswith("on_")]
        for name, value in vars(cls).items():
            if name.startswith("on_") and name not in known and callable(value):
                hint = closest(name, known)
                log.warning("%s.%s: training calls no method of this name; %s", cls.__name__, name, hint)

    def on_start(self, run: Run) -> None:
        """Called when training starts, or continues after a resume."""

    def on_step(self, run: Run) -> None:
        """Called after every env took a step and the due updates were made; offline, after a group of updates."""

    def on_evaluation(self, run: Run, episodes: Sequence[EvalEpisode]) -> None:
        """Called after each evaluation in an environment: at every `eval_interval` and after the last step."""

    def on_end(self, run: Run) -> None:
        """Called when training ended, also by an error; release your resources here."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to continue exactly: numbers, text, None, and lists and dicts of them."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a checkpoint. Called before `on_start` if the run is resumed and there is a state."""


class EpisodeLog(Callback):
    """Writes every finished training episode to episodes.jsonl."""

    def on_step(self, run: Run) -> None:
        finished = run.collector.finished
        if finished:
            for episode in finished:
                run.folder.log("episodes").write(episode.record())
            run.recent.extend(finished)
            run.num_episodes += len(finished)
            finished.clear()


class MetricsLog(Callback):
    """Writes metrics.jsonl: one record per log interval and one at the end."""

    def __init__(self) -> None:
        self._mark = (0, 0.0)  # step and wall time of the previous record of this process

    def on_start(self, run: Run) -> None:
        self._mark = (run.step, run.wall_s)

    def on_step(self, run: Run) -> None:
        if run.crossed(run.config.log_interval) or run.step >= run.config.total_timesteps:
            self._write(run)

    def _write(self, run: Run) -> None:
        metrics = {name: float(value) for name, value in run.last_metrics.items()}
        for name, value in metrics.items():
            if not math.isfinite(value):
                of_updates = f" (gradient step {run.gradient_step})" if run.unit == "env step" else ""
                raise TrainingError(
                    f"{name} is {value} at {run.unit} {run.step}{of_updates}: training has "
                    "diverged; a smaller learning_rate or max_grad_norm usually helps"
                )
        metrics |= run.algorithm.status(run.step) | episode_metrics(run) | run.logged
        run.logged.clear()
        wall_s = run.wall_s
        steps_per_s = (run.step - self._mark[0]) / max(wall_s - self._mark[1], 1e-9)
        self._mark = (run.step, wall_s)
        record = {
            "step": run.step,
            "gradient_step": run.gradient_step,
            "wall_s": round(wall_s, 3),
            "steps_per_s": round(steps_per_s, 1),
            "metrics": metrics,
        }
        run.folder.log("metrics").write(record)
        run.folder.log("metrics").flush()
        run.folder.log("episodes").flush()


def write_logged(run: Run) -> None:
    """Write what callbacks logged since the latest record of metrics, if anything, as a record of this step."""
    if run.logged:
        record = {"step": run.step, "gradient_step": run.gradient_step, "wall_s": round(run.wall_s, 3)}
        run.folder.log("metrics").write({**record, "metrics": dict(run.logged)})
        run.folder.log("metrics").flush()
        run.logged.clear()


def episode_metrics(run: Run) -> dict[str, float]:
    """Average over the latest training episodes; offline there are none."""
    if isinstance(run.collector, NoCollector):
        return {}
    if not run.recent:
        return {"episodes": 0}
    return {
        "episodes": run.num_episodes,
        "return_mean": float(np.mean([episode.ret for episode in run.recent])),
        "length_mean": float(np.mean([episode.length for episode in run.recent])),
    }


def evaluate_policy(run: Run) -> list[EvalEpisode]:
    """Play the evaluation episodes of the run with its current policy, which changes nothing in the run.

    Without an environment there are none. A signal raises `EvaluationInterrupted`.
    """
    if run.env_factory is None:
        return []
    # A new env each time: some keep state over their resets, which a resumed run could not restore.
    seeds = run.streams.eval_seeds(run.config.eval_episodes)
    try:
        return evaluate_run(
            run.config, run.env_factory, run.algorithm, seeds, step=run.step, interrupted=lambda: run.interrupted
        )
    except EnvError as error:
        raise EnvError(f"the evaluation at {run.unit} {run.step:,} failed: {error}") from error


def read_evaluation(run: Run) -> list[EvalEpisode]:
    """Read the evaluation at the current step from eval.jsonl; an earlier process may have written it."""
    lines = read_json_lines(run.folder.log("eval").path)
    records = [record for record in lines if record["step"] == run.step and "episode" in record]
    return [EvalEpisode(r["episode"], r["seed"], r["return"], r["length"], success=r.get("success")) for r in records]


class Checkpointing(Callback):
    """Saves the whole run by steps, by time and at the end, and at least the policy at a best evaluation."""

    def __init__(self) -> None:
        self._saved_step = -1  # the step of the newest checkpoint that holds more than the policy
        self._saved_by_time: int | None = None  # the same step, if it was saved only because of the time
        self._due = math.inf  # when the next save by time is due

    def on_start(self, run: Run) -> None:
        if run.step > 0:  # resumed
            self._saved_step = run.step
        self._set_timer(run)

    def on_step(self, run: Run) -> None:
        ends = run.step >= run.config.total_timesteps or bool(run.stop_reason)
        if run.crossed(run.config.checkpoint_interval) or ends:
            self.save(run)
        elif monotonic() >= self._due:
            try:
                self.save(run, by_time=True)
            except CheckpointError as error:  # such as a full disk, which may have space again at the next attempt
                log.warning("%s", error)
                self._set_timer(run)

    def save(self, run: Run, *, by_time: bool = False) -> None:
        """Save the whole run at its current step, unless that is already done.

        The next checkpoint replaces one that was saved by time.
        """
        if self._saved_step != run.step:
            started = monotonic()
            self._save_parts(run, run.parts(), replaces=self._saved_by_time, keep_more=int(by_time))
            self._saved_step, self._saved_by_time = run.step, run.step if by_time else None
            self._set_timer(run, save_seconds=monotonic() - started)

    def add_evaluation(self, run: Run) -> None:
        """Add the evaluation of this step to the checkpoint of this step; if it is the best, there must be one."""
        if self._saved_step == run.step:
            path = run.folder.checkpoints / checkpoint_name(run.step)
            amend_checkpoint(path, counters=run.counters(), training=run.evaluation_state())
            self._point_at_best(run)
        elif run.best_step == run.step:
            self._save_parts(
                run, {POLICY: run.algorithm.policy_state_dict()}, keep_more=self._saved_by_time is not None
            )

    def _set_timer(self, run: Run, save_seconds: float = 0.0) -> None:
        minutes = run.config.checkpoint_minutes
        self._due = monotonic() + max(60 * minutes, save_seconds / MAX_SHARE_OF_SAVES) if minutes else math.inf

    def _save_parts(
        self, run: Run, parts: dict[str, dict[str, Any]], *, replaces: int | None = None, keep_more: int
    ) -> None:
        folder = run.folder.checkpoints
        save_checkpoint(folder, config=run.config, counters=run.counters(), parts=parts)
        self._point_at_best(run)
        if replaces is not None and replaces != run.best_step:
            remove_checkpoint(folder / checkpoint_name(replaces))
        prune_checkpoints(folder, run.config.keep_checkpoints + keep_more)

    def _point_at_best(self, run: Run) -> None:
        if run.best_step == run.step:
            write_pointer(run.folder.checkpoints, "best", checkpoint_name(run.step))


class Evaluation(Callback):
    """Evaluates without exploration at every interval and at the end: eval.jsonl, the best step, `stop_return`."""

    def __init__(self, checkpointing: Checkpointing) -> None:
        self.latest: list[EvalEpisode] = []
        self._checkpointing = checkpointing

    def on_step(self, run: Run) -> None:
        if run.crossed(run.config.eval_interval) or run.step >= run.config.total_timesteps:
            with contextlib.suppress(EvaluationInterrupted):  # `catch_up` repeats it in the resumed run
                self._evaluate(run)

    def catch_up(self, run: Run) -> None:
        """Evaluate a resumed run if the process that saved it ended before the evaluation of the same step."""
        if run.step > 0 and not read_evaluation(run):
            self.on_step(run)

    def _evaluate(self, run: Run) -> None:
        self.latest = evaluate_policy(run)
        if not self.latest:
            return
        for episode in self.latest:
            run.folder.log("eval").write({"step": run.step, **episode.record()})
        run.folder.log("eval").flush()
        mean = mean_return(self.latest)
        if run.best_return is None or mean > run.best_return:
            run.best_return, run.best_step = mean, run.step
        stop_return = run.config.stop_return
        if stop_return is not None and mean >= stop_return and not run.stop_reason:
            run.stop_reason = f"evaluation reached {mean:.1f} (stop_return {stop_return:g})"
        gamma = getattr(run.config.hparams, "gamma", 1.0)
        run.logged |= compare_values(run.algorithm, self.latest, gamma) | success_rate(self.latest)
        for callback in run.callbacks:
            callback.on_evaluation(run, self.latest)
        write_logged(run)
        self._checkpointing.add_evaluation(run)
