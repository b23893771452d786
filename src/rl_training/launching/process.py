"""The process that trains one run: `rl-training resume`, with its output in log.txt of the run folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rl_training.core.durable_files import open_log
from rl_training.core.parent_death import PARENT_PID
from rl_training.experiment.claims import Claim
from rl_training.launching.marks import forget, is_stopped, record_failure
from rl_training.launching.progress import last_line
from rl_training.runtime.signals import EXIT_INTERRUPTED

LOG = "log.txt"


@dataclass(frozen=True, slots=True)
class Ended:
    """How the run of a folder ended. An interrupted run is saved and can be submitted again."""

    folder: Path
    status: Literal["finished", "interrupted", "failed"]
    message: str = ""


class RunProcess:
    """A process that trains a claimed run. It saves and ends with this process, also if this one is killed."""

    def __init__(self, claim: Claim, flags: Sequence[str]) -> None:
        self._claim = claim
        with open_log(claim.folder / LOG) as log:
            log.write(f"claimed by process {claim.holder.pid} on {claim.holder.host}\n".encode())
            self._log_start = log.tell()
        self._process = start_process(claim.folder, flags)
        self._is_stopping = False

    @property
    def folder(self) -> Path:
        return self._claim.folder

    def poll(self) -> Ended | None:
        """Return how the run ended, None while it runs; a failure is written to the run folder.

        A run that was asked to stop is ended, one that another worker has taken over at once.
        """
        folder = self.folder
        if self._claim.lost:
            self._process.kill()
            self._process.wait()
            return Ended(folder, "interrupted", "another worker took the run over")
        code = self._process.poll()
        if code is None:
            if is_stopped(folder) and not self._is_stopping:
                self.stop()
            return None
        self._claim.release()
        if code == 0:
            forget(folder)
            return Ended(folder, "finished")
        if code in (EXIT_INTERRUPTED, -signal.SIGTERM):  # the second: it was still importing
            return Ended(folder, "interrupted")
        return Ended(folder, "failed", record_failure(folder, self._describe_exit(code)).message)

    def _describe_exit(self, code: int) -> str:
        """Return how the process ended, and the last line of its log."""
        ending = f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
        file = self.folder / LOG
        reason = last_line(file, self._log_start)
        return f"{ending}; see {file}" + (f": {reason}" if reason else "")

    def stop(self) -> None:
        """Make the run save and end."""
        self._is_stopping = True
        self._process.terminate()

    def wait(self) -> None:
        self._process.wait()


def start_process(folder: Path, flags: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a process that resumes a run, and that saves and ends with this one."""
    with open_log(folder / LOG) as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rl_training", "resume", str(folder), *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # As many processes as cores leave one thread each.
            env={**os.environ, "OMP_NUM_THREADS": "1", PARENT_PID: str(os.getpid())},
            start_new_session=True,  # Ctrl-C reaches the children once, through this process
        )
