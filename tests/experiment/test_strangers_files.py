"""A run from a stranger runs no code, writes nowhere else and removes nothing; the user's own run needs no consent."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from typer.testing import CliRunner

from builders import make_config
from rl_training import DQN, RunOptions, resume, train
from rl_training.cli import app
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.run_dir import read_run_config
from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from tampering import edit_manifest

PARTS = ("policy.safetensors", "training.safetensors", "memory.safetensors")
QUIET = RunOptions(show_progress=False)
CODE = """
import pathlib
import gymnasium
pathlib.Path(__file__).with_name("imported").touch()
gymnasium.register("Own-v0", "rl_training.envs.tiny:Chain", max_episode_steps=20)

def make():
    return gymnasium.make("rl_training/Chain-v0")

class Made:
    def __new__(cls):
        return make()

class Wrapper(gymnasium.Wrapper):
    pass

not_a_function = 3
"""
MODULE = "module_of_a_test"
SMALL = {"hidden_sizes": [8], "learning_starts": 10, "batch_size": 4, "buffer_capacity": 100}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module on the path; the file `imported` beside it appears when it is imported."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(CODE)
    monkeypatch.syspath_prepend(folder)
    yield folder / "imported"
    sys.modules.pop(MODULE, None)
    gym.registry.pop("Own-v0", None)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return train(make_config(tmp_path, total_timesteps=20), QUIET).run_dir


def from_stranger(run: Path, **settings: Any) -> Path:
    """Make the run one of a stranger, with other settings, in its checkpoint and in its config.yaml."""
    edit_manifest(find_checkpoint(run), lambda manifest: manifest["config"].update(settings))
    (run / "config.yaml").write_text(read_run_config(run).updated(**settings).to_yaml())
    return run


def evaluate(path: Path, **options: Any) -> object:
    return DQN.load(path, show_progress=False, **options).evaluate(1)


def resume_on(path: Path, **options: Any) -> object:
    return resume(path, RunOptions(show_progress=False, **options), total_timesteps=30)


def begin_again(path: Path, **options: Any) -> object:
    shutil.rmtree(path / "checkpoints")
    return resume(path, RunOptions(show_progress=False, **options))


def cli(*words: object) -> Callable[..., None]:
    def use(path: Path, allow_code: bool = False) -> None:
        flags = ["--allow-code"] if allow_code else []
        result = CliRunner().invoke(app, [*(str(word).format(run=path) for word in words), *flags])
        if result.exit_code == 2:
            raise CheckpointError(result.output)
        assert result.exit_code == 0, result.output

    return use


USES: dict[str, Callable[..., object]] = {
    "load": evaluate,
    "resume": resume_on,
    "begin again": begin_again,
    "evaluate": cli("evaluate", "{run}", "--episodes", 1),
    "predict": cli("predict", "{run}", "--obs", "[0, 0, 0, 0, 1]"),
    "record": cli("record", "--run", "{run}", "--steps", 5, "--out", "{run}.npz"),
}
NAMES: list[dict[str, Any]] = [
    {"env_id": f"{MODULE}:Own-v0"},
    {"env_factory": f"{MODULE}:make"},
    {"wrappers": [f"{MODULE}:Wrapper"]},
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("settings", NAMES, ids=lambda settings: next(iter(settings)))
def test_code_that_a_strangers_run_names_is_imported_only_with_consent(
    use: str, settings: dict[str, Any], run: Path, module: Path
) -> None:
    from_stranger(run, **settings)
    copy = shutil.copytree(run, run.with_name("copy"))
    with pytest.raises(CheckpointError, match=f"names code .*{MODULE}.*no seal of yours.*--allow-code"):
        USES[use](run)
    assert not module.exists()
    USES[use](copy, allow_code=True)
    assert module.exists()


def test_code_in_env_kwargs_needs_consent_too(run: Path) -> None:
    from_stranger(run, env_kwargs={"wrapper": {"entry_point": "os.system"}, "render": ["os:system"], "plain": "a b"})
    with pytest.raises(CheckpointError, match=r"names code \(.*entry_point: os\.system.*os:system\)"):
        evaluate(run)


@pytest.mark.parametrize("use", USES)
def test_a_strangers_run_without_code_needs_no_consent(use: str, run: Path) -> None:
    USES[use](from_stranger(run))


@pytest.mark.parametrize("use", USES)
def test_a_run_of_this_user_needs_no_consent_wherever_it_lies(use: str, tmp_path: Path, module: Path) -> None:
    run = train(make_config(tmp_path, env_id=f"{MODULE}:Own-v0", total_timesteps=20), QUIET).run_dir
    USES[use](shutil.move(run, tmp_path / "elsewhere"))


def test_a_seal_is_not_valid_for_other_settings_or_with_another_key(
    tmp_path: Path, module: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_manifest(find_checkpoint(run), lambda manifest: None, own=True)
    assert open_checkpoint(find_checkpoint(run)).config.origin is None
    sealed = json.loads((find_checkpoint(run) / "manifest.json").read_text())["seal"]

    def keep_the_seal(manifest: dict[str, Any]) -> None:
        manifest["config"]["env_id"] = f"{MODULE}:Own-v0"

    edit_manifest(find_checkpoint(run), keep_the_seal)
    text = (find_checkpoint(run) / "manifest.json").read_text().rstrip().removesuffix("}")
    (find_checkpoint(run) / "manifest.json").write_text(f'{text}, "seal": "{sealed}"}}')
    with pytest.raises(CheckpointError, match="names code"):
        evaluate(run)
    edit_manifest(find_checkpoint(run), lambda manifest: None, own=True)
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache of another user"))
    with pytest.raises(CheckpointError, match="names code"):
        evaluate(run)


def test_a_strangers_settings_are_not_sealed_when_the_run_goes_on(run: Path, module: Path) -> None:
    from_stranger(run, env_id=f"{MODULE}:Own-v0")
    own_env = RunOptions(show_progress=False, env_factory=lambda: gym.make("rl_training/Chain-v0"))
    resume(run, own_env, total_timesteps=30)
    with pytest.raises(CheckpointError, match="names code"):
        evaluate(run)
    assert not module.exists()


def test_consent_once_makes_the_run_the_users_own(run: Path, module: Path) -> None:
    from_stranger(run, env_id=f"{MODULE}:Own-v0")
    resume_on(run, allow_code=True)
    evaluate(run)


@pytest.mark.parametrize("unsaved", [False, True], ids=["run", "saved agent"])
def test_a_stranger_does_not_choose_where_the_run_is_written(
    unsaved: bool, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    from_stranger(run, output_dir=str(elsewhere))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    source = find_checkpoint(run)
    path = shutil.copytree(source, tmp_path / "saved") if unsaved else run
    result = resume(path, QUIET, total_timesteps=30)
    assert result.run_dir.parent == (here / "runs" if unsaved else run.parent)
    assert not elsewhere.exists()


# --- Files of others -------------------------------------------------------------------------------------------------


def test_pruning_removes_only_what_the_library_wrote(tmp_path: Path) -> None:
    result = train(make_config(tmp_path, total_timesteps=20, keep_checkpoints=1), QUIET)
    folder = result.run_dir / "checkpoints"
    theirs = [
        folder / name for name in ("step_1/photo.jpg", ".cache_of_mine/x", "step_3/manifest.json.old", ".my_file")
    ]
    for file in theirs:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(result.checkpoint, elsewhere)
    (folder / "step_2").symlink_to(elsewhere)
    for name in (".writing_step_000000007_123", ".removing_step_000000008_123"):
        shutil.copytree(result.checkpoint, folder / name)
    (folder / ".latest_123").write_text("step_1")
    resume(result.run_dir, QUIET, total_timesteps=30)
    assert all(file.read_text() == "mine" for file in theirs)
    assert len(list(elsewhere.iterdir())) == 4
    assert {path.name for path in folder.iterdir()} >= {"step_000000030", "latest", "step_2"}
    leftovers = {".writing_step_000000007_123", ".removing_step_000000008_123", ".latest_123"}
    assert not leftovers & {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["checkpoints", "crash", "tensorboard", "metrics.jsonl", ".lock"])
def test_a_run_is_not_written_through_links(name: str, run: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if (run / name).exists():
        (run / name).rename(target)
    else:
        target.mkdir()
    before = sorted(path.name for path in target.iterdir()) if target.is_dir() else target.read_text()
    (run / name).symlink_to(target)
    with pytest.raises((CheckpointError, ConfigError), match=rf"{name}"):
        resume_on(run)
    assert before == (sorted(path.name for path in target.iterdir()) if target.is_dir() else target.read_text())


def test_a_fork_copies_the_files_of_the_checkpoint_and_no_others(run: Path, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").touch()
    checkpoint = find_checkpoint(run)
    (checkpoint / "folder").symlink_to(tmp_path / "private")
    (checkpoint / "device").symlink_to("/dev/null")
    (checkpoint / "nothing").symlink_to("nothing")
    resumed = resume(run, QUIET, total_timesteps=30, output_dir=tmp_path / "forks")
    copied = resumed.run_dir / "checkpoints" / checkpoint.name
    assert {file.name for file in copied.iterdir()} == {"manifest.json", *PARTS}
    saved = DQN.load(run, show_progress=False).save(tmp_path / "saved")
    assert {file.name for file in saved.iterdir()} == {"manifest.json", *PARTS}


def test_a_fork_holds_the_files_that_a_checkpoint_links_to(run: Path, tmp_path: Path) -> None:
    checkpoint = find_checkpoint(run)
    for part in PARTS:
        (checkpoint / part).rename(run / part)
        (checkpoint / part).symlink_to(f"../../{part}")
    resumed = resume(run, QUIET, total_timesteps=30, output_dir=tmp_path / "forks")
    copied = resumed.run_dir / "checkpoints" / checkpoint.name
    assert all((copied / part).is_file() and not (copied / part).is_symlink() for part in PARTS)


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_fork_copies_no_log_without_an_end(kind: str, run: Path, tmp_path: Path) -> None:
    (run / "metrics.jsonl").unlink()
    if kind == "pipe":
        os.mkfifo(run / "metrics.jsonl")
    else:
        (run / "metrics.jsonl").symlink_to("/dev/null")  # as for /dev/zero, which would fill the disk
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl could not be copied .*not a regular file"):
        resume(run, QUIET, total_timesteps=30, output_dir=tmp_path / "forks")


# --- A run remembers its env function --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["make", "Made"])
@pytest.mark.parametrize("use", USES)
def test_a_run_remembers_the_function_that_made_its_envs(use: str, name: str, tmp_path: Path, module: Path) -> None:
    function = getattr(__import__(MODULE), name)
    result = DQN.for_env(function, 20, output_dir=tmp_path, algo_kwargs=SMALL, show_progress=False).learn()
    assert read_run_config(result.run_dir).env_factory == f"{MODULE}:{name}"
    USES[use](result.run_dir)


def test_the_module_of_the_function_is_found_in_the_current_folder(
    tmp_path: Path, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = __import__(MODULE).make
    run = DQN.for_env(function, 20, output_dir=tmp_path, algo_kwargs=SMALL, show_progress=False).learn().run_dir
    sys.modules.pop(MODULE)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(module.parent))])
    monkeypatch.chdir(module.parent)
    assert evaluate(run)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda: gym.make("rl_training/Chain-v0"), r":<lambda>"),
        (type("Callable", (), {"__call__": lambda self: gym.make("rl_training/Chain-v0")})(), r":Callable\(\)"),
    ],
)
def test_a_function_that_cannot_be_imported_is_named_with_the_call_that_works(
    function: Callable[[], Any], named: str, tmp_path: Path
) -> None:
    agent = DQN.for_env(
        function, 20, env_id="rl_training/Chain-v0", output_dir=tmp_path, algo_kwargs=SMALL, show_progress=False
    )
    run = agent.learn().run_dir
    with pytest.raises(ConfigError, match=rf"made by {__name__}{named}.*DQN\.load\(path, env_factory=\.\.\.\)"):
        evaluate(run)
    assert evaluate(run, env_factory=function)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module_here:make", "No module named"),
        (f"{MODULE}:unknown", "no attribute 'unknown'"),
        (f"{MODULE}:not_a_function", "must be a function or a class, found int"),
        ("__main__:make", "no other process can import"),
        ("make", "no other process can import"),
    ],
)
def test_a_reference_that_leads_nowhere_is_named(reference: str, message: str, tmp_path: Path, module: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(make_config(tmp_path, env_factory=reference), QUIET)
