"""Dreamer on Catch, with choices and with numbers, and on Pendulum-v1."""

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
    ),
    "dreamer-continuouscatch": Row(
        config="dreamer/continuouscatch.yaml",
        env_id="rl_training/ContinuousCatch-v0",
        steps=10_000,
        target=">= 0.95 of the balls caught",
        threshold=0.95,
        track_every=1_000,
        eval_episodes=200,
        track_episodes=100,
    ),
    "dreamer-pendulum": Row(
        config="dreamer/pendulum.yaml",
        env_id="Pendulum-v1",
        steps=15_000,
        target=">= -200",
        threshold=-200.0,
        track_every=1_000,
        eval_episodes=100,
        track_episodes=20,
    ),
}
