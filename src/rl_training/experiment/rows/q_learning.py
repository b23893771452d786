"""Rows of the DQN family."""

from dataclasses import replace

from rl_training.experiment.algorithm_spec import ALL_OBSERVATIONS, AlgorithmSpec
from rl_training.hparams.base import HParams
from rl_training.hparams.c51_dqn import BBFHParams, C51HParams, RainbowDQNHParams
from rl_training.hparams.dqn import (
    DoubleDQNHParams,
    DQNHParams,
    DuelingDQNHParams,
    NoisyDQNHParams,
    NStepDQNHParams,
    PrioritizedDQNHParams,
)
from rl_training.hparams.fqf import FQFHParams
from rl_training.hparams.iqn import IQNHParams
from rl_training.hparams.qr_dqn import QRDQNHParams
from rl_training.hparams.schedules import q_learning_updates


def _q_learning(
    name: str,
    class_name: str,
    summary: str,
    paper: str,
    hparams: type[HParams],
    build: str,
) -> AlgorithmSpec:
    """Build a row of the DQN family."""
    return AlgorithmSpec(
        name=name,
        class_name=class_name,
        summary=summary,
        paper=paper,
        family="dqn",
        loop="off_policy",
        actions=frozenset({"discrete"}),
        observations=ALL_OBSERVATIONS,
        hparams=hparams,
        action_masks=True,
        build=f"rl_training.algorithms.{build}",
        memory="rl_training.data.replay_buffer:build_replay_buffer",
        updates_until=q_learning_updates,
        device_loop=True,
        stackable=True,
        per_member=frozenset({"learning_rate"}),
        policy_module="rl_training.learners.q_learning:q_policy",
        reference_config=f"{name}/cartpole.yaml",
    )


ROWS = (
    _q_learning(
        "dqn",
        "DQN",
        "deep Q-learning with a replay buffer and a target network",
        "Mnih et al. 2015, Human-level control through deep reinforcement learning",
        DQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "double_dqn",
        "DoubleDQN",
        "DQN whose online network selects the action in the target",
        "van Hasselt et al. 2016, Deep reinforcement learning with double Q-learning",
        DoubleDQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "dueling_dqn",
        "DuelingDQN",
        "double DQN with separate streams for state value and action advantages",
        "Wang et al. 2016, Dueling network architectures for deep reinforcement learning",
        DuelingDQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "noisy_dqn",
        "NoisyDQN",
        "DQN that explores by learned noise on its weights",
        "Fortunato et al. 2018, Noisy networks for exploration",
        NoisyDQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "prioritized_dqn",
        "PrioritizedDQN",
        "DQN that samples transitions by their TD error",
        "Schaul et al. 2016, Prioritized experience replay",
        PrioritizedDQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "n_step_dqn",
        "NStepDQN",
        "DQN with three-step returns",
        "Sutton 1988, Learning to predict by the methods of temporal differences",
        NStepDQNHParams,
        "dqn:build_dqn",
    ),
    _q_learning(
        "c51_dqn",
        "C51DQN",
        "distributional DQN: probabilities of fixed returns (atoms)",
        "Bellemare et al. 2017, A distributional perspective on reinforcement learning",
        C51HParams,
        "c51_dqn:build_c51_dqn",
    ),
    _q_learning(
        "rainbow_dqn",
        "RainbowDQN",
        "C51 with double, dueling, noisy, prioritized and three-step learning",
        "Hessel et al. 2018, Rainbow: combining improvements in deep reinforcement learning",
        RainbowDQNHParams,
        "c51_dqn:build_c51_dqn",
    ),
    replace(
        _q_learning(
            "bbf",
            "BBF",
            "C51 for few env steps: many updates, resets, annealed returns, a wide residual network",
            "Schwarzer et al. 2023, Bigger, better, faster: human-level Atari with human-level efficiency",
            BBFHParams,
            "c51_dqn:build_c51_dqn",
        ),
        device_loop=False,  # resets and annealed returns are the host's
        reference_config="bbf/catch.yaml",
    ),
    _q_learning(
        "qr_dqn",
        "QRDQN",
        "distributional DQN: quantiles of the return, by quantile regression",
        "Dabney et al. 2018, Distributional reinforcement learning with quantile regression",
        QRDQNHParams,
        "qr_dqn:build_qr_dqn",
    ),
    _q_learning(
        "iqn",
        "IQN",
        "distributional DQN: the quantile function of the return, at random fractions",
        "Dabney et al. 2018, Implicit quantile networks for distributional reinforcement learning",
        IQNHParams,
        "iqn:build_iqn",
    ),
    replace(
        _q_learning(
            "fqf",
            "FQF",
            "IQN with fractions proposed by a network",
            "Yang et al. 2019, Fully parameterized quantile function for distributional reinforcement learning",
            FQFHParams,
            "fqf:build_fqf",
        ),
        per_member=frozenset(),  # the state has one learning rate, and that of the fractions is in proportion to it
    ),
)
