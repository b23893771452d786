"""PPO on CartPole-v1, LunarLander-v3, Pendulum-v1 and HalfCheetah-v5."""

from benchmarks.engine import Peer, Row
from benchmarks.launch import PPO_CONTENDERS

# rl-zoo3's hyperparameters for stable-baselines3's PPO, under our names; the rest are stable-baselines3's defaults.
ZOO_PPO = {
    "minibatch_size": 64,
    "learning_rate": 3e-4,
    "learning_rate_schedule": "constant",
    "clip_coef": 0.2,
    "clip_schedule": "constant",
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "hidden_sizes": [64, 64],
}
ZOO_PPO_CARTPOLE = {
    **ZOO_PPO,
    "num_steps": 32,
    "minibatch_size": 256,
    "update_epochs": 20,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "clip_schedule": "linear",
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "ent_coef": 0.0,
}
ZOO_PPO_LUNAR_LANDER = {
    **ZOO_PPO,
    "num_steps": 1_024,
    "update_epochs": 4,
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "ent_coef": 0.01,
}
ZOO_PPO_PENDULUM = {
    **ZOO_PPO,
    "num_steps": 1_024,
    "update_epochs": 10,
    "learning_rate": 1e-3,
    "gamma": 0.9,
    "gae_lambda": 0.95,
    "ent_coef": 0.0,
    "use_sde": True,
    "sde_sample_freq": 4,
}

FIRST_ROLLOUT = "the first rollout is learned with normalised observations"
ROWS = {
    "ppo-cartpole": Row(
        config="ppo/cartpole.yaml",
        env_id="CartPole-v1",
        steps=100_000,
        target="500 on 5/5 seeds by 50k",
        peers=[Peer(contender=PPO_CONTENDERS["sb3"], hparams=ZOO_PPO_CARTPOLE, num_envs=8)],
        threshold=475.0,
        by=50_000,
        track_every=1_000,
    ),
    "pqn-cartpole": Row(
        config="pqn/cartpole.yaml",
        env_id="CartPole-v1",
        steps=500_000,
        target=">= 495",  # as the published training returns
        peers=[],
        threshold=475.0,
        by=500_000,
        track_every=20_000,
    ),
    "ppo-lunarlander": Row(
        config="ppo/lunarlander.yaml",
        env_id="LunarLander-v3",
        steps=1_000_000,
        target=">= 250, or >= 200 by 300k",
        peers=[Peer(contender=PPO_CONTENDERS["sb3"], hparams=ZOO_PPO_LUNAR_LANDER, num_envs=16)],
        threshold=200.0,
        by=300_000,
        track_every=20_000,
        chosen_on="seeds 100 to 105",
        changed_since=FIRST_ROLLOUT,
    ),
    "ppo-pendulum": Row(
        config="ppo/pendulum.yaml",
        env_id="Pendulum-v1",
        steps=100_000,
        target=">= -165",
        peers=[Peer(contender=PPO_CONTENDERS["sb3"], hparams=ZOO_PPO_PENDULUM, num_envs=4)],
        threshold=-165.0,
        track_every=5_000,
        eval_episodes=100,
        track_episodes=100,
        chosen_on="seeds 100 to 105",
    ),
    "ppo-halfcheetah": Row(
        config="ppo/halfcheetah.yaml",
        env_id="HalfCheetah-v5",
        steps=1_000_000,
        target=">= 5900",
        threshold=5_900.0,
        track_every=50_000,
        eval_episodes=10,
        seeds=3,
        chosen_on="seeds 100 to 105",
        changed_since=FIRST_ROLLOUT,
        published={
            "tianshou": "5783.9 ± 1244 (Tianshou's benchmark page: best point of the evaluation curve, 10 seeds)",
            "sb3": "5819 ± 664 (rl-zoo3's table: HalfCheetah-v3, one run, deviation over episodes)",
            "cleanrl": "1442.6 ± 46 (CleanRL's documentation: HalfCheetah-v4, training episodes, 3 seeds)",
        },
    ),
}
