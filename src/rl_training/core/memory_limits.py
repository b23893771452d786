"""How much memory a run may use, and the check that something fits."""

import os
from pathlib import Path

from rl_training.errors import ConfigError


def check_memory(needed: int, what: str, setting: str, *, available: int | None = None) -> None:
    """Raise `ConfigError` for what cannot fit in `available` bytes; without a figure, in the memory of this machine.

    Call it before the run starts: the system would kill the process when a buffer fills up.
    """
    available = available_memory() if available is None else available
    if available is not None and needed > available:
        raise ConfigError(
            f"{what} needs {describe_bytes(needed)}, but only {describe_bytes(available)} of memory are available; "
            f"lower {setting}"
        )


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still use; None if the system does not report them.

    The memory limit of a container counts.
    """
    figures = []
    meminfo = root / "proc/meminfo"
    if meminfo.is_file():
        kilobytes = _read_figures(meminfo)
        figures += [kilobytes["MemAvailable"] * 1024] if "MemAvailable" in kilobytes else []
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        figures.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    group = root / "sys/fs/cgroup"
    limit, used, parts = group / "memory.max", group / "memory.current", group / "memory.stat"
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        # The page cache counts as used memory, but the system frees its inactive part when a process needs memory.
        cached = _read_figures(parts).get("inactive_file", 0) if parts.is_file() else 0
        figures.append(max(0, int(limit.read_text()) - int(used.read_text()) + cached))
    return min(figures, default=None)


def _read_figures(path: Path) -> dict[str, int]:
    """Read lines such as `MemAvailable:  123 kB` or `inactive_file 123`."""
    lines = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def describe_bytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**29 else f"{size / 2**20:.1f} MiB"
