"""`rl-training doctor`: check what this machine offers, what is missing, and what to do about it."""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer

from rl_training.commands.messages import EXIT_BUG, reports_errors
from rl_training.commands.options import Debug
from rl_training.core.counted import counted
from rl_training.core.extras import EXTRAS, install_line, installed
from rl_training.hparams.fields import expand_home

_PACKAGES = ("rl-training", "torch", "gymnasium", "numpy", "pydantic", "safetensors", "tensorboard", "typer", "rich")
_LOW_MEMORY = _LOW_DISK = 2 * 2**30  # bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. "note": something optional is missing; "fix": training will not work."""

    verdict: Literal["ok", "note", "fix"]
    subject: str
    text: str


@reports_errors
def doctor(
    output_dir: Annotated[Path, typer.Option(parser=expand_home, metavar="DIR", help="Folder of the runs.")] = Path(
        "runs"
    ),
    debug: Debug = False,
) -> None:
    """Check this machine: packages, devices, compiler, memory, disk, and a short training run."""
    faults = 0
    for finding in examine(output_dir):
        faults += finding.verdict == "fix"
        typer.echo(f"{finding.verdict:<5} {finding.subject:<12} {finding.text}")
    if faults:
        typer.echo(f"{faults} to fix, marked `fix` above")
        raise typer.Exit(EXIT_BUG)
    typer.echo("everything works: rl-training train --config configs/dqn/cartpole.yaml")


def examine(output_dir: Path) -> Iterator[Finding]:
    """Check the machine and yield the findings; a check that fails is itself a finding."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _packages,
        _options,
        _processors,
        _compiler,
        _compile_cache,
        _memory,
        lambda: _disk(output_dir),
        _smoke,
    )
    for check in checks:
        try:
            yield from check()
        except Exception as error:
            yield Finding("fix", check.__name__.strip("_<>"), f"{type(error).__name__}: {error}")


def _packages() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} ({platform.platform()})")
    for name in _PACKAGES:
        try:
            yield Finding("ok", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding("fix", name, f"not installed: pip install {name}")


def _options() -> Iterator[Finding]:
    for extra in EXTRAS:
        versions = installed(extra)
        found = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
        missing = ", ".join(package for package, version in versions.items() if not version)
        if missing:
            yield Finding("note", extra, f"{missing} not installed; if you need it: {install_line(extra)}")
        else:
            yield Finding("ok", extra, found)


def _processors() -> Iterator[Finding]:
    import torch

    cores, threads = counted(os.cpu_count() or 1, "core"), counted(torch.get_num_threads(), "thread")
    yield Finding("ok", "cpu", f"{cores}, PyTorch uses {threads}")
    if not torch.cuda.is_available():
        yield Finding("note", "cuda", "none found; training runs on the CPU")
    for index in range(torch.cuda.device_count()):
        gigabytes = torch.cuda.get_device_properties(index).total_memory / 2**30
        yield Finding("ok", f"cuda:{index}", f"{torch.cuda.get_device_name(index)}, {gigabytes:.0f} GiB")


def _compiler() -> Iterator[Finding]:
    from rl_training.acceleration.compiled_packages import compiler, compiler_available

    command = compiler()[0]
    if compiler_available():
        yield Finding("ok", "compiler", str(shutil.which(command)))
    else:
        yield Finding("note", "compiler", f"{command} not found; without it long runs on the CPU are slower (set $CXX)")


def _compile_cache() -> Iterator[Finding]:
    from rl_training.core.private_files import private_folder

    folder = private_folder("aoti")
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    yield Finding("ok", "cache", f"{folder}, {counted(len(sizes), 'file')}, {sum(sizes) / 2**20:.1f} MiB")


def _memory() -> Iterator[Finding]:
    from rl_training.core.memory_limits import available_memory

    available = available_memory()
    if available is None:
        yield Finding("note", "memory", "the system does not report how much is free")
        return
    text = f"{available / 2**30:.1f} GiB available"
    if available < _LOW_MEMORY:
        yield Finding("note", "memory", f"{text}; lower algo_kwargs.buffer_capacity for images")
    else:
        yield Finding("ok", "memory", text)


def _disk(output_dir: Path) -> Iterator[Finding]:
    existing = next(folder for folder in (output_dir.absolute(), *output_dir.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        yield Finding("fix", "disk", f"{existing} cannot be written to; choose another --output-dir")
        return
    free = shutil.disk_usage(existing).free
    text = f"{free / 2**30:.1f} GiB free for {output_dir}"
    if free < _LOW_DISK:
        yield Finding("fix", "disk", f"{text}; free some space, or choose another --output-dir")
    else:
        yield Finding("ok", "disk", text)


def _smoke() -> Iterator[Finding]:
    """Train, evaluate and save a very short eager run."""
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.trainer import RunOptions, train

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo="dqn",
            env_id="rl_training/Chain-v0",
            total_timesteps=32,
            device="auto",
            acceleration="eager",
            output_dir=folder,
            eval_episodes=1,
            tensorboard=False,
            env_kwargs={"max_episode_steps": 16},
            algo_kwargs={"learning_starts": 16, "batch_size": 8, "buffer_capacity": 32, "hidden_sizes": [8]},
        )
        result = train(config, RunOptions(show_progress=False))
    seconds = time.perf_counter() - start
    text = f"{result.step} env steps, {result.gradient_step} updates, evaluated and saved in {seconds:.1f} s"
    yield Finding("ok", "training", text)
