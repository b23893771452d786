"""What depends on the step of a run: updates owed, exploration, the length of model rollouts.

Pure functions of settings and step, without torch. The registry, the loops, the memories and the learners call them,
so they live below all of these.

Updates owed are a total since the beginning of the run. The difference between two steps is what is due: exact for any
number of envs and after any resume.
"""

from fractions import Fraction
from functools import lru_cache

from rl_training.hparams.actor_critic import ActorCriticHParams, OnlineHParams
from rl_training.hparams.base import HParams
from rl_training.hparams.dreamer import DreamerHParams
from rl_training.hparams.iql import IQLOnlineHParams
from rl_training.hparams.mbpo import MBPOHParams, ModelHParams, MOPOHParams
from rl_training.hparams.offline import DatasetCriticHParams
from rl_training.hparams.ppo import OnPolicyHParams
from rl_training.hparams.q_learning import QLearningHParams

# --- Updates owed by the time `step` steps of the run were taken -----------------------------------------------------


def q_learning_updates(hparams: QLearningHParams, step: int) -> int:
    return _updates_within(hparams, max(0, step - hparams.learning_starts))


def _updates_within(hparams: QLearningHParams, steps: int) -> int:
    per_round = hparams.train_frequency if hparams.gradient_steps == -1 else hparams.gradient_steps
    return steps // hparams.train_frequency * per_round


def actor_critic_updates(hparams: OnlineHParams, step: int) -> int:
    """Count updates of the critics."""
    trained = max(0, step - hparams.learning_starts) // hparams.train_frequency * hparams.train_frequency
    ratio = _exact(hparams.gradient_updates_per_step)
    return trained * ratio.numerator // ratio.denominator


def iql_online_updates(hparams: IQLOnlineHParams, step: int) -> int:
    return max(0, step - hparams.learning_starts) // hparams.train_frequency * hparams.train_frequency


def ppo_updates(hparams: OnPolicyHParams, step: int) -> int:
    """Count gradient steps on minibatches."""
    return step * hparams.update_epochs // hparams.minibatch_size


def dreamer_updates(hparams: DreamerHParams, step: int) -> int:
    replayed = _exact(hparams.train_ratio) * max(0, step - hparams.learning_starts)
    return int(replayed // (hparams.batch_size * hparams.sequence_length))


def offline_updates(hparams: HParams, step: int) -> int:
    """Return `step`: the steps of a run on a dataset are its updates."""
    return step


@lru_cache
def _exact(ratio: float) -> Fraction:
    """Return the decimal number that the user wrote: 0.1 is a tenth, but its binary value would delay some updates."""
    return Fraction(str(ratio))


# --- Resets ----------------------------------------------------------------------------------------------------------


def is_reset(hparams: QLearningHParams, updates: int, total_updates: int) -> bool:
    """Return whether the weights are reset after this many updates."""
    return updates > 0 and updates_since_reset(hparams, updates, total_updates) == 0


def updates_since_reset(hparams: QLearningHParams, updates: int, total_updates: int) -> int:
    """Count the updates since the last reset or, before the first one, all.

    The intervals begin with the run, not with learning: a longer warm-up does not delay resets. The last reset leaves
    an interval to learn.
    """
    interval = hparams.reset_interval
    if interval is None:
        return updates
    latest = min(updates, total_updates - interval)  # the last reset cannot have come later
    return updates - max(0, latest - (latest + _updates_within(hparams, hparams.learning_starts)) % interval)


def annealed_return(hparams: QLearningHParams, updates: int, total_updates: int) -> tuple[int, float]:
    """Return n and gamma of the targets after this many updates.

    Both move exponentially from their first values, gamma by 1 - gamma, over `anneal_updates` since the last reset.
    """
    since = updates_since_reset(hparams, updates, total_updates)
    share = min(1.0, since / hparams.anneal_updates)
    n_step, gamma = float(hparams.n_step), hparams.gamma
    if hparams.n_step_start is not None:
        n_step = hparams.n_step_start * (hparams.n_step / hparams.n_step_start) ** share
    if hparams.gamma_start is not None:
        gamma = 1.0 - (1.0 - hparams.gamma_start) * ((1.0 - gamma) / (1.0 - hparams.gamma_start)) ** share
    return round(n_step), gamma


# --- Exploration -----------------------------------------------------------------------------------------------------


def epsilon(hparams: QLearningHParams, step: int, total_timesteps: int) -> float:
    """Return the share of random actions at `step`: linear decay over the first part of the run; 0 with noisy layers.

    The warm-up before `learning_starts`, where all actions are random, is not part of it.
    """
    if hparams.noisy:
        return 0.0
    decay_steps = hparams.exploration_fraction * total_timesteps
    progress = 1.0 if decay_steps <= step else step / decay_steps
    return hparams.epsilon_start + progress * (hparams.epsilon_end - hparams.epsilon_start)


def is_warm_up(hparams: ActorCriticHParams, step: int) -> bool:
    """Return whether exploring actions are uniformly random at `step`; a run on a dataset has no warm-up."""
    return not isinstance(hparams, MOPOHParams | DatasetCriticHParams) and step < hparams.learning_starts


# --- Rollouts through a dynamics model -------------------------------------------------------------------------------


def rollout_horizon(hparams: ModelHParams, step: int) -> int:
    """Return the length of rollouts at `step`."""
    if not isinstance(hparams, MBPOHParams):
        return hparams.rollout_horizon
    if hparams.rollout_horizon_end is None or hparams.rollout_horizon_steps is None:
        return hparams.rollout_horizon
    start, end = hparams.rollout_horizon_steps
    passed = min(max(step - start, 0), end - start)
    return hparams.rollout_horizon + (hparams.rollout_horizon_end - hparams.rollout_horizon) * passed // (end - start)


def max_horizon(hparams: ModelHParams) -> int:
    """Return the length of the longest rollouts of the run."""
    end = hparams.rollout_horizon_end if isinstance(hparams, MBPOHParams) else None
    return end or hparams.rollout_horizon


def synthetic_rows(hparams: ModelHParams, horizon: int) -> int:
    """Return the largest number of transitions in the refreshes that are kept."""
    return hparams.synthetic_refreshes_kept * hparams.rollout_batch_size * horizon
