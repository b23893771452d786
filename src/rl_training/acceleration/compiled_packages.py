"""Graphs compiled ahead of time with AOTInductor, cached on disk so that each is compiled once.

A package holds native code. It is therefore built in and loaded from a folder of the user that nobody else can change
(core/private_files.py), never from a run folder or a checkpoint. Its name is a hash of everything that the code depends
on.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.fx import GraphModule

from rl_training.acceleration import native_build
from rl_training.acceleration.compile_watch import compiling
from rl_training.core.private_files import UntrustedPathError, check_private, private_folder
from rl_training.core.stop_signals import STOP_SIGNALS
from rl_training.errors import ConfigError

Program: TypeAlias = Callable[[list[Tensor]], list[Tensor]]

log = logging.getLogger("rl_training.acceleration")

_LOADS_FOLDERS = "2.13"  # version of PyTorch; earlier ones unpack the file themselves, in a folder that only they use
_LEFTOVER_SECONDS = 24 * 3600.0  # no compilation takes that long


def compiler() -> list[str]:
    """Return the command of the C++ compiler as AOTInductor chooses it: $CXX, or the default of the platform."""
    return shlex.split(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))


def compiler_available() -> bool:
    """Return whether a C++ compiler is installed, which `acceleration: compile` needs."""
    return shutil.which(compiler()[0]) is not None


def cache_dir() -> Path:
    """Return the folder of compiled packages and create it if it is missing.

    If others could write native code into the user's folder, a new one is used and deleted when the process ends.
    """
    try:
        return private_folder("aoti")
    except UntrustedPathError as problem:
        return _folder_of_this_process(str(problem))
    except OSError as error:
        raise _cannot_write(error) from error


@functools.cache
def _folder_of_this_process(problem: str) -> Path:
    log.warning("%s. Until then each process compiles its updates again", problem)
    folder = tempfile.mkdtemp(prefix="rl_training_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return check_private(Path(folder))


def keep_compiler_files_private() -> None:
    """Make PyTorch's compiler use a folder in the user's private cache; by default it shares /tmp with other users."""
    folder = cache_dir() / "inductor"
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = str(check_private(folder))


def load_compiled(graph: GraphModule, inputs: list[Tensor], name: str) -> tuple[Program, Path]:
    """Return the compiled graph and the path of its package.

    The package comes from the cache if the same software compiled the same graph before for the same processor.
    """
    try:
        path = cache_dir() / f"{_cache_key(graph, inputs)}.pt2"
        try:
            return _open_package(path), path
        except FileNotFoundError:
            pass
        except UntrustedPathError as problem:
            log.warning("%s. It is not loaded", problem)
        except (OSError, RuntimeError, zipfile.BadZipFile) as error:
            log.warning("%s is damaged (%s)", path, error)
        log.debug("compiling the %s (once; cached in %s)", name, path.parent)
        start = time.perf_counter()
        remove_leftovers(path.parent)
        # In a folder of its own: other processes may be compiling it too.
        with compiling(name), tempfile.TemporaryDirectory(dir=path.parent) as temporary:
            package = Path(temporary) / path.name
            with _signals_held_back():
                _build_package(graph, inputs, package)
            package.chmod(0o600)
            package.replace(path)
    except OSError as error:
        raise _cannot_write(error) from error
    log.debug("compiled the %s in %.0f s", name, time.perf_counter() - start)
    return _open_package(path), path


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of compilations that were killed, known by their age."""
    for leftover in folder.glob("tmp*"):
        with contextlib.suppress(OSError):  # another process may remove it too
            if time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def load_known_step(identity: str) -> tuple[Program, list[str]] | None:
    """Return the compiled graph of a known step and the names of its metrics; None if the cache lacks an intact one.

    Tracing imports most of PyTorch's compiler. A known step needs neither.
    """
    try:
        known = json.loads(check_private(_known_step_path(identity)).read_text("utf-8"))
        return _open_package(cache_dir() / Path(known["package"]).name), [str(name) for name in known["metrics"]]
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile):
        return None


