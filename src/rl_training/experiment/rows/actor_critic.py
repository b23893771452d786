"""Rows of the off-policy actor-critics."""

from rl_training.core.kinds import ObservationKind
from rl_training.experiment.algorithm_spec import ACTOR_CRITIC_UPDATES_TO_COMPILE, ALL_OBSERVATIONS, AlgorithmSpec
from rl_training.hparams.base import HParams
from rl_training.hparams.crossq import CrossQHParams
from rl_training.hparams.discrete_sac import DiscreteSACHParams
from rl_training.hparams.redq import REDQHParams
from rl_training.hparams.rlpd import RLPDHParams
from rl_training.hparams.sac import SACHParams
from rl_training.hparams.schedules import actor_critic_updates
from rl_training.hparams.simbav2 import SimBaV2HParams
from rl_training.hparams.td3 import TD3HParams
from rl_training.hparams.tqc import TQCHParams


def _actor_critic(
    name: str,
    summary: str,
    paper: str,
    hparams: type[HParams],
    *,
    class_name: str = "",
    family: str = "sac",
    observations: frozenset[ObservationKind] = ALL_OBSERVATIONS,
    stochastic: bool = True,
    device_loop: bool = False,
) -> AlgorithmSpec:
    """Build a row of the off-policy actor-critics."""
    return AlgorithmSpec(
        name=name,
        class_name=class_name or name.upper(),
        summary=summary,
        paper=paper,
        family=family,
        loop="off_policy",
        actions=frozenset({"box"}),
        observations=observations,
        hparams=hparams,
        stochastic=stochastic,
        build=f"rl_training.algorithms.{name}:build_{name}",
        memory="rl_training.data.replay_buffer:build_replay_buffer",
        updates_until=actor_critic_updates,
        policy_module="rl_training.learners.actor_critic:actor_policy",
        device_loop=device_loop,
        stackable=True,
        per_member=frozenset({"learning_rate"}),
        updates_at_once=True,
        min_updates_to_compile=ACTOR_CRITIC_UPDATES_TO_COMPILE,
        reference_config=f"{name}/pendulum.yaml",
    )


ROWS = (
    _actor_critic(
        "sac",
        "soft actor-critic: two critics and an actor rewarded for its entropy",
        "Haarnoja et al. 2018, Soft actor-critic algorithms and applications",
        SACHParams,
        device_loop=True,
    ),
    _actor_critic(
        "td3",
        "deterministic actor that learns less often than its two critics",
        "Fujimoto et al. 2018, Addressing function approximation error in actor-critic methods",
        TD3HParams,
        stochastic=False,
        device_loop=True,
    ),
    _actor_critic(
        "redq",
        "SAC with an ensemble of critics and many updates per env step",
        "Chen et al. 2021, Randomized ensembled double Q-learning: learning fast without a model",
        REDQHParams,
    ),
    _actor_critic(
        "tqc",
        "SAC with critics of quantiles; targets leave out the largest ones",
        "Kuznetsov et al. 2020, Controlling overestimation bias with truncated mixture of continuous distributional "
        "quantile critics",
        TQCHParams,
    ),
    _actor_critic(
        "crossq",
        "SAC without target networks, whose wide critics have batch normalization",
        "Bhatt et al. 2024, CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency "
        "and simplicity",
        CrossQHParams,
        class_name="CrossQ",
        family="",
    ),
    _actor_critic(
        "simbav2",
        "SAC with hyperspherical networks, categorical critics and running normalization",
        "Lee et al. 2025, Hyperspherical normalization for scalable deep reinforcement learning",
        SimBaV2HParams,
        class_name="SimBaV2",
        family="",
        observations=frozenset({"vector"}),
    ),
    AlgorithmSpec(
        name="discrete_sac",
        class_name="DiscreteSAC",
        summary="SAC for discrete actions: a stochastic policy that learns from replay",
        paper="Christodoulou 2019, Soft actor-critic for discrete action settings",
        loop="off_policy",
        actions=frozenset({"discrete"}),
        observations=ALL_OBSERVATIONS,
        hparams=DiscreteSACHParams,
        stochastic=True,
        build="rl_training.algorithms.discrete_sac:build_discrete_sac",
        memory="rl_training.data.replay_buffer:build_replay_buffer",
        updates_until=actor_critic_updates,
        policy_module="rl_training.learners.actor_critic:choice_policy",
        callbacks="rl_training.runtime.temperature_check:temperature_check",
        stackable=True,
        per_member=frozenset({"learning_rate"}),
        updates_at_once=True,
        min_updates_to_compile=ACTOR_CRITIC_UPDATES_TO_COMPILE,
        reference_config="discrete_sac/cartpole.yaml",
    ),
    AlgorithmSpec(
        name="rlpd",
        class_name="RLPD",
        summary="SAC with an ensemble of critics, and half of each batch from a dataset",
        paper="Ball et al. 2023, Efficient online reinforcement learning with offline data",
        loop="off_policy",
        actions=frozenset({"box"}),
        observations=frozenset({"vector"}),
        hparams=RLPDHParams,
        stochastic=True,
        build="rl_training.algorithms.rlpd:build_rlpd",
        memory="rl_training.data.mixed_source:build_online_and_dataset",
        updates_until=actor_critic_updates,
        policy_module="rl_training.learners.actor_critic:actor_policy",
        updates_at_once=True,
        min_updates_to_compile=ACTOR_CRITIC_UPDATES_TO_COMPILE,
        reference_config="rlpd/pendulum.yaml",
    ),
)
