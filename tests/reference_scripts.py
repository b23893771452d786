"""Run an example as a user would: from any folder, with a short run; what it prints and leaves behind is checked."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config
from rl_training.experiment.saved_checkpoint import open_checkpoint

EXAMPLES = Path(__file__).parent.parent / "examples"
# Sizes of data and models that take longer than all steps of a short run; smaller ones of a config are kept.
LARGEST = {
    "dataset_size": 1_000,
    "model_max_epochs": 2,
    "rollout_batch_size": 200,
    "deter_size": 32,
    "hidden_size": 16,
    "cnn_depth": 2,
}


def load_smaller(*args: Any) -> TrainConfig:
    """Load a config and reduce what its algorithm has of `LARGEST`."""
    config = load_config(*args)
    sizes = {name: getattr(config.hparams, name, None) or 0 for name in LARGEST}
    smaller = {name: largest for name, largest in LARGEST.items() if sizes[name] > largest}
    return config.updated(algo_kwargs={**config.algo_kwargs, **smaller})


def check_reference_script(
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    env_id: str = "CartPole-v1",
    script: str | None = None,
    steps: int = 128,
) -> None:
    """Run `examples/<name>_<env>_reference.py` in this process: to import PyTorch anew takes longer than the rest.

    `script`: the part of its name before `_reference`, where it is another.

    DQN's own script runs as a process of its own, in test_dqn_reference_script.py.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setattr(rl_training, "load_config", load_smaller)
    default = f"{name}_{env_id.partition('-')[0].lower()}"
    path = EXAMPLES / f"{script or default}_reference.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--total-timesteps", str(steps), "--eval-episodes", "1"])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(rf"mean return of 1 episodes after {steps} steps: -?\d+\.\d", printed), printed
    (run_dir,) = (folder / "runs").iterdir()
    assert run_dir.name.startswith(f"{name}__{env_id}__")
    assert (run_dir / "result.json").is_file()
    agent = open_checkpoint(run_dir / "agent")
    assert (agent.config.algo, agent.step) == (name, steps)
