"""Environments in processes of their own: equal to those in this one, and what happens when they fail."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box

from env_groups import CRASHES, assert_same_results, is_running
from rl_training.core.stop_signals import STOP_SIGNALS
from rl_training.envs import worker_process
from rl_training.envs.factory import RegisteredEnv, make_envs
from rl_training.envs.tiny import Chain, Misbehaving
from rl_training.envs.vector import SyncEnvs
from rl_training.envs.workers import AsyncEnvs
from rl_training.errors import ConfigError, EnvError

pytestmark = pytest.mark.process

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


def wait_until(condition: Callable[[], bool], limit: float) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit, f"not true after {limit} s"
        time.sleep(0.01)


def shared_memory_files(pid: int) -> list[Path]:
    return [path for path in Path("/dev/shm").iterdir() if path.name.startswith(f"pym-{pid}-")]


def zeros(num_envs: int) -> np.ndarray:
    return np.zeros(num_envs, np.int64)


# --------------------------------------------------------------------------------------------- the same results


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "rl_training/TinyImage-v0"])
def test_results_equal_those_of_sync_envs_bit_for_bit(env_id: str) -> None:
    make = RegisteredEnv(env_id)
    with SyncEnvs(make, 3) as sync, AsyncEnvs(make, 3) as parallel:
        num_resets = assert_same_results(sync, parallel)
    assert num_resets > 3 or env_id == "Pendulum-v1"


def test_results_stay_as_they_are_when_the_next_step_is_taken() -> None:
    with AsyncEnvs(Misbehaving, 2) as envs:
        first, _ = envs.reset([0, 1], [0, 0])
        second = envs.step(zeros(2)).obs
        envs.step(zeros(2))
        np.testing.assert_array_equal(first[:, 0], [0, 0])
        np.testing.assert_array_equal(second[:, 0], [1, 1])


def test_an_env_that_keeps_its_action_keeps_a_copy() -> None:
    class Difference(gym.Env[np.ndarray, np.ndarray]):
        observation_space, action_space = Box(-1, 1, (1,), np.float32), Box(-1, 1, (1,), np.float32)

        def reset(self, **_: Any) -> Any:
            self.last = np.zeros(1, np.float32)
            return np.zeros(1, np.float32), {}

        def step(self, action: np.ndarray) -> Any:
            reward, self.last = float((action - self.last)[0]), action
            return np.zeros(1, np.float32), reward, False, False, {}

    with AsyncEnvs(Difference) as envs:
        envs.reset([0], [0])
        envs.step(np.full((1, 1), 0.25, np.float32))
        assert envs.step(np.full((1, 1), 0.75, np.float32)).rewards[0] == 0.5


def test_wrong_calls_are_refused_and_leave_the_group_alive() -> None:
    with AsyncEnvs(Misbehaving, 2) as envs:
        envs.reset([0], [0])
        with pytest.raises(RuntimeError, match=r"envs \[1\] must be reset"):
            envs.step(zeros(2))
        envs.reset([1], [0])
        with pytest.raises(ValueError, match=r"actions must have shape \(2,\)"):
            envs.step(zeros(3))
        for _ in range(10):
            last = envs.step(zeros(2))
        assert last.truncated.tolist() == [True, True]
        with pytest.raises(RuntimeError, match=r"envs \[0, 1\] must be reset"):
            envs.step(zeros(2))
    with pytest.raises(RuntimeError, match="closed"):
        envs.reset([0], [0])
    with pytest.raises(RuntimeError, match="closed"):
        envs.step(zeros(2))


@linux_only
def test_workers_that_are_spawned_do_the_same() -> None:
    make = RegisteredEnv("rl_training/Misbehaving-v0", {"fault": "exit", "step": 2})
    with AsyncEnvs(make, 1, worker_start="spawn") as envs:
        pids = envs.pids
        envs.reset([0], [0])
        assert envs.step(zeros(1)).obs[0, 0] == 1
        with pytest.raises(EnvError, match="env 0 ended its process with exit code 3 at step 2"):
            envs.step(zeros(1))
    assert not any(map(is_running, pids))


# ---------------------------------------------------------------------------------------------------- failures


@linux_only
@pytest.mark.parametrize(("fault", "message", "report"), CRASHES)
def test_a_crash_is_found_at_once_and_named(tmp_path: Path, fault: Any, message: str, report: str) -> None:
    # Only env 1 has the episode 1 in which the fault shows.
    with AsyncEnvs(lambda: Misbehaving(fault, step=2, episode=1), 3, crash_dir=tmp_path / "crash") as envs:
        pids = envs.pids
        envs.reset([0, 1, 2], [10, 11, 12], [4, 5, 6])
        envs.reset([1], [13], [7])
        envs.step(zeros(3))
        start = time.monotonic()
        with pytest.raises(EnvError, match=rf"^env 1 {message} at step 2 of episode 7 \(seed 13\); see .*env_1\.txt$"):
            envs.step(zeros(3))
        assert time.monotonic() - start < 1.0
        assert not any(map(is_running, pids))
        with pytest.raises(EnvError, match="the environments are closed, because env 1 "):
            envs.get_state(0)
    written = (tmp_path / "crash" / "env_1.txt").read_text()
    assert "at step 2 of episode 7 (seed 13)" in written
    assert report in written


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("dtype", "an observation of dtype int64, but"),
        ("nan_obs", "the observation [nan nan nan]"),
        ("nan_reward", "the reward nan,"),
    ],
)
def test_a_step_is_held_to_the_space_as_in_this_process(fault: Any, message: str) -> None:
    with AsyncEnvs(lambda: Misbehaving(fault, step=2)) as envs:
        envs.reset([0], [9])
        envs.step(zeros(1))
        with pytest.raises(
            EnvError, match=rf"^env 0 returned {re.escape(message)}.* at step 2 of episode 0 \(seed 9\)"
        ):
            envs.step(zeros(1))


def test_the_workers_traceback_is_the_cause_of_the_error() -> None:
    with AsyncEnvs(lambda: Misbehaving("raise", step=0)) as envs:
        with pytest.raises(
            EnvError, match=r"^env 0 raised ValueError: .* at the reset of episode 0 \(seed 9\)$"
        ) as error:
            envs.reset([0], [9])
        assert "_maybe_fault" in str(error.value.__cause__)


@linux_only
def test_a_hang_is_named_and_shows_where_it_is(tmp_path: Path) -> None:
    envs = AsyncEnvs(lambda: Misbehaving("hang", step=1, episode=1), 2, worker_timeout=0.3, crash_dir=tmp_path)
    pids = envs.pids
    envs.reset([0, 1], [1, 2])
    envs.reset([1], [3])
    start = time.monotonic()
    with pytest.raises(
        EnvError, match=r"^env 1 gave no answer for 0\.3 s \(worker_timeout\) and was stopped at step 1 of episode 1"
    ):
        envs.step(zeros(2))
    assert 0.3 <= time.monotonic() - start < 1.5
    assert not any(map(is_running, pids))
    assert "_maybe_fault" in (tmp_path / "env_1.txt").read_text()


@linux_only
def test_a_crash_is_found_while_another_worker_is_still_busy(tmp_path: Path) -> None:
    class SlowOrKilled(Misbehaving):
        def step(self, action: np.int64) -> Any:
            if action == 0:
                time.sleep(30)
            os._exit(7)

    envs = AsyncEnvs(SlowOrKilled, 2)
    pids = envs.pids
    envs.reset([0, 1], [1, 2])
    start = time.monotonic()
    with pytest.raises(EnvError, match="env 1 ended its process with exit code 7"):
        envs.step(np.array([0, 1]))
    assert time.monotonic() - start < 2.0  # of which one for the busy worker to close its environment
    assert not any(map(is_running, pids))


@linux_only
def test_a_worker_that_dies_between_two_steps_is_named_at_the_next(tmp_path: Path) -> None:
    with AsyncEnvs(Misbehaving, 2) as envs:
        envs.reset([0, 1], [1, 2])
        os.kill(envs.pids[1], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"env 1 was ended by SIGKILL .* at step 1 of episode 0 \(seed 2\)"):
            envs.step(zeros(2))


@linux_only
def test_a_death_is_found_even_if_a_child_of_the_env_holds_its_pipes(tmp_path: Path) -> None:
    class Forks(Misbehaving):
        def step(self, action: np.int64) -> Any:
            child = os.fork()
            if child == 0:
                time.sleep(5)
                os._exit(0)
            (tmp_path / "child").write_text(str(child))
            os._exit(4)

    with AsyncEnvs(Forks) as envs:
        envs.reset([0], [1])
        start = time.monotonic()
        with pytest.raises(EnvError, match="env 0 ended its process with exit code 4"):
            envs.step(zeros(1))
        assert time.monotonic() - start < 1.0
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_an_env_that_cannot_be_made_in_its_worker_is_named() -> None:
    parent = os.getpid()

    def make() -> Chain:
        return Chain(num_states=3 if os.getpid() == parent else 1)

    def make_others() -> Chain:
        return Chain(num_states=3 if os.getpid() == parent else 4)

    with pytest.raises(
        EnvError, match=r"env \d raised ValueError: num_states must be at least 2, got 1 before its first"
    ):
        AsyncEnvs(make, 2)
    with pytest.raises(EnvError, match=r"env \d has the spaces .* but the group has"):
        AsyncEnvs(make_others, 2)
    with pytest.raises(EnvError, match="env 0 raised ZeroDivisionError"):
        AsyncEnvs(lambda: 1 / 0, 2)  # type: ignore[arg-type, return-value]


def test_an_info_that_cannot_be_sent_is_an_error_and_not_a_hang() -> None:
    class Unpicklable(Misbehaving):
        def step(self, action: np.int64) -> Any:
            return *super().step(action)[:4], {"function": lambda: None}

    with AsyncEnvs(Unpicklable) as envs:
        envs.reset([0], [1])
        with pytest.raises(EnvError, match=r"env 0 raised .*(pickle|local object).* at step 1"):
            envs.step(zeros(1))


def test_a_replay_longer_than_the_timeout_is_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Misbehaving):
        def step(self, action: np.int64) -> Any:
            time.sleep(0.05)
            return super().step(action)

    monkeypatch.setattr(worker_process, "HEARTBEAT_SECONDS", 0.01)
    with AsyncEnvs(lambda: Slow(length=20), worker_timeout=0.3) as envs:
        assert envs.replay(0, 1, zeros(10))[0] == 10


# ------------------------------------------------------------------------------------------- nothing left behind


@pytest.fixture
def only_new_garbage() -> Iterator[None]:
    """Collect only what the test itself makes: what earlier tests left takes a second, which is no part of closing."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@linux_only
