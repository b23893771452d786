"""Entry point of the off-policy actor-critics."""

from rl_training.runtime.entry_points import entry_point

train_sac = entry_point("sac")
