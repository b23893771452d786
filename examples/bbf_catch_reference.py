"""Train BBF on Catch's pixels, look at the result and save the agent."""

import argparse
from pathlib import Path

from rl_training import BBF, load_config

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--total-timesteps", type=int, help="env steps; default: as the reference config says")
parser.add_argument("--eval-episodes", type=int, default=200)
parser.add_argument("--output-dir", type=Path, default=Path("runs"))
args = parser.parse_args()

config = load_config("configs/bbf/catch.yaml")
agent = BBF(config.updated(eval_episodes=args.eval_episodes, output_dir=args.output_dir))
result = agent.learn(args.total_timesteps)
print(f"mean return of {args.eval_episodes} episodes after {result.step:,} steps: {result.eval_return:.1f}")
print(f"saved as {agent.save(result.run_dir / 'agent')}")
