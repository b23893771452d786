"""An environment in this process that never returns is interrupted and named; native code ends the process."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import make_config
from rl_training import DQN
from rl_training.envs.hang_watch import ENV_CALLS, TICKS, HangWatch, hangs_end
from rl_training.envs.resumable import check_replay
from rl_training.envs.tiny import Chain, Misbehaving
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import EnvError
from rl_training.runtime.trainer import RunOptions, train

TIMEOUT = 0.5  # longer than any call below takes, except for those that never end


@pytest.fixture
def done() -> list[str]:
    """What the watch did."""
    return []


@pytest.fixture
def watch(done: list[str]) -> Iterator[HangWatch]:
    """A watch that looks only when a test asks it to; a tick is a second."""
    interrupt, end = (lambda name=name: done.append(name) for name in ("interrupt", "end"))
    yield HangWatch(float(TICKS), interrupt=interrupt, end_process=end)
    ENV_CALLS.active = False


def tick(watch: HangWatch, count: int) -> None:
    for _ in range(count):
        watch.tick()


def test_call_is_interrupted_after_the_timeout_and_the_process_ends_after_the_grace(
    watch: HangWatch, done: list[str]
) -> None:
    with ENV_CALLS:
        tick(watch, TICKS)
        assert done == []
        watch.tick()  # the first tick saw the call for the first time
        assert done == ["interrupt"]
        tick(watch, 4)
        assert done == ["interrupt"]
        watch.tick()
        assert done == ["interrupt", "end"]


def test_every_call_gets_the_whole_timeout(watch: HangWatch, done: list[str]) -> None:
    with ENV_CALLS:
        for _ in range(5):
            tick(watch, TICKS)
            ENV_CALLS.next()
    tick(watch, 2 * TICKS)  # nothing is called
    assert done == []


def test_debugger_may_take_its_time(watch: HangWatch, done: list[str]) -> None:
    with ENV_CALLS:
        exec("tick(watch, 3 * 20)", {"__name__": "pdb", "tick": tick, "watch": watch})
    assert done == []


def test_interruption_that_comes_after_the_call_is_dropped(watch: HangWatch) -> None:
    with ENV_CALLS:
        tick(watch, TICKS + 1)
    watch.raise_in_call(0, None)
    with ENV_CALLS:
        watch.raise_in_call(0, None)  # the next call is another one


@pytest.mark.parametrize(("fault_step", "where"), [(0, "the reset"), (2, "step 2")])
def test_hung_env_is_named(fault_step: int, where: str) -> None:
    def play(envs: SyncEnvs) -> None:
        envs.reset([0, 1], [7, 8])
        for _ in range(2):
            envs.step(np.zeros(2, np.int64))

    found = rf"^env 0 gave no answer for 0\.5 s \(worker_timeout\) and was stopped at {where} of episode 0 \(seed 7\)$"
    envs = SyncEnvs(lambda: Misbehaving("hang", step=fault_step), 2)
    with hangs_end(TIMEOUT), pytest.raises(EnvError, match=found):
        play(envs)


def test_replay_check_that_hangs_is_named() -> None:
    found = r"the check whether the environment can be replayed failed: it gave no answer for 0\.5 s"
    with hangs_end(TIMEOUT), pytest.raises(EnvError, match=found):
        check_replay(lambda: Misbehaving("hang"), 0)


def test_other_threads_are_not_watched() -> None:
    before = threading.active_count()
    counts = []

    def run() -> None:
        with hangs_end(TIMEOUT):
            counts.append(threading.active_count())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert counts == [before + 1]


class HangsLater(Chain):
    """An environment that hangs at its next reset once `hang` is set."""

    hang = False

    def reset(self, **kwargs: Any) -> Any:
        if self.hang:
            threading.Event().wait()
        return super().reset(**kwargs)


@pytest.mark.process
def test_an_evaluation_after_the_run_is_watched_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = DQN.for_env(
        HangsLater, 20, output_dir=tmp_path, worker_timeout=TIMEOUT, show_progress=False, tensorboard=False
    )
    result = agent.learn()
    monkeypatch.setattr(HangsLater, "hang", True)
    with pytest.raises(EnvError, match=r"gave no answer for 0.5 s"):
        agent.evaluate()
    with pytest.raises(EnvError, match=r"gave no answer for 0.5 s"):
        DQN.load(result.run_dir, env_factory=HangsLater)


@pytest.mark.process
def test_an_environment_that_hangs_at_once_is_named_before_the_run_begins(tmp_path: Path) -> None:
    kwargs = {"fault": "hang", "step": 0}
    config = make_config(
        tmp_path, env_id="rl_training/Misbehaving-v0", env_kwargs=kwargs, worker_timeout=TIMEOUT, num_envs=1
    )
    with pytest.raises(EnvError, match=r"env_id 'rl_training/Misbehaving-v0': .* gave no answer for 0.5 s"):
        train(config, RunOptions(show_progress=False))
    assert list(tmp_path.iterdir()) == []


# A mutex that is locked twice waits for ever, with every signal.
NATIVE_HANG = """
import ctypes, sys
from pathlib import Path
from builders import make_config
from rl_training.envs.tiny import Chain
from rl_training.runtime.trainer import RunOptions, train

class Deadlock(Chain):
    def reset(self, **kwargs):
        if Path(sys.argv[1], "run", "checkpoints", "latest").exists():
            mutex = ctypes.create_string_buffer(128)
            for _ in range(2):
                ctypes.CDLL(None).pthread_mutex_lock(mutex)
        return super().reset(**kwargs)

config = make_config(Path(sys.argv[1]), worker_timeout=0.5)
train(config, RunOptions(show_progress=False, env_factory=Deadlock), run_dir=Path(sys.argv[1], "run"))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the mutex of glibc")
def test_native_code_that_hangs_in_the_final_evaluation_ends_the_process_with_a_report(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NATIVE_HANG, str(tmp_path)]
    tests = Path(__file__).parent.parent
    ended: Any = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tests)
    run_dir = tmp_path / "run"
    assert ended.returncode == 2
    assert "an environment gave no answer for 0.5 s (worker_timeout), in native code" in ended.stderr
    assert f"`rl-training resume {run_dir}` continues" in ended.stderr
    assert "line 13 in reset" in (run_dir / "crash" / "hang.txt").read_text()
    assert (run_dir / "checkpoints" / "latest").read_text() == "step_000000060\n"
