"""Names and settings of runs that hold markup, shell commands or control characters are text for every command."""

import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builders import make_config
from rl_training.cli import app
from rl_training.runtime.trainer import RunOptions, train
from run_folders import write_run

HOSTILE = "<img src=x onerror=alert(1)>;$(touch hit);`touch hit`;'\"&|%s{0}\x1b[31m\x07\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = make_config(tmp_path_factory.mktemp("runs"), env_id="CartPole-v1", eval_interval=30)
    folder = config.output_dir / HOSTILE / "run"
    train(config, RunOptions(show_progress=False), run_dir=folder)
    return folder


def call(folder: Path, *words: object) -> str:
    """Return what a command prints; control characters stay in it, as in a terminal."""
    before = set(folder.iterdir())
    result = CliRunner().invoke(app, [str(word) for word in words], color=True)
    assert result.exit_code in (0, 2), result.output
    assert "hit" not in {path.name for path in set(folder.iterdir()) - before}
    return result.output


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "RUN", "--episodes", "1"],
        ["resume", "RUN"],
        ["resume", "RUN/missing"],
        ["compare", "RUN"],
        ["compare", "RUN", "--by", "x"],
        ["plot", "RUN", "-o", "x.svg"],
        ["plot", "RUN", "-o", "x.svg", "--y", "train/x"],
        ["report", "RUN", "-o", "x.html"],
        ["report", "RUN/missing", "-o", "x.html"],
        ["status", "RUN"],
        ["work", "RUN"],
        ["video", "RUN", "-o", "x.gif", "--episodes", "1", "--max-steps", "2"],
        ["video", "RUN/missing", "-o", "x.gif"],
        ["track", "RUN", "--to", "tensorboard"],
        ["export", "RUN/missing", "--out", "policy"],
        ["tune", "RUN"],
        ["sweep", "RUN/missing.yaml"],
    ],
    ids=" ".join,
)
def test_a_run_in_a_hostile_folder_is_safe_to_use(
    words: list[str], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = call(tmp_path, *(word.replace("RUN", str(trained)) for word in words))
    assert not {"\x1b", "\x07"} & set(shown), shown


def test_hostile_settings_are_text_in_tables_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write_run(tmp_path / "a" / str(seed), seed=seed, env_id=HOSTILE, algo_kwargs={HOSTILE: HOSTILE})
        write_run(tmp_path / "b" / str(seed), seed=seed, env_id=HOSTILE)
    for words in (["compare", "."], ["plot", ".", "-o", "x.svg"], ["report", ".", "-o", "x.html"], ["status", "."]):
        assert not {"\x1b", "\x07"} & set(call(tmp_path, *words))
    for page in ("x.svg", "x.html"):
        assert "<img" not in (tmp_path / page).read_text().partition('<script type="application/json"')[0]


@pytest.mark.process
def test_a_sweep_in_a_hostile_folder_writes_a_job_that_runs_no_other_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / HOSTILE
    folder.mkdir()
    monkeypatch.chdir(folder)
    file = folder / f"{HOSTILE}.yaml".replace("/", "")
    file.write_text("configs: [dqn/cartpole]\n")
    call(folder, "sweep", file, "--launcher", "slurm", "--dry-run")
    (job,) = folder.rglob("job.sh")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text('#!/bin/sh\nprintf "%s\\0" "$@" > "$ARGUMENTS"\n')
    (programs / "srun").chmod(0o755)
    arguments = tmp_path / "arguments"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "ARGUMENTS": str(arguments)}
    assert subprocess.run(["bash", job], env=environment, check=False).returncode == 0
    assert str(file.with_suffix("")) in arguments.read_bytes().decode().split("\0")
    assert not list(tmp_path.rglob("hit"))
