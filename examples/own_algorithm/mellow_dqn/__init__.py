"""DQN with a soft maximum in its target, as an algorithm of rl-training."""
