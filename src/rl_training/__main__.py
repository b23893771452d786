"""`python -m rl_training` is the same as `rl-training`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is being imported ends it without a traceback."""
    try:
        from rl_training.cli import main as run
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":  # worker processes import this module again
    main()
