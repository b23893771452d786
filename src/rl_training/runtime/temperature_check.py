"""Stops a run whose learned temperature has reached its limit: it can no longer do what it is there for."""

from typing import cast

from rl_training.errors import TrainingError
from rl_training.hparams.discrete_sac import DiscreteSACHParams
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run


class TemperatureCheck(Callback):
    """Looks at alpha where metrics are logged."""

    def on_step(self, run: Run) -> None:
        hparams = cast(DiscreteSACHParams, run.config.hparams)
        is_due = run.crossed(run.config.log_interval) or run.step >= run.config.total_timesteps
        if not is_due or hparams.alpha != "auto" or "alpha" not in run.last_metrics:
            return
        if float(run.last_metrics["alpha"]) >= hparams.max_alpha * (1.0 - 1e-6):
            entropy = float(run.last_metrics["entropy"])
            raise TrainingError(
                f"alpha has reached max_alpha, {hparams.max_alpha:g}, at {run.unit} {run.step}, where the entropy is "
                f"{entropy:.3g}: the policy cannot have the entropy that alpha aims at and act well; lower "
                "target_entropy_ratio, or raise max_alpha if rewards are large"
            )


def temperature_check(run: Run) -> list[Callback]:
    """Return the callbacks of a run of discrete SAC."""
    return [TemperatureCheck()]
