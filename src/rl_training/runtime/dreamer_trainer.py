"""Entry point of Dreamer."""

from rl_training.runtime.entry_points import entry_point

train_dreamer = entry_point("dreamer")
