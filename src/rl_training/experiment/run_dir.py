"""The folder of one run: its settings, metadata, logs and result."""

import contextlib
import fcntl
import functools
import json
import logging
import os
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

from rl_training.core.durable_files import open_file, open_log, read_text, write_atomic
from rl_training.core.seals import is_own, make_seal
from rl_training.core.version import __version__
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.claims import holder_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import parse_config, read_config_text
from rl_training.experiment.json_lines import JsonLines

LOGS = ("metrics", "episodes", "eval")
FOLDERS = ("checkpoints", "crash", "tensorboard", "wandb")
CONFIG, METADATA, RESULT = "config.yaml", "metadata.json", "result.json"
_SEAL_LINE = "# seal: "  # starts the last line of config.yaml
_PACKAGES = ("torch", "gymnasium", "numpy", "safetensors", "mujoco", "ale-py", "box2d", "envpool")

log = logging.getLogger("rl_training")


class RunDir:
    """Paths and open log files of one run."""

    def __init__(self, path: Path, positions: Mapping[str, int] | None = None) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.crash = path / "crash"
        self.tensorboard = path / "tensorboard"
        at = positions or {}
        self._logs = {name: JsonLines(path / f"{name}.jsonl", at.get(name, 0)) for name in LOGS}

    def log(self, name: str) -> JsonLines:
        return self._logs[name]

    def positions(self) -> dict[str, int]:
        """Sync the logs to disk and return their sizes: a resumed run truncates the files to these."""
        return {name: log.position() for name, log in self._logs.items()}

    def close(self) -> None:
        for log in self._logs.values():
            log.close()


def check_no_links(path: Path) -> None:
    """Raise `CheckpointError` if a folder of the run is a link: files elsewhere are neither written nor removed."""
    for name in FOLDERS:
        if (path / name).is_symlink():
            raise CheckpointError(f"{path / name} is a link, which is not followed: a run is written to one folder")


class RunInUseError(ConfigError):
    """Another process trains in the run folder."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the run folder against other processes while this one trains in it.

    A run that a worker claims (claims.py) is left to the process that the worker started.
    """
    check_no_links(path)
    holder = holder_of(path)
    if holder is not None and not holder.is_this_process_or_its_parent:
        raise RunInUseError(f"{path} is in use: a worker on {holder.host}, process {holder.pid}, trains in it now")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked_file(path / ".lock"))
        except BlockingIOError:
            raise RunInUseError(f"{path} is in use: another process trains in it now") from None
        except OSError as error:
            raise ConfigError(f"output_dir: the run's folder {path} cannot be written: {error}") from None
        yield


