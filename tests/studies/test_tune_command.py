"""`rl-training tune`: what it prints, what it refuses, and how it continues."""

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rl_training.cli import app
from rl_training.studies import tuning
from study_pools import PretendPool

CONFIG = """\
algo: dqn
env_id: CartPole-v1
total_timesteps: 400
eval_interval: 100
eval_episodes: 1
algo_kwargs: {learning_rate: 0.1}
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a config; runs are pretended: a smaller learning rate scores higher."""

    def pretend(_: object) -> PretendPool:
        return PretendPool(lambda settings, seed: [100.0 - 100.0 * settings["learning_rate"]] * 4)

    (tmp_path / "dqn.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "FRESH_SEEDS", 3)
    monkeypatch.setattr(tuning, "write_study_report", lambda *_: None)
    monkeypatch.setattr(tuning, "open_pool", pretend)


def tune(*words: str) -> Any:
    return CliRunner().invoke(app, ["tune", *words])


def test_a_study_begins_and_continues(tmp_path: Path) -> None:
    first = tune("-c", "dqn.yaml", "--trials", "2", "--seeds", "1", "--param", "learning_rate")
    assert first.exit_code == 0, first.output
    (folder,) = Path("tune").iterdir()
    assert folder.name.startswith("dqn__CartPole-v1__")
    assert "best trial 1 " in first.stdout
    assert "P(better) 1.00 [1.00, 1.00]\nclearly better than the given config\n" in first.stdout
    assert f"train it     rl-training train -c {folder}/best.yaml --seeds 0-4" in first.stdout
    assert "trial 1 begins: learning_rate=" in first.stderr
    second = tune(str(folder), "--trials", "3")
    assert second.exit_code == 0
    assert "trial 2 begins" in second.stderr
    assert "trial 1 begins" not in second.stderr


def test_a_dry_run_shows_the_space_and_the_cost_and_writes_nothing() -> None:
    shown = tune("-c", "dqn.yaml", "--dry-run", "--trials", "20", "--param", "learning_rate", "--param", "num_envs=2,4")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "setting                    given  searched",
        "algo_kwargs.learning_rate  0.1    1e-05 to 0.1, logarithmic",
        "num_envs                   1      1, 2, 4",
        "",
        "20 trials of 3 seeds and 4 configs on 3 fresh seeds: at most 72 runs of 400 env steps, 28,800 in all, into "
        f"{Path('tune') / 'dqn__CartPole-v1__'}" + shown.stdout.strip()[-8:],
    ]
    assert not Path("tune").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a config to tune, -c FILE, or the FOLDER of a study to continue"),
        (["nowhere"], "nowhere is not the folder of a study: it holds no space.yaml"),
        (["-c", "dqn.yaml", "--param", "learning_rat"], "dqn has no setting 'learning_rat' to tune; did you mean"),
        (["-c", "dqn.yaml", "--set", "eval_interval=0"], "eval_interval is 0: nothing could be pruned; set it, or"),
        (["-c", "dqn.yaml", "--launcher", "cloud"], "--launcher must be one of local, slurm, ray, got 'cloud'"),
        (["-c", "dqn.yaml", "--set", "algo=iql"], "iql learns from a dataset, and none is given"),
        (["-c", "dqn.yaml", "--set", "env_id=CartPool-v1"], "unknown environment 'CartPool-v1'"),
        (["-c", "dqn.yaml", "--set", "env_id=Pendulum-v1"], "dqn needs a discrete action space"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_written(words: list[str], message: str) -> None:
    refused = tune(*words)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert not Path("tune").exists()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    refused = tune("-c", "dqn.yaml")
    assert refused.exit_code == 2
    assert 'error: tune needs the package optuna: pip install "rl-training[tune]"' in refused.stderr
