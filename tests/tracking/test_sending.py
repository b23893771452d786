"""Sending runs to trackers: each step once, whatever happens to the run, the tracker or trackers.json."""

import json
import logging
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import rl_training.tracking.sending
import rl_training.tracking.trackers
from builders import make_config
from rl_training import DQN
from rl_training.errors import ConfigError
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.saved_checkpoint import find_checkpoint
from rl_training.launching.pool import Ended
from rl_training.launching.seed_runs import run_seeds
from rl_training.results.run_record import Status
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import RunOptions, resume, train
from rl_training.tracking.feed import Point
from rl_training.tracking.sending import FILE, Sender, choose_trackers
from rl_training.tracking.trackers import TrackedRun, check_address, make_tracker, name_of, without_login
from test_cli import call, fails


class Diary:
    """A tracker that keeps every call in a file: the shortest one that there can be."""

    def __init__(self, *, file: str) -> None:
        self.place = file
        self._file, self._id = Path(file), ""

    def _write(self, **entry: Any) -> None:
        self._file.open("a").write(json.dumps({"id": self._id, **entry}) + "\n")

    def open(self, run: TrackedRun) -> int:
        faults("open")
        self._id = run.memory.setdefault("id", f"{run.name} {len(entries(self._file))}")
        self._write(opened=str(run.parent) if run.parent else "")
        return max(
            (entry["step"] for entry in entries(self._file) if entry["id"] == self._id and "step" in entry), default=-1
        )

    def send(self, points: Sequence[Point]) -> None:
        faults("send")
        for point in points:
            self._write(step=point.step, values=dict(point.values), time=point.time)

    def close(self, status: Status) -> None:
        faults("close")
        self._write(closed=status)


def no_faults(method: str) -> None: ...


faults: Callable[[str], None] = no_faults


