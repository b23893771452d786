"""Settings, fixtures and markers that all tests share. Builders live in plain modules: `builders`, `rollouts`, ..."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import settings

from rl_training.acceleration import native_build
from rl_training.acceleration.compiled_packages import compiler, compiler_available
from rl_training.envs import resumable
from rl_training.runtime import replaying

pytest.register_assert_rewrite("state_comparison")

from processor_times import ProcessorTimes  # noqa: E402 (after the rewrite is registered)
from recorded_graphs import RecordedGraph  # noqa: E402

DAYS_OF_A_PACKAGE = 7  # then it is compiled again

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=50)
settings.register_profile("fast", settings.get_profile("repeatable"), max_examples=15)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))  # `make test-fast` asks for `fast`


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processor-times", action="store_true", help="show which tests take most processor time")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--processor-times"):
        config.pluginmanager.register(ProcessorTimes())


# --- Markers ---------------------------------------------------------------------------------------------------------

started: set[str] = set()  # what the running test started: "compile", "process"


def is_importing() -> bool:
    """Return whether a module is being imported, which happens in the first test of a process that needs it."""
    frame = sys._getframe()
    while frame.f_back is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame.f_back is not None


def note_start(event: str, arguments: tuple[Any, ...]) -> None:
    """Note when Python starts a process or sends itself a signal; called for every audit event."""
    if event == "subprocess.Popen" and not is_importing():  # glfw starts one when it is imported
        command = arguments[1]
        program = Path(str(command if isinstance(command, str | bytes | Path) else command[0])).name
        if program not in {"git", "uname"}:  # a run's metadata ask for commit and platform; that takes milliseconds
            started.add("compile" if program == Path(compiler()[0]).name else "process")
    elif event in {"os.fork", "os.posix_spawn", "os.system"} or (event == "os.kill" and arguments[0] == os.getpid()):
        started.add("process")


sys.addaudithook(note_start)


def noted_start(self: BaseProcess, start: Callable[[BaseProcess], None] = BaseProcess.start) -> None:
    started.add("process")
    start(self)


BaseProcess.start = noted_start  # type: ignore[method-assign]  # spawned processes raise no audit event


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that compile first: they are the longest, and one worker then imports the compiler for all of them."""
    items.sort(key=lambda item: item.get_closest_marker("compile") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    started.clear()
    if item.get_closest_marker("compile") and not compiler_available():
        pytest.skip("needs a C++ compiler")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that lacks the marker of what it does, so that `make test-fast` stays fast."""
    yield
    marked = {name for name in ("compile", "process") if item.get_closest_marker(name)}
    if "compile" in started - marked:
        pytest.fail("this test calls the C++ compiler: mark it with @pytest.mark.compile", pytrace=False)
    if "process" in started and not marked:
        pytest.fail("this test starts a process or sends a signal: mark it with @pytest.mark.process", pytrace=False)


# --- Fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `acceleration: cuda_graph` work on the CPU, with recorded graphs instead of CUDA's."""
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    for name in ("Stream", "current_stream", "Event"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: graph)


@pytest.fixture(scope="session", autouse=True)
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep compiled updates in a folder of the tests: they neither use nor fill the user's cache.

    All workers and all test runs of a user share it, so that a graph is compiled once; packages are written atomically.
    The name of a package is a hash of all that it depends on. Tests of compiling itself use empty folders.
    """
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    if folder.parent.name.startswith("pytest-of-"):  # not with --basetemp
        folder = folder.parent
    folder = folder / "compiled"
    for package in (folder / "aoti").glob("*.*"):
        with suppress(OSError):  # another worker may remove it too
            if time.time() - package.stat().st_mtime > DAYS_OF_A_PACKAGE * 24 * 3600:
                package.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def quickly_compiled_wrapper() -> Iterator[None]:
    """Compile the part of an update that calls the kernels without optimization: it computes nothing itself.

    That saves a third of its time. The kernels are compiled as for users. test_steps.py compiles all as for users.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(native_build.OPTIONS, "aot_inductor.compile_wrapper_opt_level", "O0")
        yield


@pytest.fixture(scope="session", autouse=True)
def short_replay_checks() -> Iterator[None]:
    """Compare fewer steps before a training run: those of an ordinary check take longer than a small run.

    `check_replay` itself is unchanged; test_resumable.py tests it. `whole_replay_checks` undoes this.
    """

    def check_a_part(*args: Any, **kwargs: Any) -> resumable.ReplayCheck:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resumable, "PAST_STEPS", min(resumable.PAST_STEPS, 20))
            patch.setattr(resumable, "TRIAL_STEPS", min(resumable.TRIAL_STEPS, 10))
            return resumable.check_replay(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replaying, "check_replay", check_a_part)
        yield


@pytest.fixture
def whole_replay_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check before a training run as users do, for an environment that does not repeat its episodes."""
    monkeypatch.setattr(replaying, "check_replay", resumable.check_replay)


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Do not wait until files reach the disk: it takes a third of the time of runs that write checkpoints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
