"""`python -m rl_training` is the same as `rl-training`."""

from rl_training.cli import main

if __name__ == "__main__":  # worker processes import this module again
    main()
