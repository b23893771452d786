"""What can happen to a run's folder: use, continuation, damage, full disks, faulty envs, sudden death."""

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn as nn
from benchmarks.exactness import Case, StopAt, differences, run_unbroken, timeless
from benchmarks.kills import CASE, damage, kill_run, prepare_run

import rl_training.experiment.checkpointing as checkpointing
import rl_training.experiment.registry as registry_module
import rl_training.runtime.callbacks as callbacks
import rl_training.runtime.setup as setup
import rl_training.runtime.trainer as trainer
from builders import make_config
from rl_training import DQN
from rl_training.core.version import __version__
from rl_training.errors import CheckpointError, ConfigError, EnvError, TrainingError, UserCodeError
from rl_training.experiment.checkpointing import checkpoint_names, read_pointer, save_checkpoint
from rl_training.experiment.json_lines import JsonLines, read_json_lines
from rl_training.experiment.manifest import MANIFEST
from rl_training.experiment.run_dir import create_run_dir, is_in_use, locked, read_result, read_run_config
from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from rl_training.experiment.state_files import read_tensors, write_tensors
from rl_training.launching.seed_runs import run_in
from rl_training.runtime.callbacks import Callback, Checkpointing
from rl_training.runtime.resuming import fork
from rl_training.runtime.run import Run
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.trainer import RunOptions, TrainResult, resume, train
from tampering import edit_manifest

pytestmark = pytest.mark.learning

QUIET = RunOptions(show_progress=False)


def quiet(*callbacks: Callback) -> RunOptions:
    return RunOptions(callbacks=callbacks, show_progress=False)


def start(folder: Path, *callbacks: Callback, **changes: Any) -> TrainResult:
    """Train in `folder`/run: 60 steps on the chain, a checkpoint every 20."""
    config = make_config(folder, **{"checkpoint_interval": 20, "log_interval": 7, "eval_interval": 15, **changes})
    return train(config, quiet(*callbacks), run_dir=folder / "run")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("unbroken")).run_dir


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that was stopped at step 50, with checkpoints of 20, 40 and 50."""
    return start(tmp_path, StopAt(50)).run_dir


def newest(run_dir: Path) -> Path:
    return find_checkpoint(run_dir)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- Use -------------------------------------------------------------------------------------------------------------


def test_saved_agent_predicts_and_evaluates_like_the_trained_one(tmp_path: Path) -> None:
    agent = DQN(make_config(tmp_path / "runs"), show_progress=False)
    agent.learn()
    loaded = DQN.load(agent.save(tmp_path / "agent"), show_progress=False)
    states = np.eye(5, dtype=np.float32)
    assert loaded.predict(states).tolist() == agent.predict(states).tolist()
    assert loaded.evaluate(episodes=3) == agent.evaluate(episodes=3)


def test_saved_agent_continues_in_a_new_run_and_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    agent = DQN(make_config(tmp_path / "runs"), show_progress=False)
    agent.learn()
    saved = agent.save(tmp_path / "agent")
    neighbours = [tmp_path / "step_by_step", tmp_path / "step_000000099", tmp_path / "checkpoints"]
    for neighbour in neighbours:
        (neighbour / "mine").mkdir(parents=True)
    before = contents(saved)
    result = DQN.load(saved, show_progress=False).learn(total_timesteps=90)
    assert (result.step, result.run_dir.parent) == (90, tmp_path / "runs")
    assert all((neighbour / "mine").is_dir() for neighbour in neighbours)
    assert contents(saved) == before
    assert not (tmp_path.parent / "metrics.jsonl").exists()


def test_fork_continues_in_a_new_folder_and_leaves_the_old_one_as_it_is(
    stopped: Path, tmp_path: Path, unbroken: Path
) -> None:
    before = contents(stopped)
    result = resume(stopped, QUIET, output_dir=tmp_path / "forks")
    assert result.run_dir.parent == tmp_path / "forks"
    assert contents(stopped) == before
    assert differences(result.run_dir, unbroken) == []
    assert read_run_config(result.run_dir).output_dir == tmp_path / "forks"
    assert open_checkpoint(result.checkpoint).config.output_dir == tmp_path / "forks"


def test_fork_from_an_older_checkpoint_is_cut_back_to_it(stopped: Path, tmp_path: Path, unbroken: Path) -> None:
    result = resume(stopped / "checkpoints" / "step_000000020", QUIET, output_dir=tmp_path / "forks")
    assert differences(result.run_dir, unbroken) == []


def test_only_a_run_that_started_before_is_said_to_start_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = create_run_dir(make_config(tmp_path).resolved(), tmp_path / "run")
    resume(folder, RunOptions(show_progress=False))
    assert "starts again" not in caplog.text
    shutil.rmtree(folder / "checkpoints")
    resume(folder, RunOptions(show_progress=False))
    assert f"{folder} holds no checkpoint yet: the run starts again from its config" in caplog.text


def test_fork_that_dies_before_its_first_checkpoint_is_still_a_fork(
    stopped: Path, tmp_path: Path, unbroken: Path
) -> None:
    checkpoint = open_checkpoint(newest(stopped))
    forked = fork(checkpoint, checkpoint.config.updated(output_dir=tmp_path / "forks"))
    result = resume(forked, QUIET)
    assert json.loads((forked / "metadata.json").read_text())["starts"][0]["step"] == 50
    assert differences(result.run_dir, unbroken) == []


def test_older_checkpoint_is_not_continued_over_a_newer_one(stopped: Path) -> None:
    with pytest.raises(ConfigError, match=r"step_000000020 is not the newest .*step_000000050 is.*output_dir"):
        resume(stopped / "checkpoints" / "step_000000020", QUIET)


def test_lengthened_run_stays_lengthened_after_a_death(unbroken: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(unbroken, tmp_path / "run"))
    resume(run_dir, quiet(StopAt(70)), total_timesteps=90)
    shutil.rmtree(newest(run_dir))  # as if it had died before the stop
    assert read_run_config(run_dir).total_timesteps == 90
    assert resume(run_dir, QUIET).step == 90


def test_finished_run_is_not_trained_again(unbroken: Path) -> None:
    with pytest.raises(ConfigError, match=r"is finished: 60 of 60 steps; a larger total_timesteps continues it"):
        resume(unbroken, QUIET)


def test_new_training_does_not_overwrite_a_run(stopped: Path) -> None:
    before = contents(stopped)
    with pytest.raises(ConfigError, match=r"holds a run already"):
        train(make_config(stopped.parent), QUIET, run_dir=stopped)
    assert contents(stopped) == before


def test_runs_that_start_in_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    assert len({create_run_dir(config) for _ in range(5)}) == 5


@pytest.mark.parametrize(
    ("env", "part"),
    [
        ("ALE/Breakout-v5", "ALE-Breakout-v5"),
        ("my.envs:Own-v0", "my.envs-Own-v0"),
        ("<lambda>", "lambda"),
        ("make_env.<locals>.inner", "make_env.-locals-.inner"),
        ("a b\n\u00e9;$(x)", "a-b-x"),
        ("???", "env"),
    ],
)
def test_folder_names_hold_letters_digits_and_three_marks(env: str, part: str, tmp_path: Path) -> None:
    config = make_config(tmp_path).model_copy(update={"env_id": env})
    assert create_run_dir(config).name.startswith(f"dqn__{part}__seed0__2")


class Wanders(gym.Wrapper[Any, Any, Any, Any]):
    """Changes the working folder when it is made, and at every step."""

    def __init__(self, folder: Path) -> None:
        super().__init__(gym.make("rl_training/Chain-v0"))
        self._folder = folder
        os.chdir(folder)

    def step(self, action: Any) -> Any:
        os.chdir(self._folder)
        return super().step(action)


def test_env_that_changes_the_working_folder_does_not_move_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    options = RunOptions(show_progress=False, env_factory=lambda: Wanders(elsewhere))
    result = train(make_config(Path("runs")), options)
    assert result.run_dir.parent == tmp_path / "runs"
    assert result.checkpoint.is_dir()
    assert not any(elsewhere.iterdir())


def test_home_folder_in_a_path_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run_dir = train(make_config(Path("~/runs")), QUIET).run_dir
    assert run_dir.parent == tmp_path / "runs"
    assert find_checkpoint(f"~/runs/{run_dir.name}").parent.parent == run_dir
    assert resume(f"~/runs/{run_dir.name}", QUIET, total_timesteps=70).run_dir == run_dir


def test_prediction_does_not_read_the_memory(stopped: Path) -> None:
    (newest(stopped) / "memory.safetensors").unlink()
    (newest(stopped) / "training.safetensors").write_bytes(b"")
    load_policy(stopped, QUIET)


def test_no_file_of_a_run_can_be_executed(stopped: Path) -> None:
    kinds = {path.suffix for path in stopped.rglob("*") if path.is_file()}
    assert kinds <= {".json", ".jsonl", ".yaml", ".safetensors", ""}
    for name, content in contents(stopped).items():
        # Pickle (protocol 2 and up), zip (torch.save), ELF, Mach-O, Windows, Python byte code, scripts.
        magic = (
            b"\x80\x02",
            b"\x80\x03",
            b"\x80\x04",
            b"\x80\x05",
            b"PK",
            b"\x7fELF",
            b"\xcf\xfa\xed\xfe",
            b"MZ",
            b"#!",
        )
        assert not content.startswith(magic), name
        assert b"\x80\x04\x95" not in content, name


# --- Which checkpoints are kept --------------------------------------------------------------------------------------


class Returns(Callback):
    """Sets the best return so far: evaluations below it are no bests, those above are."""

    def __init__(self, best_at: set[int]) -> None:
        self._best_at = best_at

    def on_step(self, run: Run) -> None:
        run.best_return = -1.0 if run.step in self._best_at else 2.0


def test_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    run_dir = start(
        tmp_path, Returns({20}), checkpoint_interval=10, eval_interval=10, total_timesteps=90, keep_checkpoints=2
    ).run_dir
    assert checkpoint_names(run_dir / "checkpoints") == ["step_000000020", "step_000000080", "step_000000090"]
    assert read_pointer(run_dir / "checkpoints", "best") == "step_000000020"
    assert load_policy(run_dir, QUIET, pointer="best")[0].step == 20


class Clock:
    """Stands for `time.monotonic`: every look at it takes a second, so that a step does, and a save."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


