"""The deterministic mode: when a run uses it, what it switches, and what a run says about its resume."""

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.acceleration import determinism
from rl_training.acceleration.determinism import deterministic_kernels, resolve_deterministic, resume_claim
from rl_training.errors import ConfigError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def no_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "set so that it is restored after the test")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


@pytest.mark.parametrize(
    ("requested", "device", "is_vector", "expected"),
    [
        ("auto", CPU, True, True),
        ("auto", CPU, False, True),
        (False, CPU, True, False),
        ("auto", GPU, True, True),
        ("auto", GPU, False, False),
        (True, GPU, False, True),
        (False, GPU, True, False),
    ],
)
def test_auto_is_deterministic_except_for_images_on_a_gpu(
    requested: bool, device: torch.device, is_vector: bool, expected: bool, no_workspace: None
) -> None:
    assert resolve_deterministic(requested, device=device, is_vector=is_vector) is expected
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) is (expected and device == GPU)


def test_a_workspace_that_came_too_late_is_refused(
    no_workspace: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ConfigError, match="set CUBLAS_WORKSPACE_CONFIG=:4096:8"):
        resolve_deterministic(True, device=GPU, is_vector=True)
    assert resolve_deterministic("auto", device=GPU, is_vector=True) is False
    assert "will not be exact" in caplog.text


def test_a_user_s_own_workspace_is_kept_if_it_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert resolve_deterministic(True, device=GPU, is_vector=True) is True
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(ConfigError, match="fixed workspaces"):
        resolve_deterministic(True, device=GPU, is_vector=True)


def flags() -> tuple[bool, ...]:
    from torch._inductor import config as inductor

    cudnn = torch.backends.cudnn
    memory: Any = torch.utils.deterministic
    return (
        torch.are_deterministic_algorithms_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        inductor.deterministic,
        memory.fill_uninitialized_memory,
    )


def test_the_kernels_are_deterministic_inside_of_the_block_only() -> None:
    assert flags() == (False, False, False, False, True)
    with contextlib.suppress(KeyError), deterministic_kernels():
        assert flags() == (True, True, False, True, False)
        raise KeyError
    assert flags() == (False, False, False, False, True)


def test_the_claim_depends_on_device_mode_and_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resume_claim("exact", device=CPU, deterministic=False) == "exact"
    assert resume_claim("exact", device=GPU, deterministic=True) == "exact (on the same GPU, driver and versions)"
    assert resume_claim("exact", device=GPU, deterministic=False).startswith("not exact: ")
    boundary = resume_claim("at an episode boundary", device=GPU, deterministic=True)
    assert boundary.startswith("at an episode boundary")


def test_the_device_is_described_by_model_and_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert determinism.describe_device(CPU) == "cpu"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(determinism, "_DRIVER", tmp_path / "version")
    assert "NVIDIA H200, unknown driver" in determinism.describe_device(GPU)
    (tmp_path / "version").write_text("NVRM version: 570\nGCC version: 13\n")
    assert "NVIDIA H200, NVRM version: 570, CUDA" in determinism.describe_device(GPU)
