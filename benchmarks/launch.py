"""Contenders, and how one of them is run: a process of its own, in its own environment, on as many threads as asked."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.peers import ROOT, peer_python

SCRIPTS = Path(__file__).resolve().parent / "contenders"
KEPT_RUNS = ROOT / "runs" / "benchmarks"


class ContenderError(RuntimeError):
    """A contender ended without a result."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A script, and the environment it runs in: a peer's, or (None) the one this benchmark runs in.

    `setting`: what it changes in the benchmark's setting; `hparams`: in the hyperparameters there. `any_device`: it
    learns where it is told to; else on the CPU.
    """

    name: str
    script: str
    peer: str | None = None
    any_device: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)
    hparams: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        """Give the benchmark's setting as this contender runs it."""
        changed = {**setting, **self.setting}
        return {**changed, "hparams": {**changed["hparams"], **self.hparams}} if self.hparams else changed

    def python(self) -> str:
        return str(peer_python(self.peer)) if self.peer else sys.executable


def _by_name(*contenders: Contender) -> dict[str, Contender]:
    return {contender.name: contender for contender in contenders}


TWO_THREADS = "-2t"


def _with_two_threads(*contenders: Contender) -> dict[str, Contender]:
    """Give each contender, and each again with two threads, named `<name>-2t`."""
    twice = [replace(each, name=each.name + TWO_THREADS, setting={**each.setting, "threads": 2}) for each in contenders]
    return _by_name(*contenders, *twice)


# "ours" starts with a warm cache of compiled steps, "ours-cold" with an empty one.
_OURS_COLD = Contender(name="ours-cold", script="ours.py")
OURS = Contender(name="ours", script="ours.py", any_device=True)
# Matrix products of numbers rounded to bfloat16, where the processor has them.
_OURS_BFLOAT16 = Contender(name="ours-bfloat16", script="ours.py", setting={"matmul_precision": "medium"})
_OURS_ENVPOOL = Contender(name="ours-envpool", script="ours.py", setting={"execution_backend": "envpool"})
_ON_CPU = {"JAX_PLATFORMS": "cpu"}
SB3_CONTRIB = Contender(name="sb3_contrib", script="sb3_qr_dqn.py", peer="sb3")
TIANSHOU = Contender(name="tianshou", script="tianshou_dqn.py", peer="tianshou")  # any head: the setting's `algo`
SB3_ACTOR_CRITIC = Contender(name="sb3", script="sb3_actor_critic.py", peer="sb3")  # SAC and TD3
TIANSHOU_ACTOR_CRITIC = Contender(name="tianshou", script="tianshou_actor_critic.py", peer="tianshou")  # and REDQ
D3RLPY_IQL = Contender(name="d3rlpy", script="d3rlpy_iql.py", peer="d3rlpy", any_device=True)
FLOOR = Contender(name="floor", script="floor.py")  # no learner: the time of an update's matrix products alone

DQN_CONTENDERS = _by_name(
    _OURS_COLD,
    OURS,
    Contender(name="sb3", script="sb3_dqn.py", peer="sb3"),
    Contender(name="sbx", script="sbx_dqn.py", peer="sbx", environ=_ON_CPU),
    TIANSHOU,
    Contender(name="plain", script="plain_dqn.py"),
)
# Tianshou's heads always select by the online network; so does "ours", where the task says double_q.
HEAD_CONTENDERS = _by_name(_OURS_COLD, OURS, TIANSHOU)
IQN_CONTENDERS = _by_name(
    _OURS_COLD,
    OURS,
    # Tianshou takes 8 fractions to select in the update and 32 to act; ours has one number for both.
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
# sbx has no REDQ: its SAC with as many critics takes the least value of all of them.
_SBX_SAC = replace(_SBX_ACTOR_CRITIC, name="sbx-sac")
REDQ_CONTENDERS = _with_two_threads(OURS, _OURS_BFLOAT16, TIANSHOU_ACTOR_CRITIC, _SBX_SAC)
IQL_CONTENDERS = _by_name(_OURS_COLD, OURS, _OURS_BFLOAT16, D3RLPY_IQL, Contender(name="plain", script="plain_iql.py"))


def run_contender(
    contender: Contender,
    setting: Mapping[str, Any],
    *,
    cores: Sequence[int] = (),
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a contender to its end and give what it printed; `cores` pins it to them (where `taskset` exists)."""
    setting = contender.apply(setting)
    threads = setting["threads"]
    pin = ["taskset", "-c", ",".join(map(str, cores))] if cores and shutil.which("taskset") else []
    command = [*pin, contender.python(), str(SCRIPTS / contender.script), json.dumps(setting)]
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    limits["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'false' if threads == 1 else 'true'}"
    load_average = os.getloadavg()[0]
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
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
    result: dict[str, Any] = json.loads(lines[-1])
    return {**result, "date": date, "process_s": process_s, "load_average_before": round(load_average, 2)}
