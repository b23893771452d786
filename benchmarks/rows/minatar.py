"""The DQN family on MinAtar. All games use the config of Breakout, and a frame is an environment step."""

from benchmarks.engine import Row
from benchmarks.rows.dqn import FRACTIONS

VERSION = 0  # all six actions, as in the published scores
FIGURE = "(DQN in the MinAtar paper's learning curves, read off at a million frames)"
GAMES = {"breakout": "Breakout", "asterix": "Asterix", "space-invaders": "SpaceInvaders"}
THRESHOLDS = {"breakout": 10.0, "asterix": 10.0, "space-invaders": 40.0}
PUBLISHED_DQN = {"breakout": f"9 {FIGURE}", "asterix": f"6 to 7 {FIGURE}", "space-invaders": f"33 {FIGURE}"}
DISTRIBUTIONAL_TARGETS = {
    "qr_dqn": ">= dqn on the mean",
    "iqn": ">= dqn on the mean; >= qr_dqn",
    "fqf": ">= dqn on the mean; >= qr_dqn",
    "rainbow_dqn": ">= dqn on the mean",
}


CHOSEN_ON = {"qr_dqn": "seeds 100 to 102"}
CHANGED_SINCE = {"fqf": FRACTIONS}


def minatar(algo: str, game: str, target: str, published: dict[str, str] | None = None) -> Row:
    return Row(
        config=f"{algo}/minatar_breakout.yaml",
        env_id=f"MinAtar/{GAMES[game]}-v{VERSION}",
        steps=1_000_000,
        target=target,
        threshold=THRESHOLDS[game],
        track_every=50_000,
        eval_episodes=100,
        track_episodes=20,
        seeds=3,
        published=published or {},
        chosen_on=CHOSEN_ON.get(algo, ""),
        changed_since=CHANGED_SINCE.get(algo, ""),
    )


ROWS = {
    f"dqn-minatar-{game}": minatar("dqn", game, f">= {THRESHOLDS[game]:g}", {"minatar": PUBLISHED_DQN[game]})
    for game in GAMES
} | {
    f"{algo}-minatar-{game}": minatar(algo, game, target)
    for game in GAMES
    for algo, target in DISTRIBUTIONAL_TARGETS.items()
}
