"""DQN and its variants on CartPole-v1 and LunarLander-v3."""

from typing import Any

from benchmarks.engine import Control, Peer, Row
from benchmarks.launch import DQN_CONTENDERS, SB3_CONTRIB
from benchmarks.rows.peers import tianshou

# rl-zoo3's hyperparameters for stable-baselines3's DQN, under our names. SB3 counts `target_update_interval` in
# environment steps.
ZOO_CARTPOLE = {
    "learning_starts": 1_000,
    "train_frequency": 256,
    "gradient_steps": 128,
    "batch_size": 64,
    "buffer_capacity": 100_000,
    "hidden_sizes": [256, 256],
    "target_update_interval": 10,
    "learning_rate": 2.3e-3,
    "max_grad_norm": 10.0,
    "gamma": 0.99,
    "epsilon_start": 1.0,
    "epsilon_end": 0.04,
    "exploration_fraction": 0.16,
}
ZOO_LUNAR_LANDER = {
    **ZOO_CARTPOLE,
    "learning_starts": 0,
    "train_frequency": 4,
    "gradient_steps": -1,
    "batch_size": 128,
    "buffer_capacity": 50_000,
    "target_update_interval": 250,
    "learning_rate": 6.3e-4,
    "epsilon_end": 0.1,
    "exploration_fraction": 0.12,
}

# rl-zoo3's QR-DQN on CartPole has DQN's values. sb3-contrib's defaults apply to the rest: no clipping, and an Adam
# epsilon of 0.01 / batch size.
ZOO_QR_DQN_CARTPOLE = {
    **{name: value for name, value in ZOO_CARTPOLE.items() if name != "max_grad_norm"},
    "num_quantiles": 10,
}

# The hyperparameters of Tianshou's CartPole examples (its test/discrete scripts), under our names, without their early
# stop at 195. The examples collect one step per environment at a time, and the first steps use the policy itself.
TIANSHOU_CARTPOLE = {
    "learning_starts": 640,
    "random_start": False,
    "train_frequency": 10,
    "gradient_steps": 1,
    "batch_size": 64,
    "buffer_capacity": 20_000,
    "target_update_interval": 320,
    "gamma": 0.9,
    "n_step": 3,
    "epsilon_start": 0.1,
    "epsilon_end": 0.01,
    "schedule_steps": [10_000, 50_000],  # of epsilon, and of beta with prioritized replay
}
TIANSHOU_QR_DQN = {
    **TIANSHOU_CARTPOLE,
    "learning_rate": 1e-3,
    "hidden_sizes": [128, 128, 128, 128],
    "num_quantiles": 200,
}
TIANSHOU_IQN = {
    **TIANSHOU_CARTPOLE,
    "learning_rate": 3e-3,
    "trunk_sizes": [64, 64],
    "linear_features": 64,
    "head_sizes": [],
    "num_quantiles": 32,
    "num_tau_samples": 8,
    "embedding_dim": 64,
}
TIANSHOU_FQF = {
    **TIANSHOU_CARTPOLE,
    "learning_rate": 3e-3,
    "trunk_sizes": [64, 64],
    "linear_features": 64,
    "head_sizes": [64, 64, 64],
    "num_quantiles": 32,
    "embedding_dim": 64,
    "entropy_coef": 10.0,
    "fraction_learning_rate": 2.5e-9,
}
TIANSHOU_C51 = {  # the examples of C51 and Rainbow have 8 environments
    **TIANSHOU_CARTPOLE,
    "learning_starts": 512,
    "train_frequency": 8,
    "learning_rate": 1e-3,
    "hidden_sizes": [128, 128, 128, 128],
    "num_atoms": 51,
    "v_min": -10.0,
    "v_max": 10.0,
}
TIANSHOU_RAINBOW = {
    **{name: value for name, value in TIANSHOU_C51.items() if name != "hidden_sizes"},
    "trunk_sizes": [128, 128, 128, 128],
    "head_sizes": [],
    "noisy_trunk": False,
    "noisy_sigma": 0.1,
}
TIANSHOU_PRIORITIZED_RAINBOW = {
    **TIANSHOU_RAINBOW,
    "gamma": 0.95,
    "prioritized": True,
    "prioritized_alpha": 0.6,
    "prioritized_beta_start": 0.4,
    "prioritized_beta_end": 1.0,
}


def cartpole(algo: str, target: str, *peers: Peer, **more: Any) -> Row:
    return Row(
        config=f"{algo}/cartpole.yaml",
        env_id="CartPole-v1",
        steps=50_000,
        target=target,
        peers=peers,
        threshold=475.0,
        track_every=1_000,
        **more,
    )


LUNAR_LANDER_CHOSEN_ON = {
    "noisy_dqn": "seeds 100 to 107, after seeds 0 to 4 had missed",
    "iqn": "seeds 100 to 107, after seeds 0 to 4 had missed",
    "rainbow_dqn": "seeds 100 to 105",
    "fqf": "IQN's values, after seeds 0 to 9 had missed",
}


