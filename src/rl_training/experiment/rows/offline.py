"""Rows of the algorithms that learn from a dataset."""

from rl_training.core.kinds import ActionKind
from rl_training.experiment.algorithm_spec import ACTOR_CRITIC_UPDATES_TO_COMPILE, ALL_OBSERVATIONS, AlgorithmSpec
from rl_training.hparams.base import HParams
from rl_training.hparams.bc import BCHParams
from rl_training.hparams.cql import CalQLHParams, CQLHParams
from rl_training.hparams.iql import IQLHParams, IQLOnlineHParams
from rl_training.hparams.rebrac import ReBRACHParams, TD3BCHParams
from rl_training.hparams.schedules import actor_critic_updates, iql_online_updates, offline_updates


def _offline(
    name: str,
    summary: str,
    paper: str,
    hparams: type[HParams],
    actions: frozenset[ActionKind],
    per_member: frozenset[str],
) -> AlgorithmSpec:
    """Build a row of the algorithms that learn from a dataset."""
    return AlgorithmSpec(
        name=name,
        class_name=name.upper(),
        summary=summary,
        paper=paper,
        loop="offline",
        actions=actions,
        observations=ALL_OBSERVATIONS,
        hparams=hparams,
        stochastic=True,
        build=f"rl_training.algorithms.{name}:build_{name}",
        memory="rl_training.data.dataset_memory:build_dataset_memory",
        updates_until=offline_updates,
        policy_module="rl_training.learners.offline:offline_policy",
        min_updates_to_compile=ACTOR_CRITIC_UPDATES_TO_COMPILE,
        stackable=True,
        per_member=per_member,
        callbacks="rl_training.runtime.offline_evaluation:held_out_evaluation",
        reference_config=f"{name}/pendulum.yaml",
    )


def _critics_on_dataset(
    name: str,
    class_name: str,
    summary: str,
    paper: str,
    hparams: type[HParams],
    *,
    build: str,
    memory: str = "build_dataset_memory",
    stochastic: bool = False,
) -> AlgorithmSpec:
    """Build a row of the off-policy actor-critics that learn from a dataset."""
    return AlgorithmSpec(
        name=name,
        class_name=class_name,
        summary=summary,
        paper=paper,
        loop="offline",
        actions=frozenset({"box"}),
        observations=ALL_OBSERVATIONS,
        hparams=hparams,
        stochastic=stochastic,
        build=f"rl_training.algorithms.{build}",
        memory=f"rl_training.data.dataset_memory:{memory}",
        updates_until=offline_updates,
        policy_module="rl_training.learners.actor_critic:actor_policy",
        min_updates_to_compile=ACTOR_CRITIC_UPDATES_TO_COMPILE,
        stackable=True,
        per_member=frozenset({"learning_rate", "reward_scale", "reward_shift"}),
        callbacks="rl_training.runtime.offline_evaluation:held_out_evaluation",
        reference_config=f"{name}/pendulum.yaml",
    )


ROWS = (
    _offline(
        "iql",
        "implicit Q-learning: offline, with values of the dataset's own actions only",
        "Kostrikov et al. 2022, Offline reinforcement learning with implicit Q-learning",
        IQLHParams,
        frozenset({"box"}),
        per_member=frozenset({"learning_rate", "gamma", "tau", "expectile", "beta", "reward_scale", "reward_shift"}),
    ),
    AlgorithmSpec(
        name="iql_online",
        class_name="IQLOnline",
        summary="IQL that continues in an environment after training on a dataset",
        paper="Kostrikov et al. 2022, Offline reinforcement learning with implicit Q-learning",
        loop="off_policy",
        actions=frozenset({"box"}),
        observations=ALL_OBSERVATIONS,
        hparams=IQLOnlineHParams,
        stochastic=True,
        build="rl_training.algorithms.iql:build_iql",
        memory="rl_training.data.replay_buffer:build_replay_buffer",
        updates_until=iql_online_updates,
        policy_module="rl_training.learners.offline:offline_policy",
        updates_at_once=True,
        min_updates_to_compile=ACTOR_CRITIC_UPDATES_TO_COMPILE,
        begin="rl_training.runtime.offline_to_online:begin_from_offline_run",
        reference_config="iql_online/pendulum.yaml",
    ),
    _offline(
        "bc",
        "behavioural cloning: imitates the actions of a dataset",
        "Pomerleau 1991, Efficient training of artificial neural networks for autonomous navigation",
        BCHParams,
        frozenset({"box", "discrete"}),
        per_member=frozenset({"learning_rate"}),
    ),
    _critics_on_dataset(
        "td3_bc",
        "TD3BC",
        "TD3 on a dataset, with a term that imitates its actions",
        "Fujimoto and Gu 2021, A minimalist approach to offline reinforcement learning",
        TD3BCHParams,
        build="rebrac:build_td3_bc",
    ),
    _critics_on_dataset(
        "rebrac",
        "ReBRAC",
        "TD3+BC that also penalizes the target, with deeper networks and normalized critics",
        "Tarasov et al. 2023, Revisiting the minimalist approach to offline reinforcement learning",
        ReBRACHParams,
        build="rebrac:build_rebrac",
        memory="build_memory_with_next_actions",
    ),
    _critics_on_dataset(
        "cql",
        "CQL",
        "SAC on a dataset, with low values for actions that it does not contain",
        "Kumar et al. 2020, Conservative Q-learning for offline reinforcement learning",
        CQLHParams,
        build="cql:build_cql",
        memory="build_memory_with_returns",
        stochastic=True,
    ),
    AlgorithmSpec(
        name="cal_ql",
        class_name="CalQL",
        summary="CQL that continues in an environment, with values that the returns of the data bound below",
        paper="Nakamoto et al. 2023, Cal-QL: calibrated offline RL pre-training for efficient online fine-tuning",
        loop="off_policy",
        actions=frozenset({"box"}),
        observations=frozenset({"vector"}),
        hparams=CalQLHParams,
        stochastic=True,
        build="rl_training.algorithms.cql:build_cql",
        memory="rl_training.data.mixed_source:build_online_with_returns",
        updates_until=actor_critic_updates,
        policy_module="rl_training.learners.actor_critic:actor_policy",
        updates_at_once=True,
        min_updates_to_compile=ACTOR_CRITIC_UPDATES_TO_COMPILE,
        begin="rl_training.runtime.offline_to_online:begin_from_cql_run",
        reference_config="cal_ql/pendulum.yaml",
    ),
)
