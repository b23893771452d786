"""Entry point of GAIL."""

from rl_training.runtime.entry_points import entry_point

train_gail = entry_point("gail")
