"""A real SLURM cluster of one node on this machine, without munge, systemd and root services; it ends with its block.

apt-get install --no-install-recommends slurmctld slurmd slurm-client slurm-wlm-basic-plugins
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from getpass import getuser
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "srun", "sinfo")
LONGEST_WAIT = 120.0  # seconds until the node must be ready

# With `cred_expire` a requeued job waits for seconds, not for two minutes.
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[None]:
    """Run a cluster while the block runs; SLURM's commands find it by the environment variable `SLURM_CONF`."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise RuntimeError(f"SLURM's programs are not installed: {', '.join(missing)}; see {__file__}")
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    values = {"host": socket.gethostname().partition(".")[0], "user": getuser(), "cpus": os.cpu_count()}
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(folder=folder, ports=_free_ports(), **values), encoding="utf-8")
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(config)
    daemons = []
    try:
        for name in ("slurmctld", "slurmd"):
            with (folder / f"{name}.log").open("wb") as log:
                daemons.append(subprocess.Popen([name, "-D"], stdout=log, stderr=log, start_new_session=True))
        _wait_until_idle(folder)
        yield
    finally:
        subprocess.run(["scancel", f"--user={getuser()}"], check=False)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait()
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before


def _free_ports() -> list[int]:
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in (first, second)]


def _wait_until_idle(folder: Path) -> None:
    deadline = time.monotonic() + LONGEST_WAIT
    while "idle" not in subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, check=False).stdout:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the SLURM node is not ready after {LONGEST_WAIT:g} s; see {folder}/*.log")
        time.sleep(0.2)
