"""Entry point of MOPO."""

from rl_training.runtime.entry_points import entry_point

train_mopo = entry_point("mopo")
