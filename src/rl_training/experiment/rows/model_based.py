"""Rows of the algorithms that learn a model of the environment."""

from rl_training.experiment.algorithm_spec import ACTOR_CRITIC_UPDATES_TO_COMPILE, AlgorithmSpec
from rl_training.hparams.dreamer import DreamerHParams
from rl_training.hparams.mbpo import MBPOHParams, MOPOHParams
from rl_training.hparams.schedules import actor_critic_updates, dreamer_updates, offline_updates

ROWS = (
    AlgorithmSpec(
        name="mbpo",
        class_name="MBPO",
        summary="SAC on short rollouts through an ensemble of learned dynamics models",
        paper="Janner et al. 2019, When to trust your model: model-based policy optimization",
        loop="off_policy",
        actions=frozenset({"box"}),
        observations=frozenset({"vector"}),
        hparams=MBPOHParams,
        stochastic=True,
        build="rl_training.algorithms.mbpo:build_mbpo",
        memory="rl_training.data.mixed_source:build_mixed_source",
        updates_until=actor_critic_updates,
        policy_module="rl_training.algorithms.mbpo:mbpo_policy",
        stackable=True,
        per_member=frozenset({"policy_learning_rate"}),
        intervals=("learning_starts", "rollout_refresh_interval", "model_train_frequency"),
        updates_at_once=True,
        min_updates_to_compile=ACTOR_CRITIC_UPDATES_TO_COMPILE,
        callbacks="rl_training.runtime.model_training:model_training",
        reference_config="mbpo/pendulum.yaml",
    ),
    AlgorithmSpec(
        name="mopo",
        class_name="MOPO",
        summary="offline MBPO: rollout rewards are reduced by a penalty for model uncertainty",
        paper="Yu et al. 2020, MOPO: model-based offline policy optimization",
        loop="offline",
        actions=frozenset({"box"}),
        observations=frozenset({"vector"}),
        hparams=MOPOHParams,
        stochastic=True,
        build="rl_training.algorithms.mopo:build_mopo",
        memory="rl_training.data.mixed_source:build_mixed_dataset",
        updates_until=offline_updates,
        policy_module="rl_training.algorithms.mbpo:mbpo_policy",
        min_updates_to_compile=ACTOR_CRITIC_UPDATES_TO_COMPILE,
        stackable=True,
        per_member=frozenset({"policy_learning_rate", "penalty_coef"}),
        intervals=("rollout_refresh_interval", "model_train_frequency"),
        callbacks="rl_training.runtime.model_training:offline_model_training",
        reference_config="mopo/pendulum.yaml",
    ),
    AlgorithmSpec(
        name="dreamer",
        class_name="Dreamer",
        summary="actor and critic that learn from trajectories imagined by a recurrent world model",
        paper="Hafner et al. 2025, Mastering diverse control tasks through world models",
        loop="off_policy",
        actions=frozenset({"discrete", "box", "multidiscrete", "multibinary"}),
        observations=frozenset({"image", "vector", "discrete", "dict"}),
        hparams=DreamerHParams,
        stochastic=True,
        build="rl_training.algorithms.dreamer:build_dreamer",
        memory="rl_training.data.recurrent_replay_buffer:build_recurrent_replay_buffer",
        updates_until=dreamer_updates,
        policy_module="rl_training.algorithms.dreamer:dreamer_policy",
        min_updates_to_compile=50_000,  # the compiler unrolls the scan over a sequence and the imagination: minutes
        reference_config="dreamer/catch.yaml",
    ),
)
