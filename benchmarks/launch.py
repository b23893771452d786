"""Contenders, and how one of them is run: a process of its own, in its own environment, on as many threads as asked."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import peer_python

SCRIPTS = Path(__file__).resolve().parent / "contenders"


class ContenderError(RuntimeError):
    """A contender ended without a result."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A script, and the environment it runs in: a peer's, or (None) the one this benchmark runs in."""

    name: str
    script: str
    peer: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    def python(self) -> str:
        return str(peer_python(self.peer)) if self.peer else sys.executable


def _by_name(*contenders: Contender) -> dict[str, Contender]:
    return {contender.name: contender for contender in contenders}


# "ours" starts with a warm cache of compiled steps, "ours-cold" with an empty one.
DQN_CONTENDERS = _by_name(
    Contender(name="ours-cold", script="ours.py"),
    Contender(name="ours", script="ours.py"),
    Contender(name="sb3", script="sb3_dqn.py", peer="sb3"),
    Contender(
        name="sbx",
        script="sbx_dqn.py",
        peer="sbx",
        environ={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
    ),
    Contender(name="tianshou", script="tianshou_dqn.py", peer="tianshou"),
    Contender(name="plain", script="plain_dqn.py"),
)


def run_contender(
    contender: Contender,
    setting: Mapping[str, Any],
    *,
    core: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a contender to its end and give what it printed; `core` pins it to one core (where `taskset` exists)."""
    threads = str(setting["threads"])
    pin = ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []
    command = [*pin, contender.python(), str(SCRIPTS / contender.script), json.dumps(setting)]
    thread_limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    load_average = os.getloadavg()[0]
    start = time.perf_counter()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **thread_limits, **contender.environ, **(environ or {})},
    )
    process_s = time.perf_counter() - start
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise ContenderError(f"{contender.name} ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return {**result, "process_s": process_s, "load_average_before": round(load_average, 2)}
