"""The options of Ray's workers; `make test-ray` runs them on a real cluster."""

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builders import make_config
from rl_training.cli import app
from rl_training.errors import ConfigError
from rl_training.launching.ray import check_ray_options


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_cpu", "1", "--ray num_cpu: unknown option; did you mean 'num_cpus'? known: address, num_cpus, num_gpus"),
        ("num_gpus", "many", "--ray num_gpus='many': must be a number >= 0, such as 0.25"),
        ("num_gpus", "-1", "must be a number >= 0"),
        ("num_cpus", "inf", "must be a number >= 0"),
    ],
)
def test_wrong_options_are_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_ray_options({key: value})
    assert message in str(error.value)


def call_train(folder: Path, *options: str) -> Any:
    config = folder / "config.yaml"
    config.write_text(make_config(folder / "runs").to_yaml())
    return CliRunner().invoke(app, ["train", str(config), *options])


def test_a_missing_package_is_one_line_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = call_train(tmp_path, "--seeds", "0-1", "--launcher", "ray")
    assert result.exit_code == 2
    assert result.stderr == 'error: --launcher ray needs the package ray: pip install "rl-training[ray]"\n'
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--launcher", "k8s"], "--launcher must be one of local, slurm, ray, got 'k8s'"),
        (["--slurm", "time=1"], "--slurm time=1 needs --launcher slurm, but the launcher is local"),
        (["--launcher", "slurm", "--ray", "num_cpus=1"], "needs --launcher ray, but the launcher is slurm"),
        (["--dry-run"], "--dry-run needs --launcher slurm, but the launcher is local"),
    ],
)
def test_options_of_another_launcher_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    result = call_train(tmp_path, "--seeds", "0", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "runs").exists()


def test_another_launcher_needs_several_seeds(tmp_path: Path) -> None:
    result = call_train(tmp_path, "--launcher", "slurm")
    assert result.exit_code == 2
    assert "--launcher slurm trains several seeds in parallel: give --seeds too" in result.stderr
