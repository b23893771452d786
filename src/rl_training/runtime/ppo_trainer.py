"""Entry point of PPO."""

from rl_training.runtime.entry_points import entry_point

train_ppo = entry_point("ppo")
