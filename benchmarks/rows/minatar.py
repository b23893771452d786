"""The DQN family and PPO on MinAtar. A config serves all games, and a frame is an environment step."""

from benchmarks.engine import Control, Row

VERSION = 0  # all six actions, as in the published scores
FIGURE = "DQN in the MinAtar paper's learning curves, read off at"
GAMES = {
    "breakout": "Breakout",
    "asterix": "Asterix",
    "space-invaders": "SpaceInvaders",
    "freeway": "Freeway",
    "seaquest": "Seaquest",
}
THRESHOLDS = {"breakout": 10.0, "asterix": 10.0, "space-invaders": 40.0, "freeway": 50.0, "seaquest": 10.0}
PUBLISHED_DQN = {
    "breakout": f"9 ({FIGURE} a million frames)",
    "asterix": f"6 to 7 ({FIGURE} a million frames)",
    "space-invaders": f"33 ({FIGURE} a million frames)",
    "freeway": f"50 ({FIGURE} five million frames)",
    # Before version 1.0.11, Seaquest showed a full oxygen bar one step before the oxygen ran out.
    "seaquest": f"about 20 at 5M frames ({FIGURE} their end; of the game before 1.0.11, so not strictly comparable)",
}
# Koyamada et al. 2023, Pgx: hardware-accelerated parallel game simulators.
PUBLISHED_PPO = {
    "breakout": "50",
    "asterix": "22 to 25",
    "space-invaders": "145 to 150",
    "freeway": "63",
    "seaquest": "55",
}
DISTRIBUTIONAL_TARGETS = {
    "c51_dqn": ">= dqn on the mean",
    "qr_dqn": ">= dqn on the mean",
    "iqn": ">= dqn on the mean; >= qr_dqn",
    "fqf": ">= dqn on the mean; >= qr_dqn",
    "rainbow_dqn": ">= dqn on the mean",
}

MUNCHAUSEN = {
    algo: {"ours-munchausen": Control(config=f"{algo}/minatar.yaml", hparams={"munchausen": True})}
    for algo in ("dqn", "iqn")
}
CHOSEN_ON = {"qr_dqn": "seeds 100 to 102"}
CHANGED_SINCE = {"fqf": "the fractions move, and targets are weighted by their widths"}


def minatar(
    algo: str, game: str, target: str, published: dict[str, str] | None = None, *, steps: int = 1_000_000
) -> Row:
    return Row(
        config=f"{algo}/minatar.yaml",
        env_id=f"MinAtar/{GAMES[game]}-v{VERSION}",
        tensor_env_id=f"tensor/MinAtar-{GAMES[game]}-v{VERSION}",
        steps=steps,
        target=target,
        threshold=THRESHOLDS[game],
        track_every=steps // 10,
        eval_episodes=100,
        track_episodes=20,
        seeds=3,
        controls=MUNCHAUSEN.get(algo, {}),
        published=published or {},
        chosen_on=CHOSEN_ON.get(algo, ""),
        changed_since=CHANGED_SINCE.get(algo, "") if game == "breakout" else "",
    )


ROWS = (
    {
        f"dqn-minatar-{game}": minatar("dqn", game, f">= {THRESHOLDS[game]:g}", {"minatar": PUBLISHED_DQN[game]})
        for game in GAMES
    }
    | {
        f"{algo}-minatar-{game}": minatar(algo, game, target)
        for game in GAMES
        for algo, target in DISTRIBUTIONAL_TARGETS.items()
    }
    | {
        f"{algo}-minatar-{game}": minatar(
            algo,
            game,
            target,
            {"pgx": f"{PUBLISHED_PPO[game]} (PPO in its learning curves, read off at 20 million frames)"},
            steps=10_000_000,
        )
        for game in GAMES
        for algo, target in (("pqn", ">= dqn on the mean"), ("ppo", "none set"))
    }
)
