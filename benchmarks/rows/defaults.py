"""PPO, DQN and SAC without a config: our defaults and stable-baselines3's, each on tasks they were not written for."""

from typing import Any

from benchmarks.engine import Peer, Row
from benchmarks.launch import SB3_DEFAULTS

# Task: environment, the return at which it counts as solved or learned, evaluation episodes.
TASKS: dict[str, tuple[str, float, int]] = {
    "cartpole": ("CartPole-v1", 475.0, 20),
    "acrobot": ("Acrobot-v1", -100.0, 20),
    "lunarlander": ("LunarLander-v3", 200.0, 20),
    "pendulum": ("Pendulum-v1", -200.0, 100),
    "hopper": ("Hopper-v5", 1_000.0, 10),
    "halfcheetah": ("HalfCheetah-v5", 1_000.0, 10),
    "minatar-breakout": ("MinAtar/Breakout-v0", 10.0, 100),
}
CHOSEN_ON = {
    "ppo": "seeds 100 to 105",
    "sac": "seeds 100 to 102 of HalfCheetah, Hopper, Walker2d and Ant",
}
WITHOUT_PEER = ("minatar-breakout",)  # stable-baselines3's environment has no MinAtar


def defaults(algo: str, task: str, steps: int, target: str, **more: Any) -> Row:
    env_id, threshold, episodes = TASKS[task]
    return Row(
        config="",
        algo=algo,
        env_id=env_id,
        steps=steps,
        target=target,
        peers=[] if task in WITHOUT_PEER else [Peer(contender=SB3_DEFAULTS, hparams={}, algo=algo)],
        threshold=threshold,
        track_every=steps // 10,
        eval_episodes=episodes,
        seeds=3 if task in WITHOUT_PEER else 10,
        chosen_on=CHOSEN_ON.get(algo, ""),
        **more,
    )


AT_LEAST_SB3 = ">= stable-baselines3's defaults"
AT_LEAST_PUBLISHED = ">= 9"  # DQN's in the MinAtar paper, after twice as many frames
ROWS = {
    "ppo-cartpole-defaults": defaults("ppo", "cartpole", 50_000, AT_LEAST_SB3),
    "ppo-acrobot-defaults": defaults("ppo", "acrobot", 100_000, AT_LEAST_SB3),
    "ppo-lunarlander-defaults": defaults("ppo", "lunarlander", 300_000, ">= 180 and >= stable-baselines3's defaults"),
    "ppo-pendulum-defaults": defaults("ppo", "pendulum", 200_000, AT_LEAST_SB3),
    "ppo-hopper-defaults": defaults("ppo", "hopper", 200_000, AT_LEAST_SB3),
    "ppo-minatar-breakout-defaults": defaults("ppo", "minatar-breakout", 500_000, AT_LEAST_PUBLISHED),
    "dqn-cartpole-defaults": defaults("dqn", "cartpole", 50_000, AT_LEAST_SB3),
    "dqn-acrobot-defaults": defaults("dqn", "acrobot", 50_000, AT_LEAST_SB3),
    "dqn-lunarlander-defaults": defaults("dqn", "lunarlander", 100_000, AT_LEAST_SB3),
    "dqn-minatar-breakout-defaults": defaults("dqn", "minatar-breakout", 500_000, AT_LEAST_PUBLISHED),
    "sac-pendulum-defaults": defaults("sac", "pendulum", 10_000, AT_LEAST_SB3),
    "sac-halfcheetah-defaults": defaults("sac", "halfcheetah", 50_000, AT_LEAST_SB3),
}