class Checkpoints(Callback):
    """Notes which checkpoints exist, seen before each step's own is written."""

    def __init__(self) -> None:
        self.names: list[list[int]] = []

    def on_step(self, run: Run) -> None:
        found = [int(name.removeprefix("step_")) for name in checkpoint_names(run.folder.checkpoints)]
        if not self.names or self.names[-1] != found:
            self.names.append(found)


def test_run_is_saved_by_time_with_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"checkpoint_interval": 0, "eval_interval": 0}
    whole = start(tmp_path / "whole", checkpoint_minutes=0, **settings).run_dir
    monkeypatch.setattr(callbacks, "monotonic", Clock())
    seen = Checkpoints()
    timed = start(tmp_path, seen, checkpoint_minutes=0.4, **settings).run_dir
    assert seen.names == [[], [24], [48]]
    assert checkpoint_names(timed / "checkpoints") == ["step_000000060"]
    assert differences(timed, whole) == []


def test_saves_by_time_do_not_push_out_those_by_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "monotonic", Clock())
    seen = Checkpoints()
    start(tmp_path, seen, checkpoint_minutes=0.4, checkpoint_interval=35, keep_checkpoints=1, eval_interval=0)
    assert seen.names == [[], [24], [35], [35, 59]]


def test_large_checkpoints_are_saved_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "monotonic", Clock())
    seen = Checkpoints()
    start(tmp_path, seen, checkpoint_minutes=0.1, checkpoint_interval=0, eval_interval=0)
    # Each save takes a second, which is a twentieth of 20 s, although 6 s are asked for.
    assert seen.names == [[], [6], [26], [46]]


def test_save_by_time_on_a_full_disk_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks, "monotonic", Clock())
    attempts = iter(range(9))

    def fail_first(*args: Any, **kwargs: Any) -> Path:
        if next(attempts) == 0:
            raise CheckpointError("no space left")
        return save_checkpoint(*args, **kwargs)

    monkeypatch.setattr(callbacks, "save_checkpoint", fail_first)
    seen = Checkpoints()
    start(tmp_path, seen, checkpoint_minutes=0.4, checkpoint_interval=0, eval_interval=0)
    assert "no space left" in caplog.text
    assert seen.names[:2] == [[], [48]]


def test_policies_alone_do_not_push_out_what_can_be_resumed(tmp_path: Path) -> None:
    # Bests at 45, 50 and 55 between the checkpoints of 20, 40 and 60: of those three only the newest is worth keeping.
    run_dir = start(tmp_path, Returns({45, 50, 55}), eval_interval=5, keep_checkpoints=2).run_dir
    assert checkpoint_names(run_dir / "checkpoints") == ["step_000000040", "step_000000055", "step_000000060"]
    assert not open_checkpoint(find_checkpoint(run_dir, "best")).is_resumable


