"""Entry point of the DQN family."""

from rl_training.runtime.entry_points import entry_point

train_dqn = entry_point("dqn")