@pytest.mark.usefixtures("only_new_garbage")
@pytest.mark.parametrize("ending", ["close", "collect"])
def test_no_process_and_no_file_descriptor_is_left(ending: str) -> None:
    def open_files() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    AsyncEnvs(Misbehaving, 3).close()  # multiprocessing opens a file of its own the first time
    before = open_files()
    envs = AsyncEnvs(Misbehaving, 3)
    pids = envs.pids
    assert all(map(is_running, pids))
    assert shared_memory_files(os.getpid()) == []  # not even while it is in use
    start = time.monotonic()
    if ending == "close":
        envs.close()
        envs.close()
    del envs
    gc.collect()
    assert time.monotonic() - start < 1.0
    assert not any(map(is_running, pids))
    assert open_files() <= before


@linux_only
def test_a_worker_that_will_not_close_is_killed() -> None:
    class Stubborn(Misbehaving):
        def close(self) -> None:
            time.sleep(0 if os.getpid() == parent else 60)

    parent = os.getpid()
    envs = AsyncEnvs(Stubborn, 2)
    pids = envs.pids
    start = time.monotonic()
    envs.close()
    assert time.monotonic() - start < 2.0
    assert not any(map(is_running, pids))


@linux_only
def test_signals_for_the_whole_run_are_left_to_the_parent() -> None:
    previous = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with AsyncEnvs(Misbehaving, 2) as envs:
            envs.reset([0, 1], [0, 0])
            for pid in envs.pids:
                for number in (*STOP_SIGNALS, signal.SIGALRM):
                    os.kill(pid, number)
            assert envs.step(zeros(2)).rewards.tolist() == [1.0, 1.0]
    finally:
        signal.signal(signal.SIGALRM, previous)