def entries(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def sent_steps(file: Path) -> list[int]:
    return [entry["step"] for entry in entries(file) if "step" in entry]


def said(file: Path, word: str) -> list[str]:
    return [entry[word] for entry in entries(file) if word in entry]


def recorded_steps(run_dir: Path) -> list[int]:
    names = ("metrics", "eval")
    return sorted({record["step"] for name in names for record in read_json_lines(run_dir / f"{name}.jsonl")})


@pytest.fixture
def diary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the tracker `diary`, which an installed package provides; it is looked at often."""
    provided = EntryPoint("diary", f"{__name__}:Diary", "rl_training.trackers")
    monkeypatch.setattr("importlib.metadata.EntryPoint.load", lambda self: Diary)
    monkeypatch.setattr(rl_training.tracking.trackers, "entry_points", lambda group: [provided])
    monkeypatch.setattr(rl_training.tracking.sending, "POLL_SECONDS", 0.01)
    return tmp_path / "diary.jsonl"


def options(diary: Path, *callbacks: Callback) -> RunOptions:
    return RunOptions(show_progress=False, callbacks=callbacks, track=[f"diary:file={diary}"])


def start(folder: Path, run_options: RunOptions, **changes: Any) -> Path:
    """Train in `folder`/run: 60 steps, a record every 5, an evaluation every 10 and a checkpoint every 20."""
    settings = {"checkpoint_interval": 20, "log_interval": 5, "eval_interval": 10, **changes}
    return train(make_config(folder, **settings), run_options, run_dir=folder / "run").run_dir


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run) -> None:
        if run.step == self.step:
            run.stop_reason, run.interrupted = "signal", True


QUIET = RunOptions(show_progress=False)


@pytest.fixture(scope="module")
def untracked_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("untracked"), QUIET)


@pytest.fixture
def finished(untracked_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run that was sent nowhere."""
    return Path(shutil.copytree(untracked_run, tmp_path / "run"))


# --- Each step once --------------------------------------------------------------------------------------------------


def test_all_records_are_sent_in_order_and_then_the_end(tmp_path: Path, diary: Path) -> None:
    run_dir = start(tmp_path, options(diary))
    assert sent_steps(diary) == recorded_steps(run_dir) == list(range(5, 61, 5))
    assert said(diary, "closed") == ["finished"]
    by_step = {entry["step"]: entry["values"] for entry in entries(diary) if "step" in entry}
    for record in read_json_lines(run_dir / "metrics.jsonl"):
        assert by_step[record["step"]].items() >= {f"train/{n}": x for n, x in record["metrics"].items()}.items()
    assert [step for step, values in by_step.items() if "eval/return_mean" in values] == list(range(10, 61, 10))


def test_a_run_that_died_past_a_checkpoint_is_not_sent_twice(tmp_path: Path, diary: Path) -> None:
    run_dir = start(tmp_path, options(diary, StopAt(47)))
    assert sent_steps(diary)[-1] == 45
    shutil.rmtree(find_checkpoint(run_dir))  # as if killed: the newest checkpoint is that of step 40
    resume(run_dir, QUIET)  # the choice is remembered
    assert sent_steps(diary) == recorded_steps(run_dir) == list(range(5, 61, 5))
    assert said(diary, "closed") == ["interrupted", "finished"]
    assert len({entry["id"] for entry in entries(diary)}) == 1


def test_what_a_kill_kept_from_being_noted_is_not_sent_again(tmp_path: Path, diary: Path) -> None:
    run_dir = start(tmp_path, options(diary, StopAt(30)))
    noted = json.loads((run_dir / FILE).read_text())
    noted["trackers"][f"diary at {diary}"]["sent_step"] = 15
    (run_dir / FILE).write_text(json.dumps(noted))
    resume(run_dir, QUIET)
    assert sent_steps(diary) == list(range(5, 61, 5))


def test_times_rise_although_a_resumed_run_is_faster(finished: Path, tmp_path: Path, diary: Path) -> None:
    log = finished / "metrics.jsonl"
    text, seconds = log.read_text().splitlines(), iter([1, 2, 30, 40, 5, 6, 41, 42, 43, 44, 45, 46])
    lines = [json.dumps({**json.loads(line), "wall_s": next(seconds)}) + "\n" for line in text]
    log.write_text("".join(lines[:4]))
    (finished / "eval.jsonl").write_text("")
    for _ in range(2):
        call("track", finished, "--to", f"diary:file={diary}")
        log.write_text("".join(lines))
    times = [entry["time"] - entries(diary)[1]["time"] for entry in entries(diary) if "time" in entry]
    assert times == pytest.approx([0, 1, 29, 39, 39.001, 39.002, *range(40, 46)], abs=1e-4)


def test_a_fork_begins_a_new_run_and_names_its_parent(tmp_path: Path, diary: Path) -> None:
    run_dir = start(tmp_path, options(diary))
    again = options(diary)
    fork = resume(run_dir, again, total_timesteps=80, output_dir=tmp_path / "forks").run_dir
    assert said(diary, "opened") == ["", "run at step 60"]
    assert sent_steps(diary) == [*range(5, 61, 5), *range(5, 81, 5)]
    ids = {entry["id"] for entry in entries(diary)}
    assert len(ids) == 2
    assert f"{fork.name} 14" in ids


def test_another_run_in_the_same_folder_is_a_new_run(tmp_path: Path, diary: Path) -> None:
    run_dir = start(tmp_path, options(diary))
    shutil.rmtree(run_dir / "checkpoints")
    start(tmp_path, QUIET, seed=1)
    assert sent_steps(diary) == 2 * list(range(5, 61, 5))
    assert len({entry["id"] for entry in entries(diary)}) == 2


def test_a_run_that_starts_again_from_its_config_goes_on(tmp_path: Path, diary: Path) -> None:
    run_dir = start(tmp_path, options(diary, StopAt(17)))
    shutil.rmtree(run_dir / "checkpoints")
    resume(run_dir, QUIET)
    assert sent_steps(diary) == list(range(5, 61, 5))


# --- Trackers that fail ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["open", "send", "close"])
def test_a_tracker_that_fails_is_reported_once_and_changes_nothing(
    method: str,
    untracked_run: Path,
    tmp_path: Path,
    diary: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(name: str) -> None:
        if name == method:
            raise ConnectionError("refused")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="rl_training"):
        patch.setattr(f"{__name__}.faults", fail)
        run_dir = start(tmp_path, options(diary))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        f"diary at {diary} does not answer; records wait in the run folder: "
        f"rl-training track {run_dir} --to diary:file={diary}"
    ]
    assert read_json_lines(run_dir / "eval.jsonl") == read_json_lines(untracked_run / "eval.jsonl")
    assert call("track", run_dir, "--to", f"diary:file={diary}").exit_code == 0
    assert sent_steps(diary) == list(range(5, 61, 5))
    assert said(diary, "closed") == ["finished"]


