"""Entry points of IQL and BC."""

from rl_training.runtime.entry_points import entry_point

train_iql = entry_point("iql")
train_bc = entry_point("bc")