def save_known_step(identity: str, package: Path, metric_names: list[str]) -> None:
    """Write down which package belongs to a step, so that `load_known_step` finds it without tracing."""
    path = _known_step_path(identity)
    with contextlib.suppress(OSError):  # on failure, the next run traces again
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".json", delete=False, encoding="utf-8") as file:
            json.dump({"package": package.name, "metrics": metric_names}, file)
        Path(file.name).replace(path)


def _known_step_path(identity: str) -> Path:
    digest = hashlib.sha256(repr((identity, _source_digest(), _platform())).encode()).hexdigest()
    return cache_dir() / f"step_{digest}.json"


@functools.cache
def _source_digest() -> str:
    """Return a hash of this package's source: a step is traced again when any of it changes."""
    root = Path(__file__).parent.parent
    files = sorted(root.rglob("*.py"))
    return hashlib.sha256(
        repr([(str(file.relative_to(root)), file.read_bytes()) for file in files]).encode()
    ).hexdigest()


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Block the signals that end a run until the compiler is done.

    Ctrl-C in a terminal would reach the compiler process too. The env step that waits for this update could then not
    be saved.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _build_package(graph: GraphModule, inputs: list[Tensor], path: Path) -> None:
    from torch._inductor.exc import CppCompileError, InductorError, InvalidCxxCompiler  # takes a second to import

    try:
        native_build.build_package(graph, inputs, path)
    except native_build.OwnCppLibraryError as error:
        raise _compiler_failed(str(error)) from None
    except (CppCompileError, InvalidCxxCompiler, InductorError) as error:
        cause = error.inner_exception if isinstance(error, InductorError) else error
        if not isinstance(cause, CppCompileError | InvalidCxxCompiler):
            raise  # a bug, in PyTorch or here
        raise _compiler_failed(str(cause)) from error


def _cannot_write(error: OSError) -> ConfigError:
    return ConfigError(
        f"acceleration: compile cannot write its result ({error}); "
        "set RL_TRAINING_CACHE to another folder, or use acceleration: eager"
    )


def _compiler_failed(what: str) -> ConfigError:
    return ConfigError(f"acceleration: compile: {compiler()[0]} failed; use acceleration: eager, or fix this: {what}")


def _open_package(path: Path) -> Program:
    """Load a package; raise `UntrustedPathError` if others can change it, `BadZipFile` if a checksum is wrong."""
    private = check_private(path)
    # Unpacked here: the loader would do so in a shared folder, and leave the files there if the process is killed.
    with zipfile.ZipFile(private) as archive, tempfile.TemporaryDirectory(dir=private.parent) as unpacked:
        archive.extractall(unpacked)
        source = unpacked if torch.__version__ >= _LOADS_FOLDERS else str(private)
        # Not `aoti_load_package`: it spends a second on imports, and its model rebuilds an argument tree on each call.
        single_threaded, runners, device_index = True, 1, -1
        loader = torch._C._aoti.AOTIModelPackageLoader(source, "model", single_threaded, runners, device_index)
    run: Program = loader.boxed_run
    return run


def _cache_key(graph: GraphModule, inputs: list[Tensor]) -> str:
    """Hash all that the machine code depends on: graph, constants, layout of the inputs, software, processor."""
    parts = (
        graph.code,
        [(name, _layout(x), x.cpu().numpy().tobytes()) for name, x in constants(graph).items()],
        [_layout(x) for x in inputs],
        Path(native_build.__file__).read_bytes(),  # the options of the compiler, and how it is called
        *_platform(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _platform() -> tuple[object, ...]:
    answer = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise _compiler_failed(f"`{shlex.join([*compiler(), '--version'])}` ended with {answer.returncode}")
    return (
        (torch.__version__, torch.version.git_version, answer.stdout),
        (platform.machine(), _processor(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()),
    )


def constants(graph: GraphModule) -> dict[str, Tensor]:
    """Return the tensors that the graph reads and that are not among its inputs."""
    names = [node.target for node in graph.graph.nodes if node.op == "get_attr"]
    return {name: attrgetter(name)(graph).detach() for name in names}


def _layout(x: Tensor) -> str:
    return f"{x.dtype} {tuple(x.shape)} {x.stride()} {x.device}"


def _processor() -> list[str]:
    """Return the model and the instruction sets of the processor: the code is compiled for exactly these."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return [platform.processor()]
    return sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
