"""Callbacks that end a run which no longer improves; their state is in the checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.core.counted import counted
from rl_training.errors import ConfigError
from rl_training.runtime.callbacks import Callback, read_evaluation
from rl_training.runtime.evaluation import EvalEpisode, mean_return
from rl_training.runtime.no_collector import NoCollector
from rl_training.runtime.run import RECENT_EPISODES, Run


class EarlyStopping(Callback):
    """Ends the run after `patience` evaluations in a row whose mean return is no new best."""

    def __init__(self, patience: int, *, min_delta: float = 0.0) -> None:
        """Set when to stop.

        Args:
            patience: evaluations in a row without a new best.
            min_delta: how far a new best must be above the previous one.
        """
        self.patience, self.min_delta = _at_least("patience", patience, 1), _at_least("min_delta", min_delta, 0.0)
        self._best: float | None = None
        self._waited = 0  # evaluations since the best

    def on_start(self, run: Run) -> None:
        if run.env_factory is None or run.config.eval_interval == 0:
            missing = "eval_interval above 0" if run.env_factory is not None else "environment (env_id)"
            raise ConfigError(f"EarlyStopping compares evaluations: the run needs an {missing}")
        if run.step == 0:  # a new run may reuse the callback of another
            self._best, self._waited = None, 0

    def on_evaluation(self, run: Run, episodes: Sequence[EvalEpisode]) -> None:
        mean = mean_return(episodes)
        if self._best is None or mean > self._best + self.min_delta:
            self._best, self._waited = mean, 0
            return
        self._waited += 1
        if self._waited >= self.patience and not run.stop_reason:
            waited, limit = counted(self._waited, "evaluation"), self._best + self.min_delta
            run.stop_reason = f"{waited} without a return above {limit:.1f}"

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "waited": self._waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best, self._waited = state["best"], state["waited"]


class StopOnPlateau(Callback):
    """Ends the run when the mean return of the latest training episodes has had no new best for `steps` steps."""

    def __init__(self, steps: int, *, episodes: int = RECENT_EPISODES, min_delta: float = 0.0) -> None:
        """Set when to stop.

        Args:
            steps: env steps without a new best.
            episodes: training episodes in the mean; nothing is compared before there are as many.
            min_delta: how far a new best must be above the previous one.
        """
        self.steps, self.min_delta = _at_least("steps", steps, 1), _at_least("min_delta", min_delta, 0.0)
        self.episodes = _at_least("episodes", episodes, 1)
        if episodes > RECENT_EPISODES:
            raise ConfigError(f"StopOnPlateau: episodes must be <= {RECENT_EPISODES}, got {episodes}")
        self._best: float | None = None
        self._best_step = self._num_episodes = 0

    def on_start(self, run: Run) -> None:
        if isinstance(run.collector, NoCollector):
            raise ConfigError("StopOnPlateau reads training episodes, which a run on a dataset does not have")
        if run.step == 0:  # a new run may reuse the callback of another
            self._best, self._best_step, self._num_episodes = None, 0, 0

    def on_step(self, run: Run) -> None:
        if run.num_episodes == self._num_episodes or len(run.recent) < self.episodes:
            return
        self._num_episodes = run.num_episodes
        mean = float(np.mean([episode.ret for episode in list(run.recent)[-self.episodes :]]))
        if self._best is None or mean > self._best + self.min_delta:
            self._best, self._best_step = mean, run.step
        elif run.step - self._best_step >= self.steps and not run.stop_reason:
            limit = self._best + self.min_delta
            run.stop_reason = f"{run.step - self._best_step:,} steps without a mean return above {limit:.1f}"

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "best_step": self._best_step, "num_episodes": self._num_episodes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best, self._best_step, self._num_episodes = state["best"], state["best_step"], state["num_episodes"]


class PauseFrom(Callback):
    """Saves the run after its first evaluation from a step on, as an interruption does: a resume continues it."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_start(self, run: Run) -> None:
        if run.step >= self._step and read_evaluation(run):
            self._pause(run)

    def on_evaluation(self, run: Run, episodes: Sequence[EvalEpisode]) -> None:
        if run.step >= self._step:
            self._pause(run)

    def _pause(self, run: Run) -> None:
        if not run.stop_reason and run.step < run.config.total_timesteps:
            run.stop_reason, run.interrupted = f"paused at step {run.step}", True


def _at_least(name: str, value: float, least: float) -> Any:
    if not value >= least:
        raise ConfigError(f"{name} must be >= {least:g}, got {value}")
    return value
