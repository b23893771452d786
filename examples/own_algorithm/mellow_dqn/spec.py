"""The row of the registry, which the entry point in pyproject.toml names. Nothing here imports torch."""

from mellow_dqn.hparams import MellowDQNHParams
from rl_training.experiment.registry import AlgorithmSpec
from rl_training.hparams.schedules import q_learning_updates

SPEC = AlgorithmSpec(
    name="mellow_dqn",
    class_name="MellowDQN",
    summary="DQN with a soft maximum in its target",
    paper="Asadi and Littman 2017, An alternative softmax operator for reinforcement learning",
    loop="off_policy",
    actions=frozenset({"discrete"}),
    observations=frozenset({"vector", "image", "discrete", "dict"}),
    hparams=MellowDQNHParams,
    build="mellow_dqn.algorithm:build_mellow_dqn",
    memory="rl_training.data.replay_buffer:build_replay_buffer",
    updates_until=q_learning_updates,
    policy_module="rl_training.learners.q_learning:q_policy",
    reference_config="mellow_dqn/cartpole.yaml",
)
