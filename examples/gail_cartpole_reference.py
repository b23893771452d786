"""Imitate one episode of CartPole-v1 with GAIL, look at the result, save the agent and use it again."""

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training import GAIL, load_config

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--total-timesteps", type=int, help="env steps; default: as the reference config says")
parser.add_argument("--eval-episodes", type=int, default=20)
parser.add_argument("--output-dir", type=Path, default=Path("runs"))
parser.add_argument("--expert", type=Path, default=Path("cartpole_expert.npz"), help="made if it is not there")
args = parser.parse_args()


def record_expert(path: Path) -> None:
    """Write one episode of a hand-written controller; `rl-training record` does the same for a trained agent."""
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    terminated = truncated = False
    rows = []
    while not (terminated or truncated):
        action = int(obs @ np.array([0.1, 0.3, 3.0, 1.0]) > 0.0)  # push to the side to which pole and cart are moving
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, next_obs, terminated, truncated))
        obs = next_obs
    names = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations")
    columns: dict[str, Any] = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    np.savez(path, **columns)
    print(f"the expert's return: {sum(float(row[2]) for row in rows):.0f}")


if not args.expert.exists():
    record_expert(args.expert)
config = load_config("configs/gail/cartpole.yaml").updated(eval_episodes=args.eval_episodes, output_dir=args.output_dir)
config = config.updated(algo_kwargs={**config.algo_kwargs, "expert_dataset_path": args.expert})
agent = GAIL(config)
result = agent.learn(args.total_timesteps)
print(f"mean return of {args.eval_episodes} episodes after {result.step:,} steps: {result.eval_return:.1f}")

agent = GAIL.load(agent.save(result.run_dir / "agent"))
env = gym.make("CartPole-v1")
obs, _ = env.reset(seed=0)
terminated = truncated = False
total = 0.0
while not (terminated or truncated):
    obs, reward, terminated, truncated, _ = env.step(agent.predict(obs))
    total += float(reward)
print(f"return of the episode with seed 0: {total:.0f}; everything lies in {result.run_dir}")
