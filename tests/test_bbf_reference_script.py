"""The example runs as a user would run it, from any folder."""

from pathlib import Path

import pytest

from reference_scripts import check_reference_script

pytestmark = pytest.mark.learning


def test_the_reference_script_trains_evaluates_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env_id = "rl_training-Catch-v0"
    check_reference_script("bbf", tmp_path, monkeypatch, capsys, env_id=env_id, script="bbf_catch")
