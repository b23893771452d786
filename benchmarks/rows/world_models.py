"""Dreamer on Catch."""

from benchmarks.engine import Row

ROWS = {
    "dreamer-catch": Row(
        config="dreamer/catch.yaml",
        env_id="rl_training/Catch-v0",
        steps=10_000,
        target=">= 0.95 of the balls caught within 20k steps and 15 minutes of one core",
        threshold=0.95,
        track_every=1_000,
        eval_episodes=200,
        track_episodes=100,
        chosen_on="seeds 0 and 1, which are also scored",
        changed_since="the critic's loss on replayed states trains the world model",
    ),
}
