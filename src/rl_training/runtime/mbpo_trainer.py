"""Entry point of MBPO."""

from rl_training.runtime.entry_points import entry_point

train_mbpo = entry_point("mbpo")
