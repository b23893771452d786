"""Fixtures of stacked populations."""

import pytest

from recorded_streams import RecordedStreams
from rl_training.acceleration import acting
from rl_training.learners import stacked_acting
from rl_training.runtime import loops, stacked_host_steps


@pytest.fixture
def as_on_a_gpu(recorded_graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step, act and capture graphs in the order of a GPU."""
    for module in (loops, stacked_host_steps):
        monkeypatch.setattr(module, "learns_meanwhile", lambda config: True)
    monkeypatch.setattr(stacked_acting, "evaluates_together", lambda device: True)
    real = acting.on_arrays
    monkeypatch.setattr(
        stacked_acting, "on_arrays", lambda function, device, mode: real(function, device, "cuda_graph")
    )


@pytest.fixture
def recorded_streams(monkeypatch: pytest.MonkeyPatch) -> RecordedStreams:
    return RecordedStreams(monkeypatch)
