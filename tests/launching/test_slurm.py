"""The job that is handed to SLURM; `make test-slurm` runs it in a real one."""

import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builders import make_config
from rl_training.cli import app
from rl_training.errors import ConfigError, TrainingError
from rl_training.launching import slurm
from rl_training.launching.pool import LaunchOptions
from rl_training.launching.slurm import SlurmWorkers, check_slurm_options, job_script, sbatch_command

HOSTILE = 'it\'s $(touch pwned) `touch pwned` "q"; touch pwned %j &'


def add_program(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/bash\n{script}\n")
    file.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder at the front of the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.mark.process
@pytest.mark.parametrize(("code", "requeued"), [(0, ""), (2, ""), (75, "requeue 7_1\n")])
def test_a_job_runs_a_worker_and_is_queued_again_after_75_whatever_its_folder_is_called(
    code: int, requeued: str, tmp_path: Path, programs: Path
) -> None:
    root = tmp_path / HOSTILE
    root.mkdir()
    add_program(programs, "srun", f'printf "%s\\n" "$PWD" "${{@:2}}"; exit {code}')
    add_program(programs, "scontrol", 'echo "$@" >&2')
    script = tmp_path / "job.sh"
    script.write_text(job_script(LaunchOptions(root=root, launcher="slurm", flags=["--allow-code"]), root))
    env = {**os.environ, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
    job = subprocess.run(["bash", script], capture_output=True, text=True, cwd=tmp_path, env=env)
    folder, _, *command = job.stdout.splitlines()
    assert (job.returncode, job.stderr, folder) == (code, requeued, str(root))
    assert command == ["-m", "rl_training", "work", str(root), "--retries", "2", "--quiet", "--allow-code"]
    assert list(tmp_path.rglob("pwned")) == []


def test_options_of_the_user_are_arguments_of_sbatch(tmp_path: Path) -> None:
    given = {"time": "4:00:00", "gres": "gpu:1", "exclusive": "", "signal": "TERM@60"}
    command = sbatch_command(LaunchOptions(root=tmp_path, launcher="slurm", slurm=given), 3)
    for argument in ("--time=4:00:00", "--gres=gpu:1", "--exclusive", "--signal=TERM@60", "--array=0-2", "--requeue"):
        assert argument in command
    assert not any("TERM@120" in argument for argument in command)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("array", "0-3", "--slurm array: the launcher sets this option itself; use --jobs"),
        ("output", "x", "--slurm output: the launcher sets this option itself"),
        ("-x", "1", "expected an option of sbatch, such as time=4:00:00"),
        ("time", "1\n2", "expected an option of sbatch"),
    ],
)
def test_options_that_cannot_be_handed_on_are_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_slurm_options({key: value})


def test_a_machine_without_slurm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs the program sbatch, .*; run it where jobs are submitted"):
        SlurmWorkers(LaunchOptions(root=tmp_path, launcher="slurm"))


@pytest.mark.process
def test_jobs_are_noted_and_counted_also_by_the_next_process(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "QUEUE_SECONDS", 0.0)
    add_program(programs, "sbatch", "echo '12;cluster'")
    add_program(programs, "squeue", "echo 12; echo 12; echo 99")  # 99 is a job of something else
    options = LaunchOptions(root=tmp_path, launcher="slurm", jobs=2)
    workers = SlurmWorkers(options)
    assert workers.alive() == 0
    workers.start(2)
    assert workers.alive() == 2
    assert SlurmWorkers(options).alive() == 2
    add_program(programs, "squeue", "exit 1")
    assert workers.alive() is None
    add_program(programs, "sbatch", "echo 'invalid partition' >&2; exit 1")
    with pytest.raises(TrainingError, match="sbatch refused the job: invalid partition; check the options of --slurm"):
        workers.start(1)


def test_a_dry_run_writes_the_job_and_shows_the_command(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(make_config(tmp_path / "runs").to_yaml())
    command = [
        "train",
        config,
        "--seeds",
        "0-4",
        "--launcher",
        "slurm",
        "--jobs",
        "3",
        "--slurm",
        "time=10",
        "--dry-run",
    ]
    result = CliRunner().invoke(app, list(map(str, command)))
    assert result.exit_code == 0, result.stderr
    (script,) = tmp_path.rglob("job.sh")
    first, *rest = result.stdout.splitlines()
    assert first.startswith("sbatch --parsable --requeue ")
    assert first.endswith(f"--time=10 --array=0-2 {script}")
    assert [line.split()[0] for line in rest] == ["folder"]
    assert len(list(tmp_path.glob("runs/*/seed*/config.yaml"))) == 5
