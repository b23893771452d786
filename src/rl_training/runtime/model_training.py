"""When model-based algorithms fit their models and refresh their rollouts."""

import logging
import math
from typing import cast

from rl_training.algorithms.mbpo import MBPO
from rl_training.core.types import Metrics
from rl_training.data.dataset_memory import DatasetMemory
from rl_training.data.mixed_source import MIN_TRANSITIONS, MixedSource
from rl_training.errors import TrainingError
from rl_training.hparams.mbpo import MBPOHParams, ModelHParams, MOPOHParams
from rl_training.hparams.schedules import rollout_horizon
from rl_training.learners.dynamics import OnEpoch
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.offline_evaluation import offline_evaluation_callbacks
from rl_training.runtime.report_timer import ReportTimer
from rl_training.runtime.run import Run

_PROGRESS_SECONDS = 5.0

log = logging.getLogger("rl_training")


class ModelTraining(Callback):
    """Fits the model and rolls it out when `learning_starts` is reached, and then at every interval."""

    def on_step(self, run: Run) -> None:
        hparams = cast(MBPOHParams, run.config.hparams)
        fits = _due(run, hparams.learning_starts, hparams.model_train_frequency) and len(run.memory) >= MIN_TRANSITIONS
        rolls_out = _due(run, hparams.learning_starts, hparams.rollout_refresh_interval)
        _train(run, fits=fits, rolls_out=rolls_out)


class OfflineModelTraining(Callback):
    """Fits the model to the dataset and rolls it out before the first update, and then at every interval."""

    def on_start(self, run: Run) -> None:
        # Otherwise the run was resumed, or a signal came while other members of its stack were fitted.
        if cast(MBPO, run.algorithm).ensemble.num_fits == 0 and not run.interrupted:
            log.info("fitting the ensemble to %s transitions", f"{len(run.memory):,}")
            _train(run, fits=True, rolls_out=True)
            status = run.algorithm.status(run.step)
            values = (status[name] for name in ("model_epochs", "holdout_mse", "rollout_penalty"))
            log.info("fitted in %d epochs: holdout_mse %.4g, rollout_penalty %.4g", *values)

    def on_step(self, run: Run) -> None:
        hparams = cast(MOPOHParams, run.config.hparams)
        fits, rolls_out = run.crossed(hparams.model_train_frequency), run.crossed(hparams.rollout_refresh_interval)
        _train(run, fits=fits, rolls_out=rolls_out)


def _train(run: Run, *, fits: bool, rolls_out: bool) -> None:
    algorithm, memory = cast(MBPO, run.algorithm), cast(MixedSource, run.memory)
    hparams = cast(ModelHParams, run.config.hparams)
    run.mid_step = True  # an error in between would leave a state that belongs to no step
    if fits:
        algorithm.update_model(memory.real_transitions(), _check_epochs(run))
    if rolls_out and algorithm.ensemble.num_fits:
        algorithm.rollout(memory, rollout_horizon(hparams, run.step))
    run.mid_step = False


def _check_epochs(run: Run) -> OnEpoch:
    """Return a function that reports the progress of a long fit and ends one that has diverged."""
    max_epochs = cast(ModelHParams, run.config.hparams).model_max_epochs
    timer = ReportTimer(_PROGRESS_SECONDS)

    def on_epoch(metrics: Metrics) -> None:
        epoch = int(metrics["model_epochs"])
        values = {name: float(metrics[name]) for name in ("model_loss", "holdout_mse")}
        for name, value in values.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"{name} is {value} after epoch {epoch} of the fit at {run.unit} {run.step}: the dynamics model "
                    "has diverged; a smaller model_learning_rate usually helps"
                )
        if timer.is_due():
            log.info("epoch %d of at most %d: model_loss %.4g, holdout_mse %.4g", epoch, max_epochs, *values.values())

    return on_epoch


def _due(run: Run, start: int, interval: int) -> bool:
    return run.step >= start and (run.previous_step < start or run.crossed(interval))


def model_training(run: Run) -> list[Callback]:
    """Return the callbacks of a run of MBPO."""
    return [ModelTraining()]


def offline_model_training(run: Run) -> list[Callback]:
    """Return the callbacks of a run of MOPO."""
    dataset = cast(DatasetMemory, cast(MixedSource, run.memory).real)
    return [OfflineModelTraining(), *offline_evaluation_callbacks(dataset)]
