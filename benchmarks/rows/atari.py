"""Atari games from pixels. `python -m benchmarks atari` runs these: they take hours on a GPU, in several sittings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FRAME_SKIP = 4


@dataclass(frozen=True, kw_only=True)
class AtariRow:
    """One algorithm on one game. `evaluations`: returns; the first evaluation that reaches each is reported.

    `execution_backend`: EnvPool, except for one environment that waits for many updates.
    """

    algo: str
    game: str
    steps: int
    target: str = "none set"
    evaluations: tuple[float, ...] = ()
    published: Mapping[str, str] = field(default_factory=dict)
    execution_backend: str = "envpool"

    @property
    def config(self) -> str:
        return f"{self.algo}/{self.game}_atari.yaml"

    @property
    def frames(self) -> int:
        return FRAME_SKIP * self.steps


def pong(algo: str, target: str = "none set", dopamine: float | None = None) -> AtariRow:
    """Build a row with sticky actions. Target and published score are training returns in the tenth million frames."""
    published = {} if dopamine is None else {"dopamine": f"{dopamine:g} at 10M frames (Dopamine)"}
    return AtariRow(algo=algo, game="pong", steps=2_500_000, target=target, published=published)


ATARI_ROWS = {
    "ppo-pong": AtariRow(
        algo="ppo", game="pong", steps=10_000_000, target=">= 20.9; >= 18 by 2.5M", evaluations=(18.0, 20.9)
    ),
    "dqn-pong": pong("dqn", ">= 12", 6.3),
    "rainbow_dqn-pong": pong("rainbow_dqn", ">= 16", 15.2),
    "qr_dqn-pong": pong("qr_dqn", ">= 16.5", 15.4),
    "iqn-pong": pong("iqn", ">= 16.5", 15.2),
    "bbf-boxing": AtariRow(
        algo="bbf",
        game="boxing",
        steps=100_000,
        target=">= 77.4",
        execution_backend="local_sync",
        published={"bbf": "77.4 with two updates per step, 14 seeds (the authors' scores, with self-prediction)"},
    ),
    "dreamer-breakout": AtariRow(algo="dreamer", game="breakout", steps=100_000, execution_backend="local_sync"),
    "dreamer-boxing": AtariRow(
        algo="dreamer",
        game="boxing",
        steps=100_000,
        target=">= 80 with at most 25 million parameters",
        evaluations=(80.0,),
        execution_backend="local_sync",
        published={"dreamerv3": "79.6 at 400k frames (DreamerV3 with 200 million parameters, 5 seeds)"},
    ),
}
