"""Train Dueling DQN on CartPole-v1, look at the result and save the agent."""

import argparse
from pathlib import Path

from rl_training import DuelingDQN, load_config

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--total-timesteps", type=int, help="env steps; default: as the reference config says")
parser.add_argument("--eval-episodes", type=int, default=20)
parser.add_argument("--output-dir", type=Path, default=Path("runs"))
args = parser.parse_args()

config = load_config("configs/dueling_dqn/cartpole.yaml")
agent = DuelingDQN(config.updated(eval_episodes=args.eval_episodes, output_dir=args.output_dir))
result = agent.learn(args.total_timesteps)
print(f"mean return of {args.eval_episodes} episodes after {result.step:,} steps: {result.eval_return:.1f}")
print(f"saved as {agent.save(result.run_dir / 'agent')}")
