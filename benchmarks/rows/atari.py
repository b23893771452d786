"""Atari games from pixels. `python -m benchmarks atari` runs these: they take hours on a GPU, in several sittings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FRAME_SKIP = 4


@dataclass(frozen=True, kw_only=True)
class AtariRow:
    """One algorithm on one game. `evaluations`: returns; the first evaluation that reaches each is reported.

    `execution_backend`: EnvPool, except for one environment that waits for many updates. `eval_interval`: env steps.
    `final_episodes`: those of the final policy. `window`: frames whose training episodes are averaged; a million are an
    iteration of Dopamine's curves.
    """

    config: str
    env_id: str
    steps: int
    target: str = "none set"
    evaluations: tuple[float, ...] = ()
    published: Mapping[str, str] = field(default_factory=dict)
    execution_backend: str = "envpool"
    eval_interval: int = 500_000
    final_episodes: int = 30
    window: int = 1_000_000

    @property
    def frames(self) -> int:
        return FRAME_SKIP * self.steps


def pong(algo: str, target: str, dopamine: float) -> AtariRow:
    """Build a row with sticky actions. Target and published score are training returns in the tenth million frames."""
    return AtariRow(
        config=f"{algo}/pong_atari.yaml",
        env_id="ALE/Pong-v5",
        steps=2_500_000,
        target=target,
        published={"dopamine": f"{dopamine:g} at 10M frames (Dopamine)"},
    )


# What a score of Atari 100k is: the final policy's, except for DreamerV3, whose authors published training returns.
SOURCES = {
    "bbf": "BBF with 2 updates per step, 14 seeds",
    "bbf_8": "BBF with 8 updates per step, 52 seeds or more",
    "dreamerv3": "DreamerV3 with 200 million parameters, training episodes at the end, 5 seeds",
}
PUBLISHED_100K = {
    "Boxing": ("77.4 ± 13", "86.3 ± 11", "79.7 ± 6"),
    "Breakout": ("331 ± 57", "357 ± 64", "8.9 ± 2"),
    "Freeway": ("23.1", "25.7 ± 3", "0"),
    "Pong": ("13.7 ± 6", "16.4 ± 6", "-4.9 ± 3"),
}


def atari_100k(config: str, game: str, target: str = "none set", evaluations: tuple[float, ...] = ()) -> AtariRow:
    """Build a row by the protocol of Atari 100k: 400,000 frames, no sticky actions, 100 final episodes."""
    scores = zip(SOURCES.items(), PUBLISHED_100K[game], strict=True)
    return AtariRow(
        config=config,
        env_id=f"{game}NoFrameskip-v4",
        steps=100_000,
        target=target,
        evaluations=evaluations,
        published={name: f"{score} ({source})" for (name, source), score in scores},
        execution_backend="local_sync",
        eval_interval=20_000,
        final_episodes=100,
        window=40_000,
    )


ATARI_ROWS = {
    "ppo-pong": AtariRow(
        config="ppo/pong_atari.yaml",
        env_id="PongNoFrameskip-v4",
        steps=2_500_000,
        target=">= 18",
        evaluations=(18.0, 20.9),
    ),
    "dqn-pong": pong("dqn", ">= 12", 6.3),
    "rainbow_dqn-pong": pong("rainbow_dqn", ">= 16", 15.2),
    "qr_dqn-pong": pong("qr_dqn", ">= 16.5", 15.4),
    "iqn-pong": pong("iqn", ">= 16.5", 15.2),
    "bbf-boxing": atari_100k("bbf/atari100k.yaml", "Boxing", ">= 77.4"),
    "bbf-breakout": atari_100k("bbf/atari100k.yaml", "Breakout", ">= 331"),
    "bbf-freeway": atari_100k("bbf/atari100k.yaml", "Freeway", ">= 23.1"),
    "bbf-pong": atari_100k("bbf/atari100k.yaml", "Pong", ">= 13.7"),
    "dreamer-boxing": atari_100k(
        "dreamer/breakout_atari.yaml", "Boxing", ">= 80 with at most 25 million parameters", (80.0,)
    ),
    "dreamer-breakout": atari_100k("dreamer/breakout_atari.yaml", "Breakout"),
    "dreamer-freeway": atari_100k("dreamer/breakout_atari.yaml", "Freeway"),
    "dreamer-pong": atari_100k("dreamer/breakout_atari.yaml", "Pong"),
}
