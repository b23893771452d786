"""Human-normalised scores of Atari games: values by hand, ids of environments, games without a human score."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rl_training.cli import app
from rl_training.errors import ConfigError
from rl_training.results.human_normalized import RANDOM_AND_HUMAN, human_normalized
from rl_training.results.statistics import median_of_tasks
from run_folders import write_run


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_random_play_counts_as_0_and_a_human_tester_as_1() -> None:
    # Boxing: random 0.1, human 12.1. (86.3 - 0.1) / (12.1 - 0.1) = 86.2 / 12
    assert human_normalized("Boxing", 86.3) == pytest.approx(86.2 / 12.0)
    # Pong: random -20.7, human 14.6. (16.4 + 20.7) / 35.3 = 37.1 / 35.3
    assert human_normalized("Pong", 16.4) == pytest.approx(37.1 / 35.3)
    assert human_normalized("Freeway", 0.0) == 0.0


def test_the_published_scores_of_bbf_have_their_published_aggregate() -> None:
    # Schwarzer et al. 2023, two updates per step: their mean is 2.18 and their median 0.76, of unrounded scores.
    scores = [1122, 237, 2005, 3170, 769, 23681, 77.4, 331, 4252, 60865, 18298, 23.1, 2023, 1209, 5742, 1125, 5032]
    scores += [8070, 16617, 2218, 13.7, 39, 3245, 26419, 989, 15123]
    found = [[human_normalized(game, score)] for game, score in zip(RANDOM_AND_HUMAN, scores, strict=True)]
    assert sum(score for (score,) in found) / 26 == pytest.approx(2.18, abs=0.01)
    assert median_of_tasks(*found) == pytest.approx(0.76, abs=0.01)


@pytest.mark.parametrize(
    "env_id", ["Boxing", "ALE/Boxing-v5", "BoxingNoFrameskip-v4", "BoxingDeterministic-v4", "ale_py:ALE/Boxing-v5"]
)
def test_the_id_of_an_environment_names_its_game(env_id: str) -> None:
    assert human_normalized(env_id, 12.1) == 1.0


@pytest.mark.parametrize("game", ["Tetris", "boxing", "ALE/Tetris-v5", "MinAtar/Breakout-v0", "CartPole-v1"])
def test_a_game_without_a_human_score_is_refused(game: str) -> None:
    with pytest.raises(ConfigError, match=f"no human score of {game} is known; .* Atari 100k are: Alien, .*, UpNDown$"):
        human_normalized(game, 1.0)


def test_runs_of_several_games_are_compared_with_humans(tmp_path: Path) -> None:
    # Boxing (3.1 - 0.1) / 12 = 0.25, Freeway 29.6 / 29.6 = 1, Pong (-20.7 + 20.7) / 35.3 = 0: mean 1.25 / 3
    for env_id, score in (("BoxingNoFrameskip-v4", 3.1), ("FreewayNoFrameskip-v4", 29.6), ("ALE/Pong-v5", -20.7)):
        write_run(tmp_path / env_id.replace("/", "-"), env_id=env_id, returns=(score,))
    compared = run("compare", tmp_path, "--by", "algo", "--normalize", "human")
    header, row, *_ = (re.split("  +", line) for line in compared.stdout.splitlines())
    assert header[2:] == ["steps", "score", "IQM", "95 % interval", "median", "wall time"]  # and none is better
    assert row[2:7] == ["100", "0.417 ± 0.520", "0.417", "0.417 to 0.417", "0.250"]
    figure = tmp_path / "figure.svg"
    assert run("plot", tmp_path, "--normalize", "human", "--kind", "profile", "--out", figure).exit_code == 0
    assert "normalized score" in figure.read_text()


def test_an_environment_that_is_no_game_is_refused_in_one_line(tmp_path: Path) -> None:
    result = run("compare", write_run(tmp_path / "a", env_id="CartPole-v1"), "--normalize", "human")
    assert (result.exit_code, "no human score of CartPole-v1 is known" in result.stderr) == (2, True)