def test_a_tracker_that_recovers_gets_everything(tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def fail_twice(name: str) -> None:
        calls.append(name)
        if name == "send" and calls.count("send") <= 2:
            raise OSError("busy")

    monkeypatch.setattr(f"{__name__}.faults", fail_twice)

    class Wait(Callback):
        """Ends the run no earlier than the third attempt."""

        def on_step(self, run: Run) -> None:
            while run.step == 50 and calls.count("send") < 3:
                pass

    run_dir = start(tmp_path, options(diary, Wait()))
    assert sent_steps(diary) == recorded_steps(run_dir)
    assert said(diary, "closed") == ["finished"]


def test_a_tracker_that_hangs_does_not_keep_the_run(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()
    monkeypatch.setattr(f"{__name__}.faults", lambda name: released.wait())
    monkeypatch.setattr(rl_training.tracking.sending, "LAST_SECONDS", 0.05)
    with caplog.at_level(logging.WARNING, logger="rl_training"):
        run_dir = start(tmp_path, options(diary))
    released.set()
    assert f"the last records were not sent in 0 s (diary at {diary}); they wait in {run_dir}" in caplog.text


def test_another_process_that_sends_the_same_run_is_named(
    finished: Path, tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def taken(path: Path, *, wait: bool = False) -> Any:
        raise BlockingIOError

    monkeypatch.setattr(rl_training.tracking.sending, "locked_file", taken)
    assert "failed (another process sends this run there now)" in fails(
        "track", finished, "--to", f"diary:file={diary}"
    )


def test_a_damaged_trackers_json_begins_a_new_run(
    finished: Path, diary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for damage in ("", "{", "[]", '{"trackers": {"diary": {"sent_step": "many"}}}', '{"trackers": 3}'):
        (finished / FILE).write_text(damage)
        Sender(finished, f"diary:file={diary}", Diary(file=str(diary))).pump("finished")
        assert sent_steps(diary)[-12:] == list(range(5, 61, 5))
        assert f"{FILE} is damaged: trackers begin a new run" in caplog.text
    assert len({entry["id"] for entry in entries(diary)}) == 5


# --- The command -----------------------------------------------------------------------------------------------------


def test_track_sends_old_runs_once(finished: Path, tmp_path: Path, diary: Path) -> None:
    first, second = (call("track", tmp_path, "--to", f"diary:file={diary}") for _ in range(2))
    assert (first.exit_code, first.stdout) == (0, f"{finished}  12 steps sent\n")
    assert (second.exit_code, second.stdout) == (0, f"{finished}  nothing new\n")
    assert sent_steps(diary) == recorded_steps(finished)
    other = tmp_path / "other.jsonl"
    assert call("track", finished, "--to", f"diary:file={other}").stdout == f"{finished}  12 steps sent\n"
    assert sent_steps(other) == recorded_steps(finished)


def test_track_follows_a_run_until_nothing_is_trained(
    finished: Path, tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = (finished / "result.json").rename(tmp_path / "result.json")
    looks: list[Path] = []

    def is_in_use(path: Path) -> bool:
        looks.append(path)
        if len(looks) == 3:
            result.rename(finished / "result.json")
        return True

    monkeypatch.setattr("rl_training.results.run_record.is_in_use", is_in_use)
    monkeypatch.setattr("rl_training.commands.track._QUIET_SECONDS", 0.0)
    assert call("track", finished, "--to", f"diary:file={diary}", "--follow").exit_code == 0
    assert sent_steps(diary) == recorded_steps(finished)
    assert (said(diary, "opened"), said(diary, "closed")) == ([""], ["finished"])  # one session


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mlfow", "--to mlfow: there is no such tracker; did you mean 'mlflow'?"),
        ("x", "--to x: there is no such tracker; known: tensorboard, mlflow, wandb, trackio, diary"),
        ("diary:fil=a", "--to diary: unknown option 'fil'; did you mean 'file'?"),
        ("diary", "--to diary cannot be used: Diary.__init__() missing 1 required keyword-only argument: 'file'"),
        ("diary:file", "--to must be like mlflow or wandb:project=rl,mode=offline, got 'diary:file'"),
        ("../x", "--to must be like mlflow or wandb:project=rl,mode=offline, got '../x'"),
        ("tensorboard:x=1", "--to tensorboard: unknown option 'x'; known: none"),
    ],
)
def test_a_choice_that_cannot_be_used_is_named(text: str, message: str, tmp_path: Path, diary: Path) -> None:
    assert fails("track", tmp_path, "--to", text) == f"error: {message}\n"


@pytest.mark.parametrize("name", ["mlflow", "wandb", "trackio"])
def test_a_missing_package_is_named_before_anything_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    said = f"error: --track {name} needs the package {name}"
    path = tmp_path / "config.yaml"
    path.write_text(make_config(tmp_path / "runs").to_yaml())
    for command in (("train", path), ("resume", tmp_path)):
        message = fails(*command, "--track", name)
        assert message.startswith(said)
        assert message.endswith(f'pip install "rl-training[{name}]"\n')
    assert not (tmp_path / "runs").exists()


def test_choices_of_python_are_checked_when_they_are_made(diary: Path) -> None:
    with pytest.raises(TypeError, match=r"track must be a list of trackers, such as \['mlflow'\], got 'mlflow'"):
        RunOptions(track="mlflow")
    with pytest.raises(ConfigError, match="--track diary is given more than once"):
        RunOptions(track=[f"diary:file={diary}", "diary:file=b"])
    with pytest.raises(ConfigError, match="--track nowhere: there is no such tracker"):
        DQN.for_env("CartPole-v1", 10, track=["nowhere"])


def test_seeds_in_processes_of_their_own_are_sent_too(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_all(folders: Sequence[Path], launch: object, *, labels: Sequence[str]) -> list[Ended]:
        return [Ended(resume(folder, QUIET).run_dir, "finished", "") for folder in folders]

    monkeypatch.setattr("rl_training.launching.seed_runs.run_all", run_all)
    run_seeds(make_config(tmp_path, log_interval=30), [3, 4], jobs=2, options=options(diary))
    assert sent_steps(diary) == [30, 60, 30, 60]


# --- Safety ----------------------------------------------------------------------------------------------------------


def test_the_choice_of_a_stranger_is_not_used(tmp_path: Path, diary: Path) -> None:
    run_dir = start(tmp_path, QUIET, total_timesteps=40)
    text = f"diary:file={diary}"
    (run_dir / FILE).write_text(json.dumps({"choices": {"diary": {"text": text, "seal": "0" * 64}}}))
    resume(run_dir, QUIET, total_timesteps=60)
    assert not diary.exists()
    assert choose_trackers(run_dir, [text]) == {"diary": text}
    assert choose_trackers(run_dir, []) == {"diary": text}  # now it has the user's seal


def test_a_chosen_tracker_that_cannot_be_made_any_more_does_not_end_the_run(
    tmp_path: Path, diary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = start(tmp_path, options(diary, StopAt(30)))
    monkeypatch.setattr(rl_training.tracking.trackers, "entry_points", lambda group: [])
    assert resume(run_dir, QUIET).step == 60
    assert "--track diary: there is no such tracker; known: tensorboard, mlflow, wandb, trackio; the run" in caplog.text


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a; rm -rf $HOME `x`", "line\nbreak\x1b[31m", "\udcff"])
def test_hostile_run_names_are_harmless(name: str, finished: Path, tmp_path: Path, diary: Path) -> None:
    hostile = finished.rename(tmp_path / name.replace("/", "_"))
    Sender(hostile, f"diary:file={diary}", make_tracker(f"diary:file={diary}")).pump("finished")
    shown = entries(diary)[0]["id"]
    assert shown.isprintable()
    assert shown.encode()
    assert sent_steps(diary) == recorded_steps(hostile)


def test_names_of_seeds_have_the_experiment_and_long_names_are_cut() -> None:
    assert name_of(Path("/runs/dqn__CartPole-v1__1a2b3c4d/seed3")) == "dqn__CartPole-v1__1a2b3c4d/seed3"
    assert name_of(Path("/runs") / ("x" * 200)) == "x" * 120


def test_logins_are_neither_kept_nor_shown() -> None:
    text = "API request to http://user:secret@127.0.0.1:5000/api failed, as https://token@host did"
    assert without_login(text) == "API request to http://127.0.0.1:5000/api failed, as https://host did"


@pytest.mark.parametrize("uri", ["http://user:secret@host:5000", "https://token@host", "postgresql://u:p@host/db"])
def test_addresses_with_a_login_are_refused_without_showing_it(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"^the uri holds a login, .*set MLFLOW_TRACKING_USERNAME") as caught:
        check_address(uri)
    assert "secret" not in str(caught.value)
    check_address("postgresql://user@host/db")
    check_address("http://127.0.0.1:5000")


def test_a_linked_folder_is_not_written_to(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (finished / "tensorboard").symlink_to(tmp_path / "elsewhere")
    assert "tensorboard is a link, which is not followed" in fails("track", finished, "--to", "tensorboard")
    assert list((tmp_path / "elsewhere").iterdir()) == []
