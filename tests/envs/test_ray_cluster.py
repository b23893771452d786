"""Environments on a Ray cluster of two machines, which are two nodes on this one: `make test-ray` runs these tests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.exactness import COMBINATIONS, STATE, Case, differences, run_broken, run_unbroken
from benchmarks.kills import EXIT_INTERRUPTED, prepare_run

from env_groups import CRASHES, assert_same_results, is_running
from rl_training.envs.factory import EnvFactory, RegisteredEnv
from rl_training.envs.ray_workers import RayWorkers
from rl_training.envs.tiny import Misbehaving
from rl_training.envs.vector import SyncEnvs
from rl_training.envs.workers import AsyncEnvs
from rl_training.errors import EnvError
from rl_training.runtime.trainer import resume

pytestmark = [pytest.mark.ray, pytest.mark.process]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose second node runs two of three environments."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_AUTH_MODE"] = "disabled"  # otherwise a token is written below the home folder
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=2)
    cluster.connect()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def make_group(factory: EnvFactory, num_envs: int, **settings: Any) -> AsyncEnvs:
    return AsyncEnvs(factory, num_envs, make_workers=RayWorkers, **settings)


def zeros(num_envs: int) -> np.ndarray:
    return np.zeros(num_envs, np.int64)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until_ended(pids: list[int]) -> None:
    while any(map(is_running, pids)):  # pytest's timeout ends it
        time.sleep(0.01)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "rl_training/TinyImage-v0"])
def test_results_equal_those_of_sync_envs_bit_for_bit(env_id: str) -> None:
    make = RegisteredEnv(env_id)
    with SyncEnvs(make, 3) as sync, make_group(make, 3) as remote:
        assert len({parent_of(pid) for pid in remote.pids}) == 2  # one actor per machine
        num_resets = assert_same_results(sync, remote)
    assert num_resets > 3 or env_id == "Pendulum-v1"


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("fault", "message", "report"),
    [
        *CRASHES,
        ("hang", r"gave no answer for 2 s \(worker_timeout\) and was stopped", "_maybe_fault"),
    ],
)
def test_failures_are_named_as_those_of_local_workers(tmp_path: Path, fault: str, message: str, report: str) -> None:
    # As in test_workers.py: only env 2 has the episode 1 in which the fault shows.
    make = RegisteredEnv("rl_training/Misbehaving-v0", {"fault": fault, "step": 2, "episode": 1})
    with make_group(make, 3, crash_dir=tmp_path, worker_timeout=2.0) as envs:
        pids = envs.pids
        envs.reset([0, 1, 2], [10, 11, 12], [4, 5, 6])
        envs.reset([2], [13], [7])
        envs.step(zeros(3))
        with pytest.raises(EnvError, match=rf"^env 2 {message} at step 2 of episode 7 \(seed 13\); .*env_2\.txt$"):
            envs.step(zeros(3))
        wait_until_ended(pids)
        with pytest.raises(EnvError, match="the environments are closed, because env 2 "):
            envs.get_state(0)
    assert report in (tmp_path / "env_2.txt").read_text()


@pytest.mark.usefixtures("cluster")
def test_a_machine_whose_actor_dies_is_named() -> None:
    with make_group(Misbehaving, 3) as envs:
        envs.reset([0, 1, 2], [1, 2, 3])
        pids = envs.pids
        os.kill(parent_of(pids[2]), signal.SIGKILL)  # of env 2, and of env 1 if the larger machine comes second
        message = r"^env (1|2) was lost with the Ray actor on [\d.]+ that ran it at step 1 of episode 0 \(seed (2|3)\)$"
        with pytest.raises(EnvError, match=message):
            envs.step(zeros(3))
    wait_until_ended(pids)


@pytest.mark.usefixtures("cluster")
def test_a_machine_that_does_not_reply_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_group(Misbehaving, 3, worker_timeout=1.0) as envs:
        envs.reset([0, 1, 2], [1, 2, 3])
        actor = parent_of(envs.pids[2])
        os.kill(actor, signal.SIGSTOP)
        monkeypatch.setattr(envs._workers, "_timeout", 2.0)
        with pytest.raises(EnvError, match=r"^env (1|2) gave no answer for 2 s: its machine [\d.]+ does not reply at"):
            envs.step(zeros(3))
    os.kill(actor, signal.SIGCONT)


class Slow(Misbehaving):
    def __init__(self) -> None:
        super().__init__(length=20)

    def step(self, action: np.int64) -> Any:
        time.sleep(0.3)
        return super().step(action)


@pytest.mark.usefixtures("cluster")
def test_a_replay_longer_than_the_timeout_is_not_a_hang() -> None:
    with make_group(Slow, 1, worker_timeout=1.5) as envs:
        obs = envs.replay(0, 1, zeros(8))
    assert obs[0] == 8
    assert obs.flags.writeable  # as with every other backend


THREE = next(case for case in COMBINATIONS if case.name == "local_async_3")


def on_ray(case: Case) -> Case:
    eval_envs = 1 if case is STATE else 2  # its episodes depend on those that the same env played before
    return replace(case, settings={**case.settings, "execution_backend": "ray", "eval_envs": eval_envs})


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("case", [THREE, STATE], ids=lambda case: case.name)
def test_a_resumed_run_on_ray_equals_an_unbroken_one_in_this_process(case: Case, tmp_path: Path) -> None:
    short = {"total_timesteps": 400}
    whole = run_unbroken(replace(case, settings=case.settings | short), tmp_path, execution_backend="local_sync")
    remote = on_ray(case)
    broken = run_broken(replace(remote, settings=remote.settings | short), tmp_path, [75, 201, 202, 340])
    assert differences(broken, whole) == []


def test_sigterm_saves_a_run_on_ray_and_loses_nothing(cluster: Any, tmp_path: Path) -> None:
    whole = run_unbroken(THREE, tmp_path, execution_backend="local_sync")
    run_dir = prepare_run(on_ray(THREE), tmp_path / "run")
    command = [sys.executable, "-m", "rl_training", "resume", str(run_dir)]
    child = subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": cluster.address})
    metrics = run_dir / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 3:
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGTERM)
    assert child.wait() == EXIT_INTERRUPTED
    resume(run_dir, THREE.options())
    assert differences(run_dir, whole) == []


SCRIPT = """
import time
from rl_training.envs.factory import RegisteredEnv, make_envs
envs = make_envs(RegisteredEnv("CartPole-v1"), 3, backend="ray")
print(*envs.pids, flush=True)
time.sleep(600)
"""


def test_workers_end_with_a_killed_run(cluster: Any) -> None:
    command, env = [sys.executable, "-c", SCRIPT], {**os.environ, "RAY_ADDRESS": cluster.address}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pids = [int(pid) for pid in run.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(is_running, pids))
        run.kill()
    wait_until_ended(pids)