def test_policy_alone_says_that_it_cannot_be_resumed(tmp_path: Path) -> None:
    run_dir = start(tmp_path, Returns({55}), eval_interval=5).run_dir
    with pytest.raises(
        CheckpointError, match=r"step_000000055 holds the policy only .*; resume its run folder instead"
    ):
        resume(run_dir / "checkpoints" / "step_000000055", QUIET)


def test_best_is_not_a_later_step_that_failed(tmp_path: Path) -> None:
    class FailsAfterTheBest(Callback):
        def on_step(self, run: Run) -> None:
            if run.step == 46:
                raise RuntimeError("a user's mistake")

    with pytest.raises(RuntimeError, match="a user's mistake"):
        start(tmp_path, Returns({45}), FailsAfterTheBest())
    assert read_pointer(tmp_path / "run" / "checkpoints", "best") == "step_000000045"
    assert newest(tmp_path / "run").name == "step_000000046"


def test_steps_beyond_nine_digits_are_newer(tmp_path: Path) -> None:
    for step in (999_999_999, 1_000_000_000):
        save_checkpoint(
            tmp_path, config=make_config(tmp_path), counters={"step": step}, parts={"policy": {"w": np.ones(1)}}
        )
    assert checkpoint_names(tmp_path) == ["step_999999999", "step_1000000000"]


def test_values_of_every_kind_come_back(tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "scalar": np.array(3, np.int64),
        "empty": np.empty((0, 3), np.float32),
        "flags": np.array([True, False]),
        "words": np.array([2**63 + 1], np.uint64),
        "big": 2**127 + 1,
        "tenth": 0.1,
        "none": None,
        "group": {"text": "x", "nothing": {}},
    }
    path = save_checkpoint(
        tmp_path,
        config=make_config(tmp_path),
        counters={"step": 1},
        parts={"policy": {}, "training": state, "memory": {}},
    )
    loaded = open_checkpoint(path).load("training")
    for name in ("scalar", "empty", "flags", "words"):
        back = np.asarray(loaded.pop(name))
        assert (back.shape, back.dtype, back.tobytes()) == (state[name].shape, state[name].dtype, state[name].tobytes())
    assert loaded == {name: value for name, value in state.items() if name in loaded}


# --- Damage ----------------------------------------------------------------------------------------------------------


def flip_a_byte(checkpoint: Path) -> None:
    file = checkpoint / "policy.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def truncate(checkpoint: Path) -> None:
    os.truncate(checkpoint / "memory.safetensors", 1000)


def delete_a_file(checkpoint: Path) -> None:
    (checkpoint / "memory.safetensors").unlink()


