"""The example from a sweep to an exported policy runs, small, as a user would run it."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from benchmarks.end_to_end import OUTPUT, found_in

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
    assert "256 equal" in printed
    out = tmp_path / "all"
    assert json.loads((out / "policy" / "contract.json").read_text())["env_id"] == "CartPole-v1"

    (out / OUTPUT).write_text(printed)
    found = found_in(out)  # what `python -m benchmarks end_to_end` records
    assert (found["kills"], found["runs"], found["finished"]) == (1, 4, 4)
    assert [(row["algo"], row["env_id"], row["seeds"]) for row in found["scores"]] == [
        (algo, env_id, "1") for algo in ("dqn", "ppo") for env_id in ("CartPole-v1", "Acrobot-v1")
    ]
    assert (found["films"], found["trials"], found["policy"]["pairs"]) == (4, 2, 256)
    assert "clearly better" in found["verdict"][-2]  # the last line has the size of the study
    assert found["tuned"]["algo"] == found["policy"]["algo"]
