"""Contenders, and how to run one: in its own process, its own environment, and with the requested number of threads."""

import json
import os
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import now
from benchmarks.peers import ROOT, peer_python

SCRIPTS = Path(__file__).resolve().parent / "contenders"
KEPT_RUNS = ROOT / "runs" / "benchmarks"


class ContenderError(RuntimeError):
    """A contender ended without a result."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A script and the virtual environment it runs in: a peer's, or (None) the one of this process.

    `setting`: changes to the benchmark's setting; `hparams`: changes to its hyperparameters. `any_device`: it can train
    on the requested device; the others stay on the CPU.
    """

    name: str
    script: str
    peer: str | None = None
    any_device: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)
    hparams: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        """Return the benchmark's setting as this contender runs it."""
        changed = {**setting, **self.setting}
        return {**changed, "hparams": {**changed["hparams"], **self.hparams}} if self.hparams else changed

    def python(self) -> str:
        return str(peer_python(self.peer)) if self.peer else sys.executable


def _by_name(*contenders: Contender) -> dict[str, Contender]:
    return {contender.name: contender for contender in contenders}


TWO_THREADS = "-2t"


def _with_two_threads(*contenders: Contender) -> dict[str, Contender]:
    """Return each contender, and a second version of each with two threads, named `<name>-2t`."""
    twice = [replace(each, name=each.name + TWO_THREADS, setting={**each.setting, "threads": 2}) for each in contenders]
    return _by_name(*contenders, *twice)


# "ours" starts with a warm cache of compiled steps, "ours-cold" with an empty one.
_OURS_COLD = Contender(name="ours-cold", script="ours.py")
OURS = Contender(name="ours", script="ours.py", any_device=True)
# Matrix products in bfloat16, where the processor supports them.
_OURS_BFLOAT16 = Contender(name="ours-bfloat16", script="ours.py", setting={"matmul_precision": "medium"})
_OURS_ENVPOOL = Contender(name="ours-envpool", script="ours.py", setting={"execution_backend": "envpool"})
_ON_CPU = {"JAX_PLATFORMS": "cpu"}
SB3_CONTRIB = Contender(name="sb3_contrib", script="sb3_qr_dqn.py", peer="sb3")
SB3_RECURRENT_PPO = Contender(name="sb3_contrib", script="sb3_recurrent_ppo.py", peer="sb3")
SB3_DEFAULTS = Contender(name="sb3", script="sb3_defaults.py", peer="sb3")  # the setting's `algo` names one
TIANSHOU = Contender(name="tianshou", script="tianshou_dqn.py", peer="tianshou")  # the setting's `algo` names the head
SB3_ACTOR_CRITIC = Contender(name="sb3", script="sb3_actor_critic.py", peer="sb3")  # `algo` names one
TIANSHOU_ACTOR_CRITIC = Contender(name="tianshou", script="tianshou_actor_critic.py", peer="tianshou")  # and REDQ
D3RLPY = Contender(name="d3rlpy", script="d3rlpy_offline.py", peer="d3rlpy", any_device=True)  # `algo` names one
FLOOR = Contender(name="floor", script="floor.py")  # no learner: times only the matrix products of an update

DQN_CONTENDERS = _by_name(
    _OURS_COLD,
    OURS,
    Contender(name="sb3", script="sb3_dqn.py", peer="sb3"),
    Contender(name="sbx", script="sbx_dqn.py", peer="sbx", environ=_ON_CPU),
    TIANSHOU,
    Contender(name="plain", script="plain_dqn.py"),
)
# Tianshou's heads always select with the online network; "ours" does so where the task sets double_q.
HEAD_CONTENDERS = _by_name(_OURS_COLD, OURS, TIANSHOU)
IQN_CONTENDERS = _by_name(
    _OURS_COLD,
    OURS,
    # Tianshou selects with 8 fractions in the update and acts with 32; ours has one setting for both.
    Contender(name="ours-select8", script="ours.py", hparams={"num_quantiles": 8}),
    TIANSHOU,
)
QR_DQN_CONTENDERS = _by_name(
    _OURS_COLD,
    OURS,
    Contender(name="ours-double", script="ours.py", hparams={"double_q": True}),
    SB3_CONTRIB,
    TIANSHOU,
)
PPO_CONTENDERS = {
    **_by_name(_OURS_COLD),
    **_with_two_threads(
        OURS,
        _OURS_ENVPOOL,
        Contender(name="sb3", script="sb3_ppo.py", peer="sb3"),
        Contender(name="sbx", script="sbx_ppo.py", peer="sbx", environ=_ON_CPU),
        Contender(name="tianshou", script="tianshou_ppo.py", peer="tianshou"),
    ),
}
_SBX_ACTOR_CRITIC = Contender(name="sbx", script="sbx_actor_critic.py", peer="sbx", environ=_ON_CPU)
TD3_CONTENDERS = _with_two_threads(OURS, _OURS_BFLOAT16, SB3_ACTOR_CRITIC, _SBX_ACTOR_CRITIC, TIANSHOU_ACTOR_CRITIC)
SAC_CONTENDERS = {**TD3_CONTENDERS, **_by_name(Contender(name="plain", script="plain_sac.py"))}
# sbx has no REDQ: its SAC with the same number of critics uses the minimum of all of them.
_SBX_SAC = replace(_SBX_ACTOR_CRITIC, name="sbx-sac")
REDQ_CONTENDERS = _with_two_threads(OURS, _OURS_BFLOAT16, TIANSHOU_ACTOR_CRITIC, _SBX_SAC)
CONTRIB_CONTENDERS = _with_two_threads(OURS, replace(SB3_ACTOR_CRITIC, name="sb3_contrib"))
OFFLINE_CONTENDERS = _by_name(_OURS_COLD, OURS, _OURS_BFLOAT16, D3RLPY)
IQL_CONTENDERS = {**OFFLINE_CONTENDERS, **_by_name(Contender(name="plain", script="plain_iql.py"))}


def run_contender(
    contender: Contender,
    setting: Mapping[str, Any],
    *,
    cores: Sequence[int] = (),
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a contender and return the result it printed. `cores`: pins it to them, where `taskset` exists."""
    setting = contender.apply(setting)
    threads = setting["threads"]
    pin = ["taskset", "-c", ",".join(map(str, cores))] if cores and shutil.which("taskset") else []
    command = [*pin, contender.python(), str(SCRIPTS / contender.script), json.dumps(setting)]
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    limits["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'false' if threads == 1 else 'true'}"
    load_average = os.getloadavg()[0]
    date = now()
    start = time.perf_counter()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **limits, **contender.environ, **(environ or {})},
    )
    process_s = time.perf_counter() - start
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise ContenderError(f"{contender.name} ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    # An update that runs eagerly, because its compiled form differs, is several times slower; no figure shows that.
    for line in done.stderr.splitlines():
        if "runs eagerly" in line:
            print(f"  {contender.name}: {line}", flush=True)
    result: dict[str, Any] = json.loads(lines[-1])
    return {**result, "date": date, "process_s": process_s, "load_average_before": round(load_average, 2)}


class FreeCores:
    """The cores this process may use, one per run as long as there are enough."""

    def __init__(self, jobs: int) -> None:
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._free: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()
        for job in range(jobs):
            self._free.put((allowed[job % len(allowed)],) if allowed else ())

    def run(self, contender: Contender, setting: Mapping[str, Any]) -> dict[str, Any]:
        cores = self._free.get()
        try:
            return run_contender(contender, setting, cores=cores)
        finally:
            self._free.put(cores)
