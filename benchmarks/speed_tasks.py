"""The settings of the speed benchmark: the same training run, with the same hyperparameters, for every contender."""

from dataclasses import dataclass, replace
from typing import Any

from benchmarks.launch import (
    CONTRIB_CONTENDERS,
    DQN_CONTENDERS,
    HEAD_CONTENDERS,
    IQL_CONTENDERS,
    IQN_CONTENDERS,
    OFFLINE_CONTENDERS,
    PPO_CONTENDERS,
    QR_DQN_CONTENDERS,
    REDQ_CONTENDERS,
    SAC_CONTENDERS,
    TD3_CONTENDERS,
    Contender,
)


@dataclass(frozen=True, kw_only=True)
class SpeedTask:
    """One setting for all contenders.

    `reference`: the contender that the others are divided by. `floor`: whether the matrix products of our update are
    also timed alone. `warm_up`: environment steps with updates before the steady part. `dataset_rows`: number of random
    transitions of HalfCheetah's sizes to learn from, instead of an environment. `note`: how to read the result.
    """

    algo: str
    env_id: str
    steps: int
    num_envs: int = 1
    hparams: dict[str, Any]
    contenders: dict[str, Contender]
    reference: str
    floor: bool = False
    warm_up: int = 500
    dataset_rows: int = 0
    note: str = ""

    @property
    def updates_per_step(self) -> float:
        """Updates per environment step of the tasks with a floor."""
        return float(self.hparams.get("gradient_updates_per_step", 1))

    def whole(self, steps: int) -> int:
        """Round up to whole rollouts, where there are any, so that all contenders do the same work."""
        rollout: int = self.hparams.get("num_steps", 1) * self.num_envs
        return -(-steps // rollout) * rollout


# One update per environment step, with the sizes of CleanRL's DQN.
Q_LEARNING = {
    "learning_starts": 1_000,
    "train_frequency": 1,
    "gradient_steps": 1,
    "batch_size": 128,
    "buffer_capacity": 10_000,
    "hidden_sizes": [120, 84],
    "target_update_interval": 500,
    "learning_rate": 2.5e-4,
    "max_grad_norm": 10.0,
    "gamma": 0.99,
    "epsilon_start": 1.0,
    "epsilon_end": 0.05,
    "exploration_fraction": 0.5,
    # Our defaults differ here from the peers'.
    "layer_norm": False,
    "learning_rate_schedule": "constant",
}
CARTPOLE_ATOMS = {"num_atoms": 51, "v_min": 0.0, "v_max": 100.0}


def head_task(
    algo: str, hparams: dict[str, Any], contenders: dict[str, Contender], *, steps: int = 10_000, reference: str
) -> SpeedTask:
    """Build DQN's setting with another head, with fewer steps, since the peers take minutes for 10,000."""
    return SpeedTask(
        algo=algo,
        env_id="CartPole-v1",
        steps=steps,
        hparams={**Q_LEARNING, "adam_eps": 1e-8, **hparams},
        contenders=contenders,
        reference=reference,
        floor=True,
        note="fewer steps than DQN's 50000, for all contenders: the steady figures are the ones to compare",
    )


# The values of the SAC paper, with fewer random steps at the start.
ACTOR_CRITIC = {
    "learning_starts": 300,
    "train_frequency": 1,
    "gradient_updates_per_step": 1,
    "policy_delay": 1,
    "batch_size": 256,
    "buffer_capacity": 100_000,
    "hidden_sizes": [256, 256],
    "learning_rate": 3e-4,
    "tau": 0.005,
    "gamma": 0.99,
    "adam_eps": 1e-8,
}


def actor_critic_task(
    algo: str, env_id: str, contenders: dict[str, Contender], *, reference: str = "sb3", **hparams: Any
) -> SpeedTask:
    """Build a short task with one update per environment step: the peers make fewer than a hundred per second."""
    return SpeedTask(
        algo=algo,
        env_id=env_id,
        steps=800,
        hparams={**ACTOR_CRITIC, **hparams},
        contenders=contenders,
        reference=reference,
        floor=True,
        warm_up=100,
        note="runs are short, and compilation and random steps take a large part of them: compare the steady figures",
    )


def contrib_task(algo: str, hparams: dict[str, Any]) -> SpeedTask:
    """Build a task beside sb3-contrib, with fewer updates than SAC's: its critics are larger."""
    task = actor_critic_task(algo, "HalfCheetah-v5", CONTRIB_CONTENDERS, reference="sb3_contrib")
    return replace(task, hparams=hparams, steps=400, warm_up=20, floor=False)


# The papers' values. All of them are here, because d3rlpy receives each.
OFFLINE = {
    "batch_size": 256,
    "hidden_sizes": [256, 256],
    "network": "mlp",
    "layer_norm": False,
    "learning_rate": 3e-4,
    "learning_rate_schedule": "constant",
    "adam_eps": 1e-8,
    "max_grad_norm": None,
    "gamma": 0.99,
    "tau": 0.005,
    "reward_scale": "none",
    "reward_shift": 0.0,
    "normalize_observations": False,
}
IQL = {
    **OFFLINE,
    "learning_rate_schedule": "cosine",
    "expectile": 0.7,
    "beta": 3.0,
    "max_advantage_weight": 100.0,
}
DELAYED = {**OFFLINE, "policy_delay": 2, "target_noise": 0.2, "target_noise_clip": 0.5}
TD3_BC = {**DELAYED, "normalize_observations": True, "alpha": 2.5}
REBRAC = {
    **DELAYED,
    "batch_size": 1_024,
    "hidden_sizes": [256, 256, 256],
    "layer_norm": True,
    "learning_rate": 1e-3,
    "actor_penalty": 0.01,
    "critic_penalty": 0.01,
}
CQL = {
    **OFFLINE,
    "hidden_sizes": [256, 256, 256],
    "normalize_observations": True,
    "actor_learning_rate": 3e-5,
    "alpha_learning_rate": 3e-5,
    "policy_delay": 1,
    "alpha": "auto",
    "target_entropy": "auto",
    "entropy_in_target": False,
    "conservative_weight": 10.0,
    "num_sampled_actions": 10,
    "calibrated": False,
}


def offline_task(
    algo: str, hparams: dict[str, Any], contenders: dict[str, Contender], *, steps: int = 1_500, floor: bool = False
) -> SpeedTask:
    """Build a task that learns from random numbers."""
    return SpeedTask(
        algo=algo,
        env_id="HalfCheetah-v5",
        steps=steps,
        hparams=hparams,
        contenders=contenders,
        reference="d3rlpy",
        floor=floor,
        warm_up=min(200, steps // 4),
        dataset_rows=100_000,
        note="steps are updates, on random numbers of HalfCheetah-v5's sizes: compare the steady figures. d3rlpy by "
        "fit(), without its log files and progress bar",
    )


TASKS = {
    "dqn": SpeedTask(
        algo="dqn",
        env_id="CartPole-v1",
        steps=50_000,
        hparams=Q_LEARNING,
        contenders=DQN_CONTENDERS,
        reference="sb3",
        floor=True,
    ),
    # For all contenders: actor and critic are separate tanh networks, Adam's epsilon is 1e-5, the value loss is
    # `vf_coef` times the mean squared error, advantages are normalised per minibatch, and values are not clipped.
    "ppo": SpeedTask(
        algo="ppo",
        env_id="CartPole-v1",
        steps=100_000,
        num_envs=8,
        hparams={
            "num_steps": 128,
            "update_epochs": 4,
            "minibatch_size": 256,
            "hidden_sizes": [64, 64],
            "learning_rate": 2.5e-4,
            "learning_rate_schedule": "constant",
            "clip_coef": 0.2,
            "clip_schedule": "constant",
            "max_grad_norm": 0.5,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "ent_coef": 0.01,
            "vf_coef": 0.5,
        },
        contenders=PPO_CONTENDERS,
        reference="sb3",
    ),
    "qr_dqn": head_task("qr_dqn", {"num_quantiles": 51}, QR_DQN_CONTENDERS, reference="sb3_contrib"),
    # The peers' default number of quantiles; their updates take 40 to 90 ms.
    "qr_dqn-200": head_task("qr_dqn", {"num_quantiles": 200}, QR_DQN_CONTENDERS, steps=3_000, reference="sb3_contrib"),
    "c51_dqn": head_task("c51_dqn", {**CARTPOLE_ATOMS, "double_q": True}, HEAD_CONTENDERS, reference="tianshou"),
    # Our embedding counts its cosines from 0, Tianshou's from 1.
    "iqn": head_task(
        "iqn",
        {"num_quantiles": 32, "num_tau_samples": 8, "embedding_dim": 64, "double_q": True},
        IQN_CONTENDERS,
        reference="tianshou",
    ),
    # No contender clips the gradient of the fractions.
    "fqf": head_task(
        "fqf",
        {
            "num_quantiles": 32,
            "embedding_dim": 64,
            "entropy_coef": 1e-3,
            "fraction_learning_rate": 2.5e-9,
            "double_q": True,
        },
        HEAD_CONTENDERS,
        reference="tianshou",
    ),
    # All layers are noisy; in Tianshou's own example only the last ones are.
    "rainbow_dqn": head_task(
        "rainbow_dqn",
        {
            **CARTPOLE_ATOMS,
            "double_q": True,
            "dueling": True,
            "noisy": True,
            "noisy_sigma": 0.5,
            "n_step": 3,
            "prioritized": True,
            "prioritized_alpha": 0.5,
            "prioritized_beta_start": 0.4,
            "prioritized_beta_end": 1.0,
            # With noisy layers ours takes no random actions, so the peer takes none either.
            "epsilon_start": 0.0,
            "epsilon_end": 0.0,
        },
        HEAD_CONTENDERS,
        reference="tianshou",
    ),
    "sac-pendulum": actor_critic_task("sac", "Pendulum-v1", SAC_CONTENDERS),
    "sac-halfcheetah": actor_critic_task("sac", "HalfCheetah-v5", SAC_CONTENDERS),
    "td3-pendulum": actor_critic_task(
        "td3",
        "Pendulum-v1",
        TD3_CONTENDERS,
        policy_delay=2,
        exploration_noise=0.1,
        target_noise=0.2,
        target_noise_clip=0.5,
    ),
    # Tianshou averages the losses of the critics, ours sums them.
    "redq": replace(
        actor_critic_task(
            "redq",
            "HalfCheetah-v5",
            REDQ_CONTENDERS,
            reference="tianshou",
            gradient_updates_per_step=20,
            policy_delay=20,
            num_critics=10,
            subset_size=2,
        ),
        steps=320,
        warm_up=4,
        note="320 env steps, of which the last 20 have 20 updates each: compare the steady figures. "
        "sbx-sac is not REDQ: the target and the actor use the minimum of all ten critics",
    ),
    # The networks of its authors.
    "tqc": contrib_task(
        "tqc",
        {
            **ACTOR_CRITIC,
            "critic_hidden_sizes": [512, 512, 512],
            "num_critics": 5,
            "num_quantiles": 25,
            "dropped_quantiles": 2,
        },
    ),
    # Critics of sb3-contrib's default size: those of its authors, twice as wide, are meant for a GPU.
    "crossq": contrib_task(
        "crossq",
        {
            **{name: value for name, value in ACTOR_CRITIC.items() if name != "tau"},
            "learning_rate": 1e-3,
            "critic_hidden_sizes": [1024, 1024],
            "policy_delay": 3,
        },
    ),
    "iql": offline_task("iql", IQL, IQL_CONTENDERS, floor=True),
    "td3_bc": offline_task("td3_bc", TD3_BC, OFFLINE_CONTENDERS),
    "rebrac": offline_task("rebrac", REBRAC, OFFLINE_CONTENDERS, steps=400),
    "cql": offline_task("cql", CQL, OFFLINE_CONTENDERS, steps=400),
}
