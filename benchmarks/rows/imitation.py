"""GAIL from one episode of an expert, with a control whose expert labels are shuffled."""

from typing import Any

from benchmarks.datasets import EPISODE
from benchmarks.engine import Control, Row


def imitation(name: str, env_id: str, steps: int, target: str, *, expert: str | None = None, **more: Any) -> Row:
    """Build a row. `expert`: the recipe that records the expert's episode, where its name differs."""
    config = f"gail/{name}.yaml"
    return Row(
        config=config,
        env_id=env_id,
        steps=steps,
        target=target,
        controls={"ours-shuffled": Control(config=config, hparams={"expert_shuffle": "labels"})},
        expert=f"{expert or name}/{EPISODE}",
        chosen_on="seed 100",
        **more,
    )


ROWS = {
    "gail-cartpole": imitation(
        "cartpole",
        "CartPole-v1",
        150_000,
        "500",
        threshold=475.0,
        goal=500.0,
        track_every=5_000,
        published={"imitation": "needs 800k steps for the expert's 500 (its CartPole example)"},
    ),
    "gail-mountaincar": imitation(
        "mountaincar",
        "MountainCar-v0",
        300_000,
        "within 5 of the expert's mean return; ours-shuffled below -110",
        threshold=-110.0,
        track_every=10_000,
        eval_episodes=100,
        changed_since="the absorbing state's payment is not clipped; the first rollout is learned normalised",
        published={"paper": "-101.6 of an expert's -98.8 (Ho and Ermon's result files: TRPO, 1.5M steps)"},
    ),
    "gail-hopper": imitation(
        "hopper",
        "Hopper-v5",
        1_000_000,
        "within 10 % of the expert's mean return; ours-shuffled below 2800",
        expert="hopper-crossq",
        threshold=2_800.0,
        track_every=50_000,
        eval_episodes=10,
        track_episodes=5,
        seeds=3,
        published={
            "paper": "3614.2 ± 7 of an expert's 3571.4 (Ho and Ermon's result files: Hopper-v1, 4 trajectories, TRPO)"
        },
    ),
}
