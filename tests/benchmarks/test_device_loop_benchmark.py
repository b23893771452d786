"""The benchmark of the device loop: it trains through the library, and names each phase in its profile."""

import argparse
import importlib
from typing import Any

import pytest
from benchmarks.device_loop import add_arguments, run_script, variants
from benchmarks.launch import SCRIPTS

SMALL = {
    "envs": 4,
    "steps": 8,
    "minibatches": 2,
    "epochs": 1,
    "device": "cpu",
    "iterations": 2,
    "acceleration": "eager",
}


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("device_ours")


def test_a_measurement_trains_with_logs_on(ours: Any) -> None:
    found = ours.measure(dict(SMALL))
    assert found["steps_per_s"] == pytest.approx(32 / (found["ms_per_iteration"] / 1e3))
    assert found["ready_s"] > 0.0
    assert found["log_lines"] == ours.WARM_UP + 2  # one per iteration


def test_the_profile_names_every_phase(ours: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ours.profile(dict(SMALL))
    printed = capsys.readouterr().out
    for phase in ("iteration", "collect", "one step of all environments", "learn", "estimates", "shuffle"):
        assert f"\n{phase}: " in printed


def test_options_become_settings() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    found = variants(parser.parse_args(["--sizes", "16,32", "--iterations", "7", "--more"]))
    assert [setting["envs"] for setting in found] == [16, 32, 16, 16]
    assert found[2]["normalize"] == "returns"
    assert found[3]["deterministic"] is False
    assert {setting["iterations"] for setting in found} == {7}


@pytest.mark.process
def test_a_contender_that_fails_is_reported() -> None:
    assert "No such file" in run_script("missing.py", {}, "/tmp", timeout=60.0)["error"]
