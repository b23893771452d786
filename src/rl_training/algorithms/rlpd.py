"""RLPD: SAC in an environment, with a dataset of earlier transitions beside its replay buffer from the first update on.

    every batch                    half from the replay buffer, half from the dataset
    every env step                 `gradient_updates_per_step` updates of the critics, one of the actor
    y = r + gamma * (min over a random subset of M critics of Q_target_i(s', a') - alpha * log pi(a'|s'))
    minimise  alpha * log pi(a|s) - mean over all critics of Q_i(s, a)

There is no training before the first env step. The critics have layer normalization, which bounds their values for
actions that are not in the data. Losses and subsets are REDQ's; the halves are in data/mixed_source.py.

Ball et al. 2023, Efficient online reinforcement learning with offline data. Deviations: docs/algorithms/rlpd.md.
"""

from rl_training.algorithms.redq import Subsets, mean_over_critics, minimum_over_subset
from rl_training.algorithms.sac import SAC
from rl_training.core.setup import Setup
from rl_training.hparams.rlpd import RLPDHParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.actor_critic_networks import build_model
from rl_training.learners.dataset_rewards import reward_constants
from rl_training.models.mlp_redq import MLPREDQModel


def build_rlpd(setup: Setup[RLPDHParams]) -> ActorCritic:
    hparams = setup.hparams
    # Without these settings the state has no constants, as in checkpoints of versions before they existed.
    scales_rewards = hparams.reward_scale != "none" or hparams.reward_shift != 0.0
    recipe = SAC(
        build_model(setup, MLPREDQModel, num_critics=hparams.num_critics, by_member=True),
        setup,
        entropy_in_target=hparams.entropy_in_target,
        entropy_per_number=-0.5,
        target_estimate=minimum_over_subset,
        actor_estimate=mean_over_critics,
        extra_random_inputs=Subsets(hparams.num_critics, hparams.subset_size).random_inputs,
        reward_constants=reward_constants(setup) if scales_rewards else None,
    )
    return ActorCritic(recipe, setup)
