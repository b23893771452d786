"""Facts about where a result came from: machine, source, command and date."""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers import ROOT


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_run() -> dict[str, Any]:
    return {
        "date": now(),
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "machine": describe_machine(),
        "source": describe_source(),
    }


def describe_machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def describe_source() -> dict[str, Any]:
    """Identify the library's code: the commit, and a digest of the files as they are, committed or not."""
    command = ["git", "rev-parse", "--verify", "HEAD"]
    try:
        commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git here
        commit = ""
    return {"commit": commit or None, "digest": source_digest()}


def source_digest() -> str:
    package = ROOT / "src" / "rl_training"
    digest = hashlib.sha256()
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.yaml")]):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
