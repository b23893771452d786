"""Rows of the algorithms that learn from rollouts."""

from rl_training.experiment.algorithm_spec import ALL_OBSERVATIONS, AlgorithmSpec
from rl_training.hparams.gail import GAILHParams
from rl_training.hparams.ppo import PPOHParams
from rl_training.hparams.pqn import PQNHParams
from rl_training.hparams.recurrent_ppo import RecurrentPPOHParams
from rl_training.hparams.schedules import ppo_updates

ROWS = (
    AlgorithmSpec(
        name="ppo",
        class_name="PPO",
        summary="proximal policy optimization: clipped policy gradient on rollouts",
        paper="Schulman et al. 2017, Proximal policy optimization algorithms",
        loop="on_policy",
        actions=frozenset({"discrete", "box", "multidiscrete", "multibinary"}),
        observations=ALL_OBSERVATIONS,
        hparams=PPOHParams,
        action_masks=True,
        stochastic=True,
        build="rl_training.algorithms.ppo:build_ppo",
        memory="rl_training.data.rollout_buffer:build_rollout_buffer",
        updates_until=ppo_updates,
        policy_module="rl_training.algorithms.ppo:ppo_policy",
        device_loop=True,
        stackable=True,
        per_member=frozenset({"learning_rate", "clip_coef", "ent_coef", "vf_coef"}),
        reference_config="ppo/cartpole.yaml",
    ),
    AlgorithmSpec(
        name="recurrent_ppo",
        class_name="RecurrentPPO",
        summary="PPO with an LSTM or GRU, for tasks that need memory",
        paper="Schulman et al. 2017, Proximal policy optimization algorithms",
        loop="on_policy",
        actions=frozenset({"discrete", "box", "multidiscrete", "multibinary"}),
        observations=ALL_OBSERVATIONS,
        hparams=RecurrentPPOHParams,
        action_masks=True,
        stochastic=True,
        build="rl_training.algorithms.recurrent_ppo:build_recurrent_ppo",
        memory="rl_training.data.recurrent_rollouts:build_recurrent_rollouts",
        updates_until=ppo_updates,
        policy_module="rl_training.algorithms.recurrent_ppo:recurrent_ppo_policy",
        min_updates_to_compile=50_000,  # the compiler unrolls the loop over a sequence: minutes
        reference_config="recurrent_ppo/cartpole_no_velocity.yaml",
    ),
    AlgorithmSpec(
        name="pqn",
        class_name="PQN",
        summary="Q-learning on rollouts of many environments, without replay and target network",
        paper="Gallici et al. 2025, Simplifying deep temporal difference learning",
        loop="on_policy",
        actions=frozenset({"discrete"}),
        observations=ALL_OBSERVATIONS,
        hparams=PQNHParams,
        build="rl_training.algorithms.pqn:build_pqn",
        memory="rl_training.data.rollout_buffer:build_rollout_buffer",
        updates_until=ppo_updates,
        policy_module="rl_training.algorithms.pqn:pqn_policy",
        device_loop=True,
        stackable=True,
        per_member=frozenset({"learning_rate", "epsilon_start", "epsilon_end"}),
        reference_config="pqn/cartpole.yaml",
    ),
    AlgorithmSpec(
        name="gail",
        class_name="GAIL",
        summary="imitation: PPO rewarded by a discriminator between expert and policy",
        paper="Ho and Ermon 2016, Generative adversarial imitation learning",
        loop="on_policy",
        actions=frozenset({"discrete", "box", "multidiscrete", "multibinary"}),
        observations=ALL_OBSERVATIONS,
        hparams=GAILHParams,
        action_masks=True,
        stochastic=True,
        build="rl_training.algorithms.gail:build_gail",
        memory="rl_training.data.expert_rollouts:build_expert_rollouts",
        updates_until=ppo_updates,
        policy_module="rl_training.algorithms.gail:gail_policy",
        min_updates_to_compile=20_000,  # two programs: PPO's step and the discriminator's
        reference_config="gail/cartpole.yaml",
    ),
)
