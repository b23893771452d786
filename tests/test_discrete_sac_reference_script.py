"""The example runs as a user would run it, from any folder."""

from pathlib import Path

import pytest

from reference_scripts import check_reference_script

pytestmark = pytest.mark.learning


def test_the_reference_script_trains_evaluates_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_reference_script("discrete_sac", tmp_path, monkeypatch, capsys)