@linux_only
def test_an_interruption_of_the_parent_ends_the_group() -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        envs = AsyncEnvs(lambda: Misbehaving("hang", step=1), 2)
        pids = envs.pids
        envs.reset([0, 1], [0, 0])
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            envs.step(zeros(2))
        assert not any(map(is_running, pids))
    finally:
        signal.signal(signal.SIGALRM, previous)


SCRIPT = """
import sys, time
import numpy as np
from rl_training.envs.tiny import Misbehaving
from rl_training.envs.workers import AsyncEnvs
envs = AsyncEnvs(lambda: Misbehaving("hang", step=1), 2)
others = AsyncEnvs(Misbehaving, 1)  # its worker inherits the pipes of the first two
envs.reset([0, 1], [0, 0])
print(*envs.pids, *others.pids, flush=True)
{then}
"""


@linux_only
@pytest.mark.parametrize(
    ("then", "is_killed"),
    [
        ("time.sleep(60)", True),
        ("envs.step(np.zeros(2, np.int64))", True),  # the workers hang inside their step
        ("sys.exit(0)", False),
        ("raise ValueError", False),
    ],
)
def test_workers_end_with_their_parent_however_it_ends(then: str, is_killed: bool) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(then=then)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    if is_killed:
        assert all(map(is_running, pids))
        time.sleep(0.05)  # into the step
        parent.kill()
    parent.wait(timeout=5)
    parent.stdout.close()
    wait_until(lambda: not any(map(is_running, pids)), limit=2.0)
    assert shared_memory_files(parent.pid) == []


