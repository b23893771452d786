"""SLURM: one job array whose tasks are workers. A worker that is stopped saves its run and is queued again."""

import getpass
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_training.core.durable_files import make_folder, read_text, write_atomic
from rl_training.errors import ConfigError, TrainingError
from rl_training.launching.pool import LaunchOptions
from rl_training.runtime.signals import EXIT_INTERRUPTED

QUEUE_SECONDS = 15.0  # between two looks at the queue
# Options of sbatch that the launcher sets, each with what to use instead.
_OWN = {"array": "--jobs", "requeue": "", "open-mode": "", "output": "", "chdir": "", "parsable": "", "wrap": ""}
_KEY = re.compile(r"[a-z][a-z0-9-]*")

log = logging.getLogger("rl_training")


def check_slurm_options(given: Mapping[str, str]) -> None:
    """Raise `ConfigError` for options that sbatch does not have, or that the launcher sets itself."""
    for key, value in given.items():
        if not _KEY.fullmatch(key) or not value.isprintable():
            raise ConfigError(f"--slurm {key}={value!r}: expected an option of sbatch, such as time=4:00:00")
        if key in _OWN:
            instead = f"; use {_OWN[key]}" if _OWN[key] else ""
            raise ConfigError(f"--slurm {key}: the launcher sets this option itself{instead}")


def require_sbatch() -> None:
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "--launcher slurm needs the program sbatch, which is not on the PATH of this machine; run it where jobs "
            "are submitted"
        )


def job_script(options: LaunchOptions, folder: Path) -> str:
    """Return the script of a job: a worker, started in `folder`. A worker that was stopped is queued again."""
    worker = [sys.executable, "-m", "rl_training", "work", str(options.root), "--retries", str(options.retries)]
    return f"""#!/bin/bash
# Written by rl-training. `rl-training status` shows the runs.
cd -- {shlex.quote(str(folder))} || exit 2
srun --unbuffered {shlex.join([*worker, "--quiet", *options.flags])}
code=$?
if [ "$code" -eq {EXIT_INTERRUPTED} ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit "$code"
"""


def sbatch_command(options: LaunchOptions, count: int) -> list[str]:
    """Return the command that submits `count` workers."""
    settings = {"signal": "TERM@120", **options.slurm}
    given = [f"--{key}={value}" if value else f"--{key}" for key, value in settings.items()]
    folder = options.root / "slurm"
    fixed = ["--parsable", "--requeue", "--open-mode=append", f"--chdir={folder}", "--output=%A_%a.log"]
    return ["sbatch", *fixed, *given, f"--array=0-{count - 1}", str(folder / "job.sh")]


def write_job(options: LaunchOptions) -> Path:
    """Write the script of a job; return its path."""
    script = options.root / "slurm" / "job.sh"
    make_folder(script.parent)
    write_atomic(script, job_script(options, Path.cwd()))
    return script


def show_job(options: LaunchOptions, count: int) -> None:
    """Write the script of the job and print the command that submits it; nothing is submitted."""
    write_job(options)
    print(shlex.join(sbatch_command(options, min(options.jobs, count))))


class SlurmWorkers:
    """Workers that are tasks of SLURM job arrays. slurm/jobs.txt below the root folder lists the arrays."""

    def __init__(self, options: LaunchOptions) -> None:
        require_sbatch()
        self._options = options
        write_job(options)
        self._list = options.root / "slurm" / "jobs.txt"
        self._jobs = read_text(self._list).split() if self._list.is_file() else []
        self._alive: int | None = None
        self._look_at = 0.0

    def alive(self) -> int | None:
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + QUEUE_SECONDS
            self._alive = self._count()
        return self._alive

    def _count(self) -> int | None:
        if not self._jobs:
            return 0
        # %F: the job of the array to which a task belongs.
        queue = _run(["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%F"])
        if queue.returncode != 0:
            log.warning("squeue does not answer: %s", queue.stderr.strip())
            return None
        return sum(job in self._jobs for job in queue.stdout.split())

    def start(self, count: int) -> None:
        command = sbatch_command(self._options, count)
        log.info("%s", shlex.join(command))
        answer = _run(command)
        if answer.returncode != 0:
            reason = answer.stderr.strip() or answer.stdout.strip()
            raise TrainingError(f"sbatch refused the job: {reason}; check the options of --slurm")
        job = answer.stdout.strip().partition(";")[0]
        log.info("submitted as SLURM job %s", job)
        self._jobs.append(job)
        write_atomic(self._list, "\n".join(self._jobs) + "\n")
        self._look_at = 0.0

    def close(self) -> None:
        """Leave the jobs: they go on without this process."""
        if self._count():
            log.info(
                "the SLURM jobs go on; `%s` shows the runs, `scancel %s` ends them",
                shlex.join(["rl-training", "status", str(self._options.root)]),
                " ".join(self._jobs),
            )


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
