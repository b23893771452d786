"""Compile a graph to native code with AOTInductor, without what a first run would wait for in vain.

As PyTorch 2.13 calls it, the compiler takes half a minute for a small step on two cores. Here it does the same work,
with the same flags for the arithmetic, in a third of the time:

- Each instruction set is tried with an empty file, not with programs that include most of PyTorch's headers.
- Headers are not precompiled. That pays only from the second graph on, and PyTorch would load the result from a shared
  folder (`/tmp/torchinductor_USER`).
- Wrapper and kernels are compiled side by side, without line tables.
- The traced graph is compiled as it is. `torch.export` would trace it again.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import GraphModule


class OwnCppLibraryError(RuntimeError):
    """The compiler does not use the C++ library of the system."""


OPTIONS = {
    "aot_inductor.package": True,
    "aot_inductor.precompile_headers": False,
    "aot_inductor.enable_line_tables": False,
    "aot_inductor.enable_frame_pointer": False,
}


def build_package(graph: GraphModule, inputs: list[Tensor], path: Path) -> None:
    """Compile the graph and write the package; the other files of both compilers go to its folder."""
    from unittest.mock import patch

    from torch._inductor import aot_compile, config, cpu_vec_isa  # takes a second to import
    from torch._inductor.package.package import package_aoti

    folder = str(path.parent)
    options = {name: value for name, value in OPTIONS.items() if _is_known(name, config)}
    for node in graph.graph.nodes:
        node.meta.clear()  # example values of the trace, which `aot_compile` takes for those of an export
    with (
        warnings.catch_warnings(),
        patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": folder, "TMPDIR": folder}),
        patch.object(tempfile, "tempdir", folder),  # it remembers the first folder, which is deleted after this
        _wrapper_beside_kernels(),
        patch.object(cpu_vec_isa.VecISA, "check_build", _accepts_flags),
    ):
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's warnings about its own code
        files = aot_compile(graph, tuple(inputs), options=options)
        assert isinstance(files, list)
        check_cpp_library(Path(str(file)) for file in files)
        package_aoti(str(path), files)


def _is_known(option: str, config: object) -> bool:
    """Return whether this PyTorch's compiler has an option; 2.11 has some of them only."""
    try:
        attrgetter(option)(config)
    except AttributeError:
        return False
    return True


def check_cpp_library(files: Iterable[Path]) -> None:
    """Raise `OwnCppLibraryError` if the compiler linked a C++ library of its own; a second one crashes the process."""
    for file in files:
        if sys.platform == "linux" and file.suffix == ".so" and b"libstdc++.so" not in file.read_bytes():
            raise OwnCppLibraryError(
                "it links a copy of the C++ library into the program, which crashes beside PyTorch's; "
                "set $CXX to a compiler that uses libstdc++.so, such as /usr/bin/g++"
            )


@contextlib.contextmanager
def _wrapper_beside_kernels() -> Iterator[None]:
    """Compile the wrapper in a thread while the kernels are compiled; link when both are done."""
    from unittest.mock import patch

    from torch._inductor import cpp_builder

    run, waiting = cpp_builder._run_compile_cmd, list[Future[None]]()

    def run_or_start(command: str, cwd: str) -> None:
        if ".wrapper.cpp " in command:
            waiting.append(pool.submit(run, command, str(Path(cwd).parent)))  # `cwd` is removed after this call
            return
        if " -shared " in command:
            for compilation in waiting:
                compilation.result()
        run(command, cwd)

    with ThreadPoolExecutor(1) as pool, patch.object(cpp_builder, "run_compile_cmd", run_or_start):
        yield


def _accepts_flags(isa: torch._inductor.cpu_vec_isa.VecISA, code: str) -> bool:
    """Return whether the compiler knows an instruction set; PyTorch has checked that the processor has it."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    command = [get_cpp_compiler(), *isa.build_arch_flags().split(), "-x", "c++", "-E", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