@linux_only
def test_workers_that_are_stopped_end_with_their_killed_parent() -> None:
    command = [sys.executable, "-c", SCRIPT.format(then="time.sleep(60)")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
    wait_until(lambda: not any(map(is_running, pids)), limit=60.0)


def test_a_function_that_a_spawned_worker_cannot_import_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^worker_start: a spawned process .*<lambda>.*; define it with `def` at the"
    ):
        AsyncEnvs(lambda: Chain(), worker_start="spawn")


class NotForkable(Chain):
    """Hangs in a process that was forked after it was used, as an OpenGL context does."""

    used: ClassVar[list[int]] = []

    def reset(self, **kwargs: Any) -> Any:
        if NotForkable.used and NotForkable.used[0] != os.getpid():
            time.sleep(3600)
        NotForkable.used.append(os.getpid())
        return super().reset(**kwargs)


@linux_only
def test_an_env_that_cannot_be_forked_is_told_to_spawn() -> None:
    SyncEnvs(NotForkable).reset([0], [0])
    hint = "at the reset of episode 0.*; an environment with an OpenGL context, .* needs worker_start: spawn$"
    with AsyncEnvs(NotForkable, worker_timeout=0.5) as envs, pytest.raises(EnvError, match=hint):
        envs.reset([0], [0])
    with make_envs(NotForkable, 1, backend="local_async", worker_start="spawn") as envs:  # type: ignore[attr-defined]
        assert envs.reset([0], [0])[0].shape == (1, 5)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="worker_timeout must be positive"):
        AsyncEnvs(Misbehaving, 1, worker_timeout=0)
    with pytest.raises(ValueError, match="num_envs must be at least 1"):
        make_envs(Misbehaving, 0, backend="local_async")
