"""Signals end a run after its step; `learn` then ends the script too, unless asked to return."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import pytest

from builders import make_config
from rl_training import DQN, Callback
from rl_training.core.stop_signals import STOP_SIGNALS
from rl_training.errors import ConfigError
from rl_training.runtime.run import Run
from rl_training.runtime.signals import signals_stop

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Start with the handlers of a new process, which the shell that runs the tests may have changed."""
    with contextlib.ExitStack() as stack:
        for number in STOP_SIGNALS:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            stack.callback(signal.signal, number, signal.signal(number, default))
        yield


def fake_run() -> Any:
    return SimpleNamespace(stop_reason="", signal=None)


def test_the_signals_of_terminals_and_batch_systems_are_handled() -> None:
    assert {number.name for number in STOP_SIGNALS} == {
        *("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGQUIT")
    }


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_every_stop_signal_ends_the_run(number: signal.Signals) -> None:
    run = fake_run()
    before = signal.getsignal(number)
    with signals_stop(cast(Run, run)):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)  # a batch system repeats it: the run goes on saving
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (run.stop_reason, run.signal) == (f"signal {number.name}", number)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", STOP_SIGNALS[2:])  # not SIGINT and SIGTERM
def test_a_signal_that_is_ignored_or_handled_already_is_left_alone(number: signal.Signals) -> None:
    # `nohup` ignores SIGHUP; a script may have a handler of its own for the signal of its batch system.
    received: list[int] = []
    run = fake_run()
    for handler in (signal.SIG_IGN, lambda number, frame: received.append(number)):
        signal.signal(number, handler)
        with signals_stop(cast(Run, run)):
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is handler
    assert (received, run.signal) == ([number], None)


class SendSignal(Callback):
    def __init__(self, step: int, number: signal.Signals) -> None:
        self.step, self.number = step, number

    def on_step(self, run: Run) -> None:
        if run.step == self.step:
            os.kill(os.getpid(), self.number)


def agent_that_gets(number: signal.Signals, folder: Path) -> DQN:
    return DQN(make_config(folder), callbacks=[SendSignal(40, number)], show_progress=False)


def test_ctrl_c_raises_after_saving_and_learn_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_that_gets(signal.SIGINT, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        agent.learn()
    (run_dir,) = tmp_path.iterdir()
    assert f"signal SIGINT: the run is saved at step 40 in {run_dir}; agent.learn() continues it" in caplog.text
    assert agent.predict(np.eye(5)).shape == (5,)
    assert agent.save(tmp_path / "kept").is_dir()
    result = agent.learn()
    assert (result.step, result.run_dir, result.signal) == (60, run_dir, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_another_signal_ends_the_script_with_75(number: signal.Signals, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        agent_that_gets(number, tmp_path).learn()
    assert ended.value.code == 75


class SendSignalAtTheEnd(Callback):
    def on_end(self, run: Run) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_after_the_last_evaluation_ends_the_script_although_the_run_is_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = DQN(make_config(tmp_path), callbacks=[SendSignalAtTheEnd()], show_progress=False)
    with pytest.raises(KeyboardInterrupt):
        agent.learn()
    (run_dir,) = tmp_path.iterdir()
    assert (run_dir / "result.json").is_file()
    assert f"signal SIGINT: the run is finished at step 60 in {run_dir}" in caplog.text


def test_learn_may_return_instead(tmp_path: Path) -> None:
    result = agent_that_gets(signal.SIGTERM, tmp_path).learn(on_signal="return")
    assert (result.step, result.interrupted, result.signal) == (40, True, signal.SIGTERM)


def test_another_on_signal_is_refused(tmp_path: Path) -> None:
    wrong = cast(Literal["raise"], "stop")
    with pytest.raises(ConfigError, match='on_signal must be "raise" or "return", got \'stop\''):
        DQN(make_config(tmp_path)).learn(on_signal=wrong)
    assert list(tmp_path.iterdir()) == []