def lunarlander(algo: str, target: str, *peers: Peer) -> Row:
    return Row(
        config=f"{algo}/lunarlander.yaml",
        env_id="LunarLander-v3",
        steps=100_000,
        target=target,
        peers=peers,
        threshold=200.0,
        track_every=5_000,
        chosen_on=LUNAR_LANDER_CHOSEN_ON.get(algo, ""),
    )


NO_LATER_THAN_DQN = "500 on 5/5 seeds, 475 first held no later than by dqn"
AT_LEAST_495 = ">= 495 on 5/5 seeds"

ROWS = {
    "bbf-catch": Row(
        config="bbf/catch.yaml",
        env_id="rl_training/Catch-v0",
        steps=10_000,
        target=">= 0.95 of the balls caught",
        threshold=0.95,
        track_every=1_000,
        eval_episodes=200,
        track_episodes=100,
        chosen_on="no seed: not tuned",
    ),
    "dqn-cartpole": cartpole(
        "dqn",
        "500 on 5/5 seeds; first held at 475+ by 20k",
        Peer(contender=DQN_CONTENDERS["sb3"], hparams=ZOO_CARTPOLE),
        goal=500.0,
        chosen_on="seeds 100 to 107",
    ),
    "double_dqn-cartpole": cartpole("double_dqn", NO_LATER_THAN_DQN, goal=500.0),
    "dueling_dqn-cartpole": cartpole("dueling_dqn", NO_LATER_THAN_DQN, goal=500.0, chosen_on="seeds 100 to 102"),
    "n_step_dqn-cartpole": cartpole("n_step_dqn", NO_LATER_THAN_DQN, goal=500.0),
    "prioritized_dqn-cartpole": cartpole("prioritized_dqn", NO_LATER_THAN_DQN, goal=500.0),
    "noisy_dqn-cartpole": cartpole("noisy_dqn", ">= 475 on 5/5 seeds without epsilon", goal=475.0),
    "c51_dqn-cartpole": cartpole(
        "c51_dqn",
        ">= 495",
        tianshou("c51_dqn", TIANSHOU_C51),
        goal=495.0,
        published={"cleanrl": "481.2 ± 20.5 after 500k steps (CleanRL's documentation: training episodes, 3 seeds)"},
    ),
    "rainbow_dqn-cartpole": cartpole(
        "rainbow_dqn",
        AT_LEAST_495,
        tianshou("rainbow_dqn", TIANSHOU_RAINBOW),
        tianshou("rainbow_dqn", TIANSHOU_PRIORITIZED_RAINBOW, name="tianshou-prioritized"),
        goal=495.0,
    ),
    "qr_dqn-cartpole": cartpole(
        "qr_dqn",
        AT_LEAST_495,
        Peer(contender=SB3_CONTRIB, hparams=ZOO_QR_DQN_CARTPOLE),
        tianshou("qr_dqn", TIANSHOU_QR_DQN),
        goal=495.0,
        published={"sb3_contrib": "386 ± 64 (the table of its pull request: 5 seeds)"},
    ),
    "iqn-cartpole": cartpole("iqn", AT_LEAST_495, tianshou("iqn", TIANSHOU_IQN), goal=495.0),
    "fqf-cartpole": cartpole("fqf", AT_LEAST_495, tianshou("fqf", TIANSHOU_FQF), goal=495.0),
    "dqn-mountaincar": Row(
        config="dqn/mountaincar.yaml",
        env_id="MountainCar-v0",
        steps=120_000,
        target="none set; the expert that gail-mountaincar imitates",
        threshold=-110.0,
        track_every=10_000,
        eval_episodes=100,
    ),
    "dqn-bitflip": Row(
        config="dqn/bitflip.yaml",
        env_id="rl_training/BitFlip-v0",
        steps=10_000,
        target="-5.02 on 5/5 seeds; ours-no-her below -11",  # -5.02: the best return of these episodes
        controls={"ours-no-her": Control(config="dqn/bitflip.yaml", hparams={"her": "none"})},
        threshold=-5.5,
        track_every=500,
        eval_episodes=100,
        chosen_on="seed 100",
    ),
    "dqn-lunarlander": lunarlander("dqn", ">= 215", Peer(contender=DQN_CONTENDERS["sb3"], hparams=ZOO_LUNAR_LANDER)),
    **{f"{algo}-lunarlander": lunarlander(algo, ">= 215") for algo in ("double_dqn", "dueling_dqn", "n_step_dqn")},
    **{f"{algo}-lunarlander": lunarlander(algo, ">= 215") for algo in ("prioritized_dqn", "noisy_dqn")},
    **{
        f"{algo}-lunarlander": lunarlander(algo, ">= 215 and >= dqn")
        for algo in ("c51_dqn", "rainbow_dqn", "qr_dqn", "iqn", "fqf")
    },
}
