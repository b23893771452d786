"""Checkpoints name the version that wrote them, and those of 0.1.0 are still read.

version_0_1_0/ was written by release 0.1.0: `DQN.for_env("rl_training/Chain-v0", 120, seed=1, ...)`, then `save`. The
expected numbers below are what 0.1.0 itself returned for it.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from builders import make_config
from rl_training import DQN, RunOptions, __version__, resume, train
from rl_training.errors import CheckpointError
from rl_training.experiment.manifest import writer_of
from rl_training.experiment.saved_checkpoint import open_checkpoint

OLD = Path(__file__).parent / "version_0_1_0"
QUIET = RunOptions(show_progress=False)


def test_a_checkpoint_names_the_version_that_wrote_it(tmp_path: Path) -> None:
    result = train(make_config(tmp_path, total_timesteps=20), QUIET)
    assert json.loads((result.checkpoint / "manifest.json").read_text())["rl_training_version"] == __version__
    assert writer_of(open_checkpoint(result.checkpoint).manifest) == __version__
    assert writer_of(open_checkpoint(OLD).manifest) == "0.1.0"


def test_a_checkpoint_of_0_1_0_is_evaluated_and_predicts() -> None:
    agent = DQN.load(OLD, show_progress=False)
    assert agent.predict(np.eye(5, dtype=np.float32)).tolist() == [0, 0, 0, 1, 1]
    assert [episode.record() for episode in agent.evaluate()] == [
        {"episode": 0, "seed": 203000476, "return": 0.0, "length": 100}
    ]


def test_a_checkpoint_of_0_1_0_is_continued_as_by_0_1_0(tmp_path: Path) -> None:
    result = resume(OLD, QUIET, total_timesteps=160, output_dir=tmp_path)
    assert (result.step, result.gradient_step) == (160, 152)
    assert result.algorithm.policy_state_dict()["4.bias"].tolist() == pytest.approx([0.34435922, 0.07692233], abs=1e-6)
    assert writer_of(open_checkpoint(result.checkpoint).manifest) == __version__


def test_settings_that_are_no_longer_valid_are_refused_with_the_version_that_wrote_them(tmp_path: Path) -> None:
    copy = tmp_path / "old"
    shutil.copytree(OLD, copy)
    manifest = json.loads((OLD / "manifest.json").read_text())
    manifest["config"]["algo_kwargs"]["gamma"] = 2
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"old holds settings of version 0\.1\.0 .*gamma must be in"):
        DQN.load(copy)
