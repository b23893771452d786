"""The example runs as a user would run it, from any folder."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.learning

SCRIPT = Path(__file__).parent.parent / "examples" / "ppo_cartpole_reference.py"


@pytest.mark.process
def test_the_reference_script_trains_evaluates_and_exits_with_0(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--total-timesteps", "512", "--eval-episodes", "1"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "mean return of 1 episodes after 512 steps" in answer.stdout
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert (run_dir / "result.json").is_file()
    assert (run_dir / "agent" / "manifest.json").is_file()