def delete_the_manifest(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda checkpoint: edit_manifest(checkpoint, change)


def written(content: bytes) -> Callable[[Path], None]:
    def damage(checkpoint: Path) -> None:
        (checkpoint / MANIFEST).write_bytes(content)

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a flipped byte": (flip_a_byte, r"policy\.safetensors is damaged: its checksum"),
    "a file cut short": (truncate, r"memory\.safetensors is damaged: its checksum"),
    "a file missing": (delete_a_file, r"is damaged: .*No such file.*memory"),
    "no manifest": (delete_the_manifest, r"is damaged: .*No such file.*manifest|holds no manifest"),
    "an empty manifest": (written(b""), r"manifest\.json is damaged"),
    "half a manifest": (written(b'{"schema_version": 1, "conf'), r"manifest\.json is damaged"),
    "not text": (written(b"\xff\xfe\x00garbage"), r"manifest\.json is damaged"),
    "too deep": (written(b"[" * 100_000), r"manifest\.json is damaged"),
    "a list": (written(b"[1, 2]"), r"is not a checkpoint's manifest"),
    "other keys": (written(b'{"foo": 1}'), r"is not a checkpoint's manifest"),
    "keys of other kinds": (edited(lambda m: m.update(sha256=["x"])), r"is damaged: sha256: .* found \['x'\]"),
    "values of other kinds": (edited(lambda m: m["values"].update(policy=3)), r"is damaged: values\.policy: .*found 3"),
    "no step": (edited(lambda m: m["counters"].pop("step")), r"is damaged: counters\.step: Field required"),
    "another schema": (edited(lambda m: m.update(schema_version=99)), r"has schema version 99, this release reads 1"),
    "a schema that is no number": (edited(lambda m: m.update(schema_version="2")), r"has schema version '2'"),
    "a file elsewhere": (
        edited(lambda m: m["sha256"].update({"../../../../etc/passwd": "0"})),
        r"names other files than its parts: .*etc/passwd",
    ),
    "an endless file": (edited(lambda m: m["sha256"].update({"/dev/zero": "0"})), r"names other files than its parts"),
    "files without checksums": (edited(lambda m: m["sha256"].clear()), r"names other files than its parts"),
    "parts elsewhere": (edited(lambda m: m["values"].update({"../x": {}})), r"is damaged: values\.\.\./x"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_newest_checkpoint_is_named_and_the_next_offered(kind: str, stopped: Path, unbroken: Path) -> None:
    do_damage, message = DAMAGE[kind]
    do_damage(newest(stopped))
    with pytest.raises(CheckpointError, match=message) as error:
        resume(stopped, QUIET)
    offered = stopped / "checkpoints" / "step_000000040"
    assert "step_000000050" in str(error.value)
    assert str(error.value).endswith(f"; the newest intact one is {offered}")
    result = resume(offered, QUIET)
    assert (damage(stopped), result.step) == ([], 60)
    assert differences(stopped, unbroken) == []


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_to_the_only_checkpoint_is_named_and_nothing_is_trained_over_it(kind: str, tmp_path: Path) -> None:
    run_dir = start(tmp_path, StopAt(16), checkpoint_interval=0, eval_interval=0).run_dir
    do_damage, message = DAMAGE[kind]
    do_damage(newest(run_dir))
    before = contents(run_dir)
    with pytest.raises(CheckpointError, match=message):
        resume(run_dir, QUIET)
    with pytest.raises(ConfigError, match="holds a run already"):
        train(make_config(tmp_path), QUIET, run_dir=run_dir)
    assert contents(run_dir) == before


@pytest.mark.parametrize("kind", ["a flipped byte", "a list", "an endless file"])
def test_damaged_policy_is_not_evaluated(kind: str, stopped: Path) -> None:
    DAMAGE[kind][0](newest(stopped))
    with pytest.raises(CheckpointError, match=r"; the newest intact one is .*step_000000040"):
        DQN.load(stopped)


def test_damaged_pointer_is_passed_over(stopped: Path, unbroken: Path) -> None:
    for content in (b"", b"\xff\xfe", b"../../../etc", b"step_000000999", b"step_000000020"):
        (stopped / "checkpoints" / "latest").write_bytes(content)
        assert find_checkpoint(stopped).name == "step_000000050"
    resume(stopped, QUIET)
    assert differences(stopped, unbroken) == []


def test_missing_checkpoints_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no run or checkpoint at '.*nowhere'"):
        resume(tmp_path / "nowhere", QUIET)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty holds no checkpoint"):
        DQN.load(tmp_path / "empty")


def test_missing_best_is_named(tmp_path: Path) -> None:
    run_dir = start(tmp_path, Returns(set())).run_dir
    with pytest.raises(CheckpointError, match=r"holds no best checkpoint"):
        load_policy(run_dir, QUIET, pointer="best")


def warnings_of_resume(path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    resume(path, QUIET)
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_software_that_changed_is_reported_once(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    metadata = stopped / "metadata.json"
    text = json.loads(metadata.read_text())
    torch_now = text["starts"][-1]["versions"]["torch"]
    text["starts"][-1]["versions"] |= {"torch": "1.0", "rl-training": "0.0.1"}
    metadata.write_text(json.dumps(text))
    expected = f"rl-training 0.0.1 is now {__version__}, torch 1.0 is now {torch_now}: the resumed run may differ"
    (found,) = warnings_of_resume(stopped, caplog)
    assert found.startswith(expected)


def test_same_software_and_config_are_not_reported(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of_resume(stopped, caplog) == []


def test_edited_config_of_a_run_is_reported(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = stopped / "config.yaml"
    config.write_text(config.read_text().replace("gamma: 0.99", "gamma: 0.5").replace("seed: 0", "seed: 7"))
    (found,) = warnings_of_resume(stopped, caplog)
    assert found.startswith(f"{config} was edited (seed is 7, was 0, algo_kwargs.gamma is 0.5, was 0.99): the run")
    assert read_run_config(stopped).hparams.gamma == 0.99  # type: ignore[attr-defined]


def test_missing_config_of_a_run_is_reported(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    (stopped / "config.yaml").unlink()
    assert warnings_of_resume(stopped, caplog) == [f"{stopped} has no config.yaml: the run continues in a new folder"]


def test_log_that_lost_records_is_reported(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.truncate(stopped / "metrics.jsonl", 10)
    with caplog.at_level(logging.WARNING, logger="rl_training"):
        resume(stopped, QUIET)
    assert "metrics.jsonl is shorter than when the checkpoint was written" in caplog.text


def test_checkpoint_of_another_algorithm_is_refused(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = registry_module.registry()["dqn"]
    other = type(row)(**{name: getattr(row, name) for name in row.__slots__} | {"name": "qr_dqn"})
    monkeypatch.setitem(registry_module.registry(), "qr_dqn", other)
    edited(lambda manifest: manifest["config"].update(algo="qr_dqn"))(newest(stopped))
    with pytest.raises(ConfigError, match=r"DQN trains 'dqn', but the config's algo is 'qr_dqn'"):
        DQN.load(stopped)


@pytest.mark.parametrize("use", [DQN.load, lambda path: resume(path, QUIET)])
def test_checkpoint_of_an_unknown_algorithm_is_refused(use: Callable[[Path], object], stopped: Path) -> None:
    edited(lambda manifest: manifest["config"].update(algo="sarsa"))(newest(stopped))
    with pytest.raises(CheckpointError, match=r"step_000000050 holds settings .*unknown algorithm 'sarsa'"):
        use(stopped)


# --- Disks -----------------------------------------------------------------------------------------------------------


def test_full_disk_leaves_the_earlier_checkpoint_whole(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = write_tensors

    def write_until_full(path: Path, tensors: Any) -> str:
        if path.name == "memory.safetensors" and "step_000000040" in str(path):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, tensors)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "write_tensors", write_until_full)
        with pytest.raises(CheckpointError, match=r"step_000000040 could not be written: .*No space.*ones are intact"):
            start(tmp_path)
    run_dir = tmp_path / "run"
    assert damage(run_dir) == []
    assert newest(run_dir).name == "step_000000020"
    assert not list((run_dir / "checkpoints").glob(".writing_*"))
    resume(run_dir, QUIET)
    assert differences(run_dir, unbroken) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 200 KiB, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb") as file:
        while True:
            file.write(bytes(512))
            file.flush()


class FillDisk(Callback):
    def __init__(self, disk: Path, step: int) -> None:
        self._disk, self._step = disk, step

    def on_step(self, run: Run) -> None:
        if run.step == self._step:
            fill(self._disk)


@pytest.mark.process
@pytest.mark.parametrize("tensorboard", [False, True])
@pytest.mark.parametrize("step", [35, 40])  # at the next log record, and at the checkpoint itself
def test_disk_that_is_really_full(
    step: int, tensorboard: bool, small_disk: Path, unbroken: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CheckpointError, match=r"No space left on device.*intact"):
        start(small_disk, FillDisk(small_disk, step), tensorboard=tensorboard)
    run_dir = small_disk / "run"
    assert damage(run_dir) == []
    assert newest(run_dir).name == "step_000000020"
    (small_disk / "filler").unlink()
    resume(run_dir, QUIET)
    assert differences(run_dir, unbroken) == []


def test_log_on_a_full_disk_names_itself(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "metrics.jsonl")
    os.dup2(os.open("/dev/full", os.O_WRONLY), log._file.fileno())
    log.write({"step": 1})
    with pytest.raises(
        CheckpointError, match=r"metrics\.jsonl cannot be written: .*No space.*the checkpoints are intact"
    ):
        log.flush()
    log.close()  # silent: it would hide the error that ended the run


def test_tensorboard_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rl_training.tracking.tensorboard.TensorBoard.send", fail)
    with caplog.at_level(logging.WARNING, logger="rl_training"):
        assert start(tmp_path, tensorboard=True).step == 60
    assert caplog.text.count("tensorboard failed (") == 1
    assert "No space left on device); records wait in the run folder: rl-training track" in caplog.text


@pytest.mark.process
def test_disk_that_is_read_only(small_disk: Path, unbroken: Path) -> None:
    start(small_disk, StopAt(50))
    remount = ["mount", "-o", "remount,size=1m"]
    subprocess.run([*remount, "-r", str(small_disk)], check=True)
    with pytest.raises(ConfigError, match=r"cannot be written: .*Read-only"):
        resume(small_disk / "run", QUIET)
    DQN.load(small_disk / "run").predict(np.eye(5, dtype=np.float32))  # reading is enough for that
    subprocess.run([*remount, "-w", str(small_disk)], check=True)
    resume(small_disk / "run", QUIET)
    assert differences(small_disk / "run", unbroken) == []


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"step_000000015 could not be written: .*checkpoints"):
        start(tmp_path)
    with pytest.raises(ConfigError, match=r"output_dir: .*cannot be written"):
        train(make_config(tmp_path / "run" / "checkpoints"), QUIET)


# --- Values that must not be trained on or stored ---------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["local_sync", pytest.param("local_async", marks=pytest.mark.process)])
@pytest.mark.parametrize(("fault", "found"), [("nan_reward", "the reward nan"), ("nan_obs", r"the observation \[nan")])
def test_nan_is_named_with_env_episode_and_step(fault: str, found: str, backend: str, tmp_path: Path) -> None:
    # Each env makes its 10 steps per episode: step 4 of episode 2 is the run's step 2 * 24.
    env_kwargs = {"fault": fault, "step": 4, "episode": 2}
    with pytest.raises(EnvError, match=rf"env [01] returned {found}.* at step 4 of episode 2 \(seed \d+\)"):
        start(
            tmp_path,
            env_id="rl_training/Misbehaving-v0",
            env_kwargs=env_kwargs,
            num_envs=2,
            execution_backend=backend,
        )
    assert newest(tmp_path / "run").name == "step_000000046"
    assert damage(tmp_path / "run") == []


def test_nan_at_a_reset_is_named(tmp_path: Path) -> None:
    env_kwargs = {"fault": "nan_obs", "step": 0, "episode": 3}
    with pytest.raises(
        EnvError, match=r"env 0 returned the observation \[nan.* at the reset of episode 3 \(seed \d+\)"
    ):
        start(tmp_path, env_id="rl_training/Misbehaving-v0", env_kwargs=env_kwargs)
    assert newest(tmp_path / "run").name == "step_000000029"


class Exits(Callback):
    """Calls `sys.exit(0)` at step 37, or at the end."""

    def __init__(self, method: str) -> None:
        self._method = method

    def on_step(self, run: Run) -> None:
        if self._method == "on_step" and run.step == 37:
            sys.exit(0)

    def on_end(self, run: Run) -> None:
        if self._method == "on_end":
            sys.exit(0)


@pytest.mark.parametrize(("method", "step"), [("on_step", 37), ("on_end", 60)])
def test_exit_in_a_callback_is_an_error_and_the_run_is_saved(method: str, step: int, tmp_path: Path) -> None:
    with pytest.raises(
        UserCodeError, match=rf"^SystemExit\(0\) was raised in {re.escape(__file__)}, line \d+: .*stop_r"
    ):
        start(tmp_path, Exits(method))
    assert newest(tmp_path / "run").name == f"step_{step:09d}"


class Poison(Callback):
    """Makes the weights NaN."""

    def on_step(self, run: Run) -> None:
        if run.step == 37:
            run.algorithm._state["params"].fill_(float("nan"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("log_interval", [1_000, 1])  # found by the checkpoint, or before by the log
def test_weights_that_are_not_finite_are_never_written(log_interval: int, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"diverged.*smaller learning_rate"):
        start(tmp_path, Poison(), log_interval=log_interval, eval_interval=0)
    run_dir = tmp_path / "run"
    assert checkpoint_names(run_dir / "checkpoints") == ["step_000000020"]
    for name, tensor in open_checkpoint(newest(run_dir)).load("policy").items():
        assert np.isfinite(np.asarray(tensor)).all(), name


def test_huge_learning_rate_ends_with_a_clear_message(tmp_path: Path) -> None:
    kwargs = {"learning_rate": 1e38, "loss": "mse"}
    with pytest.raises(TrainingError, match=r"diverged"):
        start(tmp_path, algo_kwargs=kwargs, log_interval=1_000, eval_interval=0)
    assert all(open_checkpoint(path) for path in (tmp_path / "run" / "checkpoints").glob("step_*"))


def test_buffer_larger_than_memory_is_refused_with_both_figures(tmp_path: Path) -> None:
    # A row of the chain is 5 + 5 floats, an action, a reward and a flag: 56 bytes; 10**13 of them are 521,540.6 GiB.
    with pytest.raises(ConfigError, match=r"needs 521540\.6 GiB, but only \d+\.\d GiB of memory.*buffer_capacity"):
        start(tmp_path, algo_kwargs={"buffer_capacity": 10**13})


REFUSED: dict[str, tuple[dict[str, Any], nn.Module | None, str]] = {
    "spaces": ({"env_id": "Pendulum-v1"}, None, "needs a discrete action space"),
    "buffer": ({"algo_kwargs": {"buffer_capacity": 10**13}}, None, "GiB of memory are available"),
    "network": ({}, nn.Sequential(nn.Flatten()), "has no parameters to train"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused_run_leaves_no_folder_behind(reason: str, tmp_path: Path) -> None:
    changes, network, message = REFUSED[reason]
    with pytest.raises((ConfigError, TypeError, ValueError), match=message):
        train(make_config(tmp_path / "runs", **changes), RunOptions(network=network, show_progress=False))
    assert not (tmp_path / "runs").exists()


def test_refused_fork_leaves_no_folder_behind(stopped: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no parameters to train"):
        resume(stopped, RunOptions(network=nn.Flatten(), show_progress=False), output_dir=tmp_path / "forks")
    assert not (tmp_path / "forks").exists()


# --- Envs that fail --------------------------------------------------------------------------------------------------


class FailsOnce(gym.Wrapper[Any, Any, Any, Any]):
    """Raises at one call of `step` or `reset`, counted over the lives of all copies; well again after that."""

    def __init__(self, env: gym.Env[Any, Any], trap: Path, method: str) -> None:
        super().__init__(env)
        self._trap, self._method = trap, method

    def step(self, action: Any) -> Any:
        self._maybe_fail("step")
        return super().step(action)

    def reset(self, **kwargs: Any) -> Any:
        self._maybe_fail("reset")
        return super().reset(**kwargs)

    def _maybe_fail(self, method: str) -> None:
        if method != self._method:
            return
        try:
            self._trap.unlink()
        except FileNotFoundError:  # not set, or a copy in another process was first
            return
        raise ValueError("a passing fault")


class SetTrap(Callback):
    def __init__(self, trap: Path, step: int) -> None:
        self._trap, self._step = trap, step

    def on_step(self, run: Run) -> None:
        if run.step == self._step:
            self._trap.touch()


@pytest.mark.parametrize("method", ["step", "reset"])
@pytest.mark.parametrize("backend", ["local_sync", pytest.param("local_async", marks=pytest.mark.process)])
def test_run_whose_env_failed_is_saved_and_continues_exactly(backend: str, method: str, tmp_path: Path) -> None:
    # Random actions: episodes stay short, so that a reset of the training envs is what springs the trap.
    changes = {
        "num_envs": 2,
        "execution_backend": backend,
        "eval_interval": 0,
        "total_timesteps": 200,
        "algo_kwargs": {"epsilon_end": 1.0},
    }
    case = Case(name="failing", env_factory=lambda: FailsOnce(gym.make("CartPole-v1"), tmp_path / "trap", method))
    whole = train(make_config(tmp_path, **changes), case.options(), run_dir=tmp_path / "whole").run_dir
    failing = make_config(tmp_path, **changes)
    with pytest.raises(EnvError, match=r"env \d raised ValueError: a passing fault at .* of episode \d+ \(seed \d+\)"):
        train(failing, case.options(SetTrap(tmp_path / "trap", 30)), run_dir=tmp_path / "run")
    assert newest(tmp_path / "run").name >= "step_000000030"
    assert "a passing fault" in (tmp_path / "run" / "crash" / "traceback.txt").read_text()
    resume(tmp_path / "run", case.options())
    assert differences(tmp_path / "run", whole) == []


def test_run_that_failed_in_the_middle_of_its_updates_is_not_saved_there(
    tmp_path: Path, unbroken: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class BreakUpdate(Callback):
        def on_step(self, run: Run) -> None:
            if run.step == 33:
                run.algorithm.update = self._fail  # type: ignore[method-assign]

        @staticmethod
        def _fail(batch: Any) -> Any:
            raise RuntimeError("out of memory")

    with caplog.at_level(logging.WARNING, logger="rl_training"), pytest.raises(RuntimeError, match="out of memory"):
        start(tmp_path, BreakUpdate())
    assert "in the middle of step 34, which is not saved" in caplog.text
    assert newest(tmp_path / "run").name == "step_000000020"
    resume(tmp_path / "run", QUIET)
    assert differences(tmp_path / "run", unbroken) == []


def test_callback_that_fails_at_its_end_lets_the_others_end(tmp_path: Path) -> None:
    ended = []

    class Ends(Callback):
        def __init__(self, fails: bool) -> None:
            self._fails = fails

        def on_end(self, run: Run) -> None:
            ended.append(self._fails)
            if self._fails:
                raise RuntimeError("cannot end")

    with pytest.raises(RuntimeError, match="cannot end"):
        start(tmp_path, Ends(True), Ends(False))
    assert ended == [True, False]


# --- Two processes at once -------------------------------------------------------------------------------------------


@pytest.mark.process
def test_looking_at_a_run_from_its_own_process_keeps_the_lock(tmp_path: Path) -> None:
    lock = "import sys; from pathlib import Path; from rl_training.experiment.run_dir import locked\n"
    lock += "with locked(Path(sys.argv[1])): pass"
    with locked(tmp_path):
        assert is_in_use(tmp_path)
        other = subprocess.run([sys.executable, "-c", lock, tmp_path], capture_output=True, text=True, check=False)
        assert "RunInUseError" in other.stderr
    assert not is_in_use(tmp_path)


@pytest.mark.process
def test_folder_in_use_is_refused(stopped: Path) -> None:
    before = contents(stopped)
    holder = "import sys; from pathlib import Path; from rl_training.experiment.run_dir import locked\n"
    holder += "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    command = [os.sys.executable, "-c", holder, str(stopped)]  # type: ignore[attr-defined]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=r"is in use: another process trains in it now"):
            resume(stopped, QUIET)
        assert contents(stopped) == before
        other.kill()
    with locked(stopped):  # free again, although nobody gave it back
        pass


@pytest.mark.process
def test_a_start_that_is_refused_changes_nothing_in_the_folder(tmp_path: Path) -> None:
    folder = create_run_dir(make_config(tmp_path).resolved(), tmp_path / "run")  # trained, but not saved yet
    before = (folder / "config.yaml").read_bytes()
    holder = "import sys; from pathlib import Path; from rl_training.experiment.run_dir import locked\n"
    holder += "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", holder, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=r"is in use: another process trains in it now"):
            resume(folder, QUIET, total_timesteps=70)
        other.kill()
    assert (folder / "config.yaml").read_bytes() == before


def test_a_run_that_another_process_finished_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = create_run_dir(make_config(tmp_path).resolved(), tmp_path / "run")
    prepare = setup.prepare_run

    def prepare_slowly(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(trainer, "prepare_run", prepare)
        resume(folder, QUIET)  # as the other process does
        return prepare(*args, **options)

    monkeypatch.setattr(trainer, "prepare_run", prepare_slowly)
    with pytest.raises(ConfigError, match="holds a run already"):
        resume(folder, QUIET)
    assert find_checkpoint(folder).name == "step_000000060"
    assert read_result(folder) is not None


# --- Sudden death ----------------------------------------------------------------------------------------------------


class Death(KeyboardInterrupt):
    """The process is gone: no `except` gets to do anything, as at a second Ctrl-C."""


class MortalDisk:
    """Counts what is done to the disk; after `lifetime` operations nothing is done any more."""

    OPERATIONS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "link", "truncate")

    def __init__(self, patch: pytest.MonkeyPatch, lifetime: float = float("inf")) -> None:
        self.count, self._lifetime = 0, lifetime
        for name in self.OPERATIONS:
            patch.setattr(os, name, self._mortal(getattr(os, name)))

    def _mortal(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def perform(*args: Any, **kwargs: Any) -> Any:
            if self.count >= self._lifetime:
                raise Death
            self.count += 1
            return operation(*args, **kwargs)

        return perform


def operations_of(action: Callable[[], object]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        disk = MortalDisk(patch)
        action()
        return disk.count


def die_after(operations: int, action: Callable[[], object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        MortalDisk(patch, operations)
        with pytest.raises(Death):
            action()


# Every kind of save within few operations: interval, best, both, the last; and a checkpoint to be removed at each.
MORTAL = {"checkpoint_interval": 10, "eval_interval": 6, "total_timesteps": 36, "keep_checkpoints": 1}


def check_death(folder: Path, operations: int, whole: Path) -> None:
    die_after(operations, lambda: start(folder, Returns({6, 18, 30}), **MORTAL))
    run_dir = folder / "run"
    if (run_dir / "config.yaml").exists():
        assert damage(run_dir) == [], f"after {operations} operations"
        run_in(run_dir, read_run_config(run_dir), quiet(Returns({6, 18, 30})))  # the last death finds it finished
        assert differences(run_dir, whole) == [], f"after {operations} operations"


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The unbroken run, and how many operations it takes."""
    folder = tmp_path_factory.mktemp("mortal")
    return folder / "run", operations_of(lambda: start(folder, Returns({6, 18, 30}), **MORTAL))


@pytest.mark.parametrize("share", range(8))
def test_death_at_some_operation_of_the_disk_loses_nothing(
    share: int, mortal: tuple[Path, int], tmp_path: Path
) -> None:
    # Each share takes three operations of its own: 24 of them, spread over the whole run.
    whole, count = mortal
    for part in range(3):
        check_death(tmp_path / str(part), (3 * share + part) * count // 24, whole)


@pytest.mark.slow
def test_death_at_any_operation_of_the_disk_loses_nothing(mortal: tuple[Path, int], tmp_path: Path) -> None:
    whole, count = mortal
    for operations in range(count):
        check_death(tmp_path / str(operations), operations, whole)


@pytest.mark.slow
def test_death_at_any_operation_of_a_resume_loses_nothing(mortal: tuple[Path, int], tmp_path: Path) -> None:
    whole, _ = mortal
    options = quiet(Returns({6, 18, 30}))
    start(tmp_path, Returns({6, 18, 30}), StopAt(25), **MORTAL)
    copy = Path(shutil.copytree(tmp_path / "run", tmp_path / "copy"))
    for operations in range(operations_of(lambda: resume(copy, options))):
        run_dir = Path(shutil.copytree(tmp_path / "run", tmp_path / str(operations)))
        die_after(operations, lambda run_dir=run_dir: resume(run_dir, options))  # type: ignore[misc]
        assert damage(run_dir) == [], f"after {operations} operations"
        with contextlib.suppress(ConfigError):  # the last death finds it finished
            resume(run_dir, options)
        assert differences(run_dir, whole) == [], f"after {operations} operations"


def test_death_between_a_checkpoint_and_its_pointer_keeps_the_checkpoint(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpointing.write_pointer

    def die_at_40(folder: Path, pointer: str, name: str) -> None:
        if name == "step_000000040":
            raise Death
        write(folder, pointer, name)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "write_pointer", die_at_40)
        with pytest.raises(Death):
            start(tmp_path)
    run_dir = tmp_path / "run"
    assert (run_dir / "checkpoints" / "latest").read_text().strip() == "step_000000020"
    assert newest(run_dir).name == "step_000000040"
    resume(run_dir, QUIET)
    assert json.loads((run_dir / "metadata.json").read_text())["starts"][1]["step"] == 40
    assert differences(run_dir, unbroken) == []


def test_death_between_the_last_checkpoint_and_the_result_only_needs_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `stop_return` 0 ends the run at its first evaluation: a resumed run must not train beyond it.
    whole = start(tmp_path / "whole", stop_return=0.0)
    assert whole.step == 15
    run_dir = Path(shutil.copytree(whole.run_dir, tmp_path / "run"))
    (run_dir / "result.json").unlink()
    result = resume(run_dir, QUIET)
    assert (result.step, result.stop_reason, result.eval_return) == (15, whole.stop_reason, whole.eval_return)
    assert differences(run_dir, whole.run_dir) == []
    assert resume(run_dir, QUIET, total_timesteps=80).step == 30  # and goes on when asked to, to the next evaluation


class DiesAtEvaluation(gym.Wrapper[Any, Any, Any, Any]):
    """Raises `error` at the reset that starts an evaluation."""

    def __init__(self, eval_seed: int, error: BaseException) -> None:
        super().__init__(gym.make("rl_training/Chain-v0"))
        self._eval_seed, self._error = eval_seed, error

    def reset(self, **kwargs: Any) -> Any:
        if kwargs.get("seed") == self._eval_seed:
            raise self._error
        return super().reset(**kwargs)


@pytest.mark.parametrize(
    ("error", "step", "changes"),
    [
        (Death(), 60, {"checkpoint_interval": 0, "eval_interval": 0}),  # the final evaluation is hit
        (Death(), 15, {"checkpoint_interval": 15}),  # an evaluation at the step of a checkpoint
        (RuntimeError("no screen"), 15, {}),  # an error saves the run at the step of the evaluation
    ],
)
def test_run_that_ended_in_an_evaluation_continues_with_it(
    error: BaseException, step: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    whole = start(tmp_path / "whole", **changes).run_dir
    seed = read_json_lines(whole / "eval.jsonl")[0]["seed"]
    config = read_run_config(whole)
    options = RunOptions(show_progress=False, env_factory=lambda: DiesAtEvaluation(seed, error))
    with pytest.raises((Death, EnvError)):
        train(config, options, run_dir=tmp_path / "run")
    assert newest(tmp_path / "run").name == f"step_{step:09d}"
    healthy = RunOptions(show_progress=False, env_factory=lambda: gym.make("rl_training/Chain-v0"))
    resume(tmp_path / "run", healthy)
    assert differences(tmp_path / "run", whole) == []


class HangsAtEvaluation(DiesAtEvaluation):
    """Sends SIGTERM at the reset that starts an evaluation, and hangs."""

    def reset(self, **kwargs: Any) -> Any:
        try:
            return super().reset(**kwargs)
        except Death:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait()


@pytest.mark.process
def test_first_signal_in_an_evaluation_that_hangs_ends_the_run_saved(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", worker_timeout=0.5).run_dir
    seed = read_json_lines(whole / "eval.jsonl")[0]["seed"]
    options = RunOptions(show_progress=False, env_factory=lambda: HangsAtEvaluation(seed, Death()))
    with pytest.raises(EnvError, match=r"^the evaluation at env step 15 failed: env 0 gave no answer for 0\.5 s"):
        train(read_run_config(whole), options, run_dir=tmp_path / "run")
    assert newest(tmp_path / "run").name == "step_000000015"
    healthy = RunOptions(show_progress=False, env_factory=lambda: gym.make("rl_training/Chain-v0"))
    resume(tmp_path / "run", healthy)
    assert differences(tmp_path / "run", whole) == []


def test_failed_evaluation_is_named(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole").run_dir
    seed = read_json_lines(whole / "eval.jsonl")[0]["seed"]
    options = RunOptions(show_progress=False, env_factory=lambda: DiesAtEvaluation(seed, RuntimeError("no screen")))
    with pytest.raises(EnvError, match=r"^the evaluation at env step 15 failed: env 0 raised RuntimeError: no screen"):
        train(read_run_config(whole), options, run_dir=tmp_path / "run")


def test_run_that_stop_return_ended_at_a_checkpoint_goes_on_when_asked_to(tmp_path: Path) -> None:
    run_dir = start(tmp_path, stop_return=0.0, checkpoint_interval=15).run_dir
    assert [record["step"] for record in read_json_lines(run_dir / "eval.jsonl")][-1] == 15
    assert resume(run_dir, QUIET, total_timesteps=80).step == 30


def test_run_that_held_only_a_best_policy_begins_again(tmp_path: Path, unbroken: Path) -> None:
    run_dir = start(tmp_path, StopAt(16)).run_dir
    shutil.rmtree(run_dir / "checkpoints" / "step_000000016")  # died after the best evaluation at 15
    (run_dir / "result.json").unlink()
    assert checkpoint_names(run_dir / "checkpoints") == ["step_000000015"]
    resume(run_dir, QUIET)
    assert differences(run_dir, unbroken) == []


def test_whole_checkpoint_joins_a_policy_of_the_same_step(tmp_path: Path) -> None:
    config, counters = make_config(tmp_path), {"step": 3}
    parts: dict[str, dict[str, Any]] = {
        "policy": {"w": np.ones(2)},
        "training": {"m": np.zeros(2)},
        "memory": {"rows": np.zeros((4, 2))},
    }
    path = save_checkpoint(tmp_path, config=config, counters=counters, parts={"policy": parts["policy"]})
    before = (path / "policy.safetensors").stat().st_ino
    save_checkpoint(tmp_path, config=config, counters=counters, parts=parts)
    assert (path / "policy.safetensors").stat().st_ino == before  # `best` may name it: it was there at every moment
    assert open_checkpoint(path).is_resumable


def tensorboard_of(run_dir: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    return accumulator.EventAccumulator(str(run_dir / "tensorboard")).Reload()


def scalar_steps(run_dir: Path, tag: str) -> list[int]:
    return [event.step for event in tensorboard_of(run_dir).Scalars(tag)]


def test_tensorboard_shows_each_record_once_after_a_death(tmp_path: Path) -> None:
    # Died at step 47, beyond the checkpoint of 40: the records of 42 and 45 are written twice, the one of 35 once.
    start(tmp_path, StopAt(47), tensorboard=True, log_interval=5, eval_interval=10)
    run_dir = tmp_path / "run"
    shutil.rmtree(newest(run_dir))
    resume(run_dir, QUIET)
    steps = scalar_steps(run_dir, "train/epsilon")
    assert steps == [record["step"] for record in read_json_lines(run_dir / "metrics.jsonl")] == list(range(5, 61, 5))
    assert scalar_steps(run_dir, "eval/return_mean") == list(range(10, 61, 10))


class StopAtOnce(Callback):
    def on_start(self, run: Run) -> None:
        run.stop_reason, run.interrupted = "signal", True


def test_tensorboard_shows_a_step_once_that_is_resumed_several_times(tmp_path: Path) -> None:
    start(tmp_path, StopAt(40), tensorboard=True, log_interval=5, eval_interval=10)
    run_dir = tmp_path / "run"
    for _ in range(2):
        assert resume(run_dir, quiet(StopAtOnce())).step == 40
    resume(run_dir, QUIET)
    assert scalar_steps(run_dir, "train/epsilon") == list(range(5, 61, 5))
    assert scalar_steps(run_dir, "eval/return_mean") == list(range(10, 61, 10))


def test_tensorboard_shows_an_evaluation_once_that_a_death_kept_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Checkpointing, run: Run, add: Any = Checkpointing.add_evaluation) -> None:
        if run.step == 40:
            raise KeyboardInterrupt
        add(self, run)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointing, "add_evaluation", die)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path, tensorboard=True, eval_interval=10)
    run_dir = tmp_path / "run"
    assert scalar_steps(run_dir, "eval/return_mean") == [10, 20, 30, 40]
    resume(run_dir, QUIET)
    assert scalar_steps(run_dir, "eval/return_mean") == list(range(10, 61, 10))


def test_tensorboard_shows_evaluations_config_and_hyperparameters(tmp_path: Path) -> None:
    run_dir = start(tmp_path, tensorboard=True, eval_interval=30).run_dir
    events = tensorboard_of(run_dir)
    episodes = [record for record in read_json_lines(run_dir / "eval.jsonl") if record["step"] == 30]
    assert events.Scalars("eval/return_mean")[0].value == pytest.approx(np.mean([e["return"] for e in episodes]))
    assert events.Scalars("eval/return_std")[0].value == pytest.approx(np.std([e["return"] for e in episodes]))
    assert events.Scalars("eval/length_mean")[0].value == pytest.approx(np.mean([e["length"] for e in episodes]))
    (text,) = events.Tensors("config/text_summary")
    written = (run_dir / "config.yaml").read_text().partition("# seal")[0]
    assert written in text.tensor_proto.string_val[0].decode()
    plugin = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"learning_rate" in plugin
    assert b"env_id" in plugin


def test_tensorboard_of_a_fork_has_the_records_from_before(tmp_path: Path) -> None:
    run_dir = start(tmp_path, tensorboard=True, log_interval=10, eval_interval=30).run_dir
    fork = resume(run_dir, QUIET, total_timesteps=80, output_dir=tmp_path / "forks").run_dir
    assert scalar_steps(fork, "train/epsilon") == list(range(10, 81, 10))
    assert scalar_steps(fork, "eval/return_mean") == [30, 60, 80]
    assert len(tensorboard_of(fork).Tensors("config/text_summary")) == 1


@pytest.mark.process
def test_killed_runs_lose_nothing(tmp_path: Path) -> None:
    whole = run_unbroken(CASE, tmp_path)
    run_dir = prepare_run(CASE, tmp_path / "killed")
    kills = list(kill_run(run_dir, kills=4, seed=3))
    assert [kill.place.startswith("at a") for kill in kills] == [True, False, True, False]
    assert [kill.damage for kill in kills] == [[], [], [], []]
    assert differences(run_dir, whole) == []
    assert timeless(read_json_lines(run_dir / "eval.jsonl"))


def test_a_tensor_of_one_element_with_a_wide_stride_is_written(tmp_path: Path) -> None:
    one = torch.arange(8.0)[3::4][:1]  # shape (1,), stride (4,): contiguous, as a single row of a stack is
    assert one.stride() == (4,)
    write_tensors(tmp_path / "one.safetensors", {"one": one})
    assert read_tensors(tmp_path / "one.safetensors")["one"].tolist() == [3.0]