@contextlib.contextmanager
def locked_file(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file, which is created; `wait` for another process that has it, or raise `BlockingIOError`.

    The system releases the lock when the process ends, even if it is killed. Env workers do not inherit it.
    """
    with open_log(path) as file, _held(path):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except (BlockingIOError, PermissionError) as error:
            raise BlockingIOError(error.errno, f"another process has locked {path}") from None
        except OSError:
            pass  # a file system without locks
        yield


_held_here: list[Path] = []  # the files whose locks this process holds or waits for


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    _held_here.append(path.absolute())
    try:
        yield
    finally:
        _held_here.remove(path.absolute())


def is_in_use(path: Path) -> bool:
    """Return whether a process trains in the run folder.

    It only asks for the lock: taking it, even for a moment, could stop a process that starts. The lock of this process
    is known without the file: closing any copy of a file releases the locks of the process on it.
    """
    if (path / ".lock").absolute() in _held_here:
        return True
    query = struct.pack("hhllhh", fcntl.F_WRLCK, 0, 0, 0, 0, 0)
    try:
        with open_file(path / ".lock") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, query)
    except OSError:  # there is no such file, it is a pipe or the like, or the file system has no locks
        return False
    return bool(struct.unpack("hhllhh", answer)[0] != fcntl.F_UNLCK)


def create_run_dir(config: TrainConfig, path: Path | None = None, *, output_dir: Path | None = None) -> Path:
    """Create the run folder, or use `path`, and write the config into it.

    `output_dir`: that of the config as an absolute path, if the working folder may have changed.
    """
    try:
        if path is None:
            path = _make_new_folder(config, output_dir or config.output_dir)
        path.mkdir(parents=True, exist_ok=True)
        write_config(path / CONFIG, config)
    except (OSError, CheckpointError) as error:
        place = path or config.output_dir
        raise ConfigError(f"output_dir: the run's folder {place} cannot be written: {error}") from None
    return path


def make_run_dir(path: Path) -> Path:
    """Create the folder of a run if it is missing, and return it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir: the run's folder {path} cannot be written: {error}") from None
    return path


def env_name(config: TrainConfig) -> str:
    """Return the environment's part of a folder name: letters, digits, `-`, `_` and `.` only."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", config.env_id or "dataset").strip("-") or "env"


def _make_new_folder(config: TrainConfig, output_dir: Path) -> Path:
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    name = f"{config.algo}__{env_name(config)}__seed{config.seed}__{time}"
    for number in range(1000):  # other runs may start in the same second
        path = output_dir / (f"{name}_{number}" if number else name)
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise FileExistsError(f"{output_dir / name} and 999 variants of it exist")


def write_config(file: Path, config: TrainConfig) -> None:
    """Write a config.yaml; if the settings are the user's own, its last line is a seal (core/seals.py)."""
    text = config.to_yaml()
    seal = make_seal(CONFIG, text) if config.origin is None else None
    write_atomic(file, f"{text}{_SEAL_LINE}{seal}\n" if seal else text)


def read_run_config(path: Path) -> TrainConfig:
    """Read the settings of a run; those that this user's processes did not write are marked as such."""
    if not (path / CONFIG).is_file():
        raise CheckpointError(f"{path} is not a run folder: it holds no {CONFIG}")
    return read_written_config(path / CONFIG)


def read_written_config(file: Path) -> TrainConfig:
    """Read what `write_config` wrote; settings that this user's processes did not write are marked as such."""
    written = read_config_text(file)
    text, _, seal = written.rpartition(_SEAL_LINE)
    config = parse_config(written, str(file))
    return config if is_own(CONFIG, text, seal.strip()) else config.of_unknown_origin(file)


def write_metadata(path: Path, facts: Mapping[str, Any]) -> None:
    """Append a record of this start of the run to metadata.json; `facts` are added unchanged."""
    record = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command_line": sys.argv,
        "versions": _versions(),
        "git_commit": _git_commit(),
        "host": {"name": platform.node(), "system": platform.platform(), "cpus": os.cpu_count()},
        **facts,
    }
    file = path / METADATA
    starts = (_read_record(file) or {}).get("starts")
    earlier = starts if isinstance(starts, list) else []
    write_atomic(file, json.dumps({"starts": [*earlier, record]}, indent=1))


def changed_versions(path: Path) -> list[str]:
    """List the packages that exact resume depends on and that changed since the run's latest start."""
    try:
        before = dict((_read_record(path / METADATA) or {})["starts"][-1]["versions"])
    except (LookupError, TypeError, ValueError):
        return []
    now = _versions()
    changed = [name for name in ("rl-training", "torch", "numpy") if name in before and before[name] != now.get(name)]
    return [f"{name} {before[name]} is now {now.get(name)}" for name in changed]


def correct_resume_claim(path: Path, claim: str) -> None:
    """Replace what the newest record of metadata.json claims about a resume, if it claims that it is exact.

    The record keeps the earlier claim as `resume_at_start`.
    """
    metadata_file = path / METADATA
    starts = (_read_record(metadata_file) or {}).get("starts")
    if isinstance(starts, list) and starts and str(starts[-1].get("resume")).startswith("exact"):
        starts[-1] |= {"resume": claim, "resume_at_start": starts[-1]["resume"]}
        write_atomic(metadata_file, json.dumps({"starts": starts}, indent=1))


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result of the run; a run with this file is finished."""
    write_atomic(path / RESULT, json.dumps(result, indent=1))


def read_result(path: Path) -> dict[str, Any] | None:
    """Read the result of a finished run; None if there is none, or a damaged one."""
    result = _read_record(path / RESULT)
    if result is not None and not _is_result(result):
        log.warning("%s is damaged: it holds no result; the checkpoints are intact", path / RESULT)
        return None
    return result


def _is_result(result: Mapping[str, Any]) -> bool:
    step, episodes = result.get("step"), result.get("eval")
    return (
        type(step) is int
        and step >= 0
        and isinstance(episodes, list)
        and all(isinstance(each, dict) and isinstance(each.get("return"), int | float) for each in episodes)
    )


def _read_record(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is no such file. A damaged file is reported and counts as missing."""
    try:
        record = json.loads(read_text(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s is damaged and is written again (%s); the checkpoints are intact", file, error)
        return None
    if not isinstance(record, dict):
        log.warning("%s is damaged and is written again: it holds no JSON object; the checkpoints are intact", file)
        return None
    return record


def mean_score(result: Mapping[str, Any]) -> float:
    """Return the mean return of the final evaluation."""
    return fmean(episode["return"] for episode in result["eval"])


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "rl-training": __version__, **_package_versions()}


@functools.cache
def _package_versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git_commit() -> str | None:
    """Return the commit of the working directory, if it is a git repository."""
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
