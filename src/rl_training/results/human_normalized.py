"""Human-normalised scores of Atari games: 0 is the mean return of random actions, 1 that of a human tester."""

import re
from collections.abc import Iterable

from rl_training.errors import ConfigError
from rl_training.results.statistics import normalized

# The random and the human return of each of the 26 games of Atari 100k (Kaiser et al. 2020), as Wang et al. 2016 list
# them: episodes of at most 108,000 frames.
RANDOM_AND_HUMAN = {
    "Alien": (227.8, 7127.7),
    "Amidar": (5.8, 1719.5),
    "Assault": (222.4, 742.0),
    "Asterix": (210.0, 8503.3),
    "BankHeist": (14.2, 753.1),
    "BattleZone": (2360.0, 37187.5),
    "Boxing": (0.1, 12.1),
    "Breakout": (1.7, 30.5),
    "ChopperCommand": (811.0, 7387.8),
    "CrazyClimber": (10780.5, 35829.4),
    "DemonAttack": (152.1, 1971.0),
    "Freeway": (0.0, 29.6),
    "Frostbite": (65.2, 4334.7),
    "Gopher": (257.6, 2412.5),
    "Hero": (1027.0, 30826.4),
    "Jamesbond": (29.0, 302.8),
    "Kangaroo": (52.0, 3035.0),
    "Krull": (1598.0, 2665.5),
    "KungFuMaster": (258.5, 22736.3),
    "MsPacman": (307.3, 6951.6),
    "Pong": (-20.7, 14.6),
    "PrivateEye": (24.9, 69571.3),
    "Qbert": (163.9, 13455.0),
    "RoadRunner": (11.5, 7845.0),
    "Seaquest": (68.4, 42054.7),
    "UpNDown": (533.4, 11693.2),
}
GAME = re.compile(r"(?:\w+:)?(?:ALE/)?(?P<name>\w+?)(?:(?:NoFrameskip|Deterministic)?-v\d+)?")  # a name or an env_id


def human_normalized(game: str, score: float) -> float:
    """Normalise a mean return of a game, which is named as `Boxing`, `ALE/Boxing-v5` or `BoxingNoFrameskip-v4`."""
    return normalized(score, *_random_and_human(game))


def human_anchors(env_ids: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Return the anchors of a comparison of runs in these environments."""
    return {env_id: _random_and_human(env_id) for env_id in env_ids}


def _random_and_human(game: str) -> tuple[float, float]:
    named = GAME.fullmatch(game)
    if named is None or named["name"] not in RANDOM_AND_HUMAN:
        known = ", ".join(RANDOM_AND_HUMAN)
        raise ConfigError(f"no human score of {game} is known; the games of Atari 100k are: {known}")
    return RANDOM_AND_HUMAN[named["name"]]
