"""A process ends with the one that started it, even if that one is killed."""

import os
import signal
import subprocess
import sys

import pytest

from rl_training.core import parent_death

# Starts a child that follows it, prints the child's id and waits to be killed.
PARENT = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdout=sys.stdout)
signal.pause()
"""
CHILD = """
import os, signal, sys, time
from rl_training.core import parent_death
{change}
signal.signal(signal.SIGTERM, lambda *_: (print("ended", flush=True), os._exit(0)))
parent_death.end_with_parent(int(sys.argv[1]), signal.SIGTERM)
print("follows", flush=True)
while True:
    time.sleep(0.01)
"""


@pytest.mark.process
@pytest.mark.parametrize("change", ["", "parent_death.sys.platform = 'other'; parent_death._CHECK_SECONDS = 0.01"])
def test_a_killed_parent_ends_its_child(change: str) -> None:
    command = [sys.executable, "-c", PARENT, CHILD.format(change=change)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "follows\n"
        parent.kill()
        assert parent.stdout.readline() == "ended\n"


@pytest.mark.process
def test_a_parent_that_ended_before_counts_as_ended() -> None:
    code = "import signal; from rl_training.core.parent_death import end_with_parent as end; end(0, signal.SIGTERM)"
    ended = subprocess.run([sys.executable, "-c", f"{code}; print('alive')"], check=False)
    assert ended.returncode == -signal.SIGTERM


def test_only_the_process_that_is_meant_reads_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(parent_death, "end_with_parent", lambda pid, number: calls.append((pid, number)))
    monkeypatch.setenv(parent_death.PARENT_PID, "17")
    parent_death.end_with_named_parent()
    parent_death.end_with_named_parent()
    assert calls == [(17, signal.SIGTERM)]
    assert parent_death.PARENT_PID not in os.environ
