"""When model-based algorithms fit their models and refresh their rollouts."""

import math
from typing import cast

from rl_training.algorithms.mbpo import MBPO
from rl_training.data.mixed_source import MixedSource
from rl_training.errors import TrainingError
from rl_training.hparams.mbpo import MBPOHParams
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run

MIN_TRANSITIONS = 2  # one to learn from, one held out


class ModelTraining(Callback):
    """Fits and rolls out once `learning_starts` is reached and whenever an interval has passed since."""

    def on_step(self, run: Run) -> None:
        algorithm, memory = cast(MBPO, run.algorithm), cast(MixedSource, run.memory)
        hparams = cast(MBPOHParams, run.config.hparams)
        run.mid_step = True  # an error in between would leave a state that no step has
        if _due(run, hparams.learning_starts, hparams.model_train_frequency) and len(memory) >= MIN_TRANSITIONS:
            metrics = algorithm.update_model(memory.real_transitions()).metrics
            if not math.isfinite(loss := float(metrics["model_loss"])):
                raise TrainingError(
                    f"model_loss is {loss} at env step {run.step}: the dynamics model has diverged; a smaller "
                    "model_learning_rate usually helps"
                )
        if _due(run, hparams.learning_starts, hparams.rollout_refresh_interval) and algorithm.ensemble.num_fits:
            algorithm.rollout(memory, hparams.horizon(run.step))
        run.mid_step = False


def _due(run: Run, start: int, interval: int) -> bool:
    return run.step >= start and (run.previous_step < start or run.crossed(interval))


def model_training(run: Run) -> list[Callback]:
    """What a run of MBPO needs besides the loop."""
    return [ModelTraining()]
