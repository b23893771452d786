"""Train discrete SAC on CartPole-v1, look at the result, save the agent and use it again."""

import argparse
from pathlib import Path

import gymnasium as gym

from rl_training import DiscreteSAC, load_config

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--total-timesteps", type=int, help="env steps; default: as the reference config says")
parser.add_argument("--eval-episodes", type=int, default=20)
parser.add_argument("--output-dir", type=Path, default=Path("runs"))
args = parser.parse_args()

config = load_config("configs/discrete_sac/cartpole.yaml").updated(
    eval_episodes=args.eval_episodes, output_dir=args.output_dir
)
agent = DiscreteSAC(config)
result = agent.learn(args.total_timesteps)
print(f"mean return of {args.eval_episodes} episodes after {result.step:,} steps: {result.eval_return:.1f}")

agent = DiscreteSAC.load(agent.save(result.run_dir / "agent"))
env = gym.make("CartPole-v1")
obs, _ = env.reset(seed=0)
terminated = truncated = False
total = 0.0
while not (terminated or truncated):
    obs, reward, terminated, truncated, _ = env.step(agent.predict(obs))
    total += float(reward)
print(f"return of the episode with seed 0: {total:.0f}; everything lies in {result.run_dir}")
