"""Report to others, such as the display of progress, when a step is being compiled."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

CompileWatcher: TypeAlias = Callable[[str], contextlib.AbstractContextManager[object]]

_watchers: list[CompileWatcher] = []
_durations: list[float] = []


@contextlib.contextmanager
def compilations_watched(watcher: CompileWatcher) -> Iterator[None]:
    """Enter `watcher(name)` around each compilation in this block; `name` is that of the step."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextlib.contextmanager
def compiling(name: str) -> Iterator[None]:
    """Mark the block in which the step called `name` is compiled or captured."""
    start = time.perf_counter()
    with contextlib.ExitStack() as stack:
        for watcher in _watchers:
            stack.enter_context(watcher(name))
        yield
    _durations.append(time.perf_counter() - start)


def seconds_compiling() -> float:
    """Return how long this process has compiled so far."""
    return sum(_durations)
