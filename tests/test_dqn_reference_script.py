"""The examples of DQN and its named variants run as a user would run them, from any folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from reference_scripts import check_reference_script

pytestmark = pytest.mark.learning

SCRIPT = Path(__file__).parent.parent / "examples" / "dqn_cartpole_reference.py"


@pytest.mark.process
def test_the_reference_script_trains_evaluates_and_exits_with_0(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--total-timesteps", "128", "--eval-episodes", "1"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "mean return of 1 episodes after 128 steps" in answer.stdout
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert (run_dir / "result.json").is_file()
    assert (run_dir / "agent" / "manifest.json").is_file()


@pytest.mark.parametrize("name", ["double_dqn", "dueling_dqn", "noisy_dqn", "prioritized_dqn", "n_step_dqn"])
def test_the_script_of_a_variant_trains_evaluates_and_saves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_reference_script(name, tmp_path, monkeypatch, capsys)
