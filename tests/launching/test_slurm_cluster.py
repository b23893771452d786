"""Workers in a real SLURM cluster on this machine: `make test-slurm` runs these tests."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.exactness import differences
from benchmarks.slurm_cluster import slurm_cluster

from builders import make_config
from rl_training.experiment.claims import holder_of

pytestmark = [pytest.mark.slurm, pytest.mark.process]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster"):
        yield


def start(*words: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "rl_training", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)


def write_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    config = make_config(folder / "runs", total_timesteps=6_000, log_interval=100, checkpoint_interval=0, **changes)
    (folder / "config.yaml").write_text(config.to_yaml())
    return folder / "config.yaml"


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def count_requeued(jobs: Path) -> int:
    """Return how many tasks of the arrays in slurm/jobs.txt were queued again."""
    shown = [subprocess.check_output(["scontrol", "show", "job", job], text=True) for job in jobs.read_text().split()]
    return len(re.findall(r" Restarts=[1-9]", "".join(shown)))


def test_a_worker_that_is_told_to_end_saves_is_queued_again_and_ends_as_an_undisturbed_run(
    cluster: None, tmp_path: Path
) -> None:
    undisturbed = start("train", write_config(tmp_path / "undisturbed"), "--seeds", "0-1", "--jobs", 2)
    assert undisturbed.wait() == 0, undisturbed.communicate()[0]

    driver = start(
        *("train", write_config(tmp_path / "it's $(here)"), "--seeds", "0-1"),
        *("--launcher", "slurm", "--jobs", 2, "--slurm", "time=30"),
    )

    def runs() -> list[Path]:
        return sorted(tmp_path.glob("it's*/runs/*/seed*"))

    wait_until(lambda: len(runs()) == 2, driver)
    wait_until(lambda: all((run / "metrics.jsonl").is_file() and lines_of(run) for run in runs()), driver)
    assert all(holder_of(run) is not None for run in runs())
    (jobs,) = tmp_path.glob("it's*/runs/*/slurm/jobs.txt")
    subprocess.run(["scancel", "--signal=TERM", jobs.read_text().strip()], check=True)
    output = driver.communicate()[0]
    assert driver.returncode == 0, output

    for run in runs():
        starts = json.loads((run / "metadata.json").read_text())["starts"]
        assert [start["step"] > 0 for start in starts] == [False, True]
        steps = [line["step"] for line in lines_of(run)]
        assert steps == sorted(set(steps))
        (other,) = tmp_path.glob(f"undisturbed/runs/*/{run.name}")
        assert differences(run, other) == []
    assert count_requeued(jobs) == 2
    assert len(jobs.read_text().split()) == 1  # the requeued workers were enough


def test_a_worker_that_reaches_its_time_limit_is_told_in_time(cluster: None, tmp_path: Path) -> None:
    config = write_config(tmp_path / "long", algo_kwargs={"train_frequency": 1})
    driver = start(
        *("train", config, "--seeds", "0", "--set", "total_timesteps=10_000_000"),
        *("--launcher", "slurm", "--slurm", "time=1", "--slurm", "signal=TERM@20"),
    )
    # Its first checkpoint is the one that the signal asks for.
    wait_until(lambda: any(tmp_path.glob("long/runs/*/seed0/checkpoints/step_*")), driver)
    wait_until(lambda: any(map(count_requeued, tmp_path.rglob("slurm/jobs.txt"))), driver)
    driver.terminate()
    output = driver.communicate()[0]
    assert driver.returncode == 75, output
    assert "the SLURM jobs go on" in output
