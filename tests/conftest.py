"""Settings, fixtures and markers that all tests share. Builders live in plain modules: `builders`, `rollouts`, ..."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import settings

from rl_training.acceleration.compiled_packages import compiler_available

pytest.register_assert_rewrite("state_comparison")

from recorded_graphs import RecordedGraph  # noqa: E402 (after the rewrite is registered)

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("repeatable")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("compile") and not compiler_available():
        pytest.skip("needs a C++ compiler")


# --- Fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `acceleration: cuda_graph` work on the CPU, with recorded graphs instead of CUDA's."""
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: graph)


@pytest.fixture(scope="session", autouse=True)
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep compiled updates in a folder of this test run: tests neither use nor fill the user's cache.

    The workers of pytest-xdist share the folder, so that a graph is compiled once; packages are written atomically.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_CACHE", str(folder))
        yield folder
