"""The example from a sweep to an exported policy runs, small, as a user would run it."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from reference_scripts import EXAMPLES
from rl_training.studies import tuning
from study_pools import TrainingPool


@pytest.mark.process
@pytest.mark.learning
def test_the_way_from_a_sweep_to_an_exported_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # The sweep trains in processes, as it does for a user. Those of the study would take most of the test's time.
    monkeypatch.setattr(tuning, "open_pool", lambda options: TrainingPool())
    monkeypatch.chdir(tmp_path)
    path = EXAMPLES / "end_to_end.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--small", "--out", "all"])
    runpy.run_path(str(path), run_name="__main__")
    printed = capfd.readouterr().out
    assert "killed: exit code -9" in printed
    out = tmp_path / "all"
    assert len(list((out / "algorithms").glob("*/seed0/result.json"))) == 4
    assert (out / "report.html").read_text().count("<video") == 4
    assert (out / "tune" / "best.yaml").is_file()
    assert json.loads((out / "policy" / "contract.json").read_text())["env_id"] == "CartPole-v1"
    assert "256 equal" in printed
