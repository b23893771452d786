"""Train IQL on a dataset of Pendulum-v1, then let it go on in the environment; save the agent and use it again."""

import argparse
from pathlib import Path

import gymnasium as gym

from rl_training import IQL, IQLOnline, load_config

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--total-timesteps", type=int, help="gradient steps, then env steps; default: as the configs say")
parser.add_argument("--eval-episodes", type=int, default=20)
parser.add_argument("--output-dir", type=Path, default=Path("runs"))
args = parser.parse_args()

config = load_config("configs/iql/pendulum.yaml").updated(eval_episodes=args.eval_episodes)
offline = IQL(config.updated(output_dir=f"{args.output_dir}_offline")).learn(args.total_timesteps)
print(f"return after learning from the dataset: {offline.eval_return:.1f}")

start = f"algo_kwargs.init_from={offline.run_dir}"
config = load_config("configs/iql_online/pendulum.yaml", [start]).updated(eval_episodes=args.eval_episodes)
agent = IQLOnline(config.updated(output_dir=args.output_dir))
result = agent.learn(args.total_timesteps)
print(f"mean return of {args.eval_episodes} episodes after {result.step:,} steps: {result.eval_return:.1f}")

agent = IQLOnline.load(agent.save(result.run_dir / "agent"))
obs, _ = gym.make("Pendulum-v1").reset(seed=0)
print(f"first action: {agent.predict(obs)}; everything lies in {result.run_dir}")
