"""One tracker with its real package: what it holds after kills, a cut connection and a fork; and what it costs.

`trackers.py` starts this module in the virtual environment of the tracker: `python -m benchmarks.tracker_case NAME`
prints one JSON object as its last line.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import gymnasium as gym

from rl_training import Callback, Run, RunOptions, TrainConfig, train
from rl_training.experiment.checkpointing import checkpoint_names, step_of
from rl_training.experiment.config_files import load_config
from rl_training.experiment.json_lines import read_json_lines

KILLS = 3
LONGEST_WAIT = 600.0  # seconds until something must have happened, even on a busy machine
HOSTILE = "<script>alert(1)<script>; $(touch x) \n\x1b[31m'\""
TIMES = ("time/wall_s", "speed/steps_per_s")  # a repeated step has others
SETTINGS: dict[str, Any] = {
    "algo": "dqn",
    "env_id": "CartPole-v1",
    "wrappers": ["benchmarks.tracker_case:Paced"],
    "total_timesteps": 4_000,
    "log_interval": 50,
    "eval_interval": 1_000,
    "eval_episodes": 2,
    "checkpoint_interval": 500,
    "device": "cpu",
    "acceleration": "eager",
    "tensorboard": False,
    "algo_kwargs": {"learning_starts": 100, "train_frequency": 20, "gradient_steps": 1, "hidden_sizes": [16]},
}
COST_STEPS = 40_000  # of `configs/dqn/cartpole.yaml`, compiled if it is worth it

History = dict[str, list[tuple[int, float]]]  # by name: steps and values, in the order in which they are stored


class CaseError(RuntimeError):
    """A tracker holds something else than the run folder."""


class Paced(gym.Wrapper[Any, Any, Any, Any]):
    """Makes a run last about 12 seconds on any machine: records are sent every two."""

    def step(self, action: Any) -> Any:
        time.sleep(0.003)
        return self.env.step(action)


# --- Trackers --------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Place:
    """A tracker that runs here. `histories`: what it holds, by the name of the run in it."""

    choice: str
    histories: Callable[[Path], dict[str, History]]  # of the run in a folder
    parents: Callable[[], list[str]]  # where its forks come from
    cut: Callable[[int], None] | None  # end what the training process of this id sends to, if that is a process
    restore: Callable[[], None] = lambda: None
    environment: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def mlflow_place(folder: Path) -> Iterator[Place]:
    """Start a server with a database."""
    from mlflow import MlflowClient

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    server: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        words = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        words += [
            "--backend-store-uri",
            f"sqlite:///{folder}/mlflow.db",
            "--artifacts-destination",
            str(folder / "files"),
        ]
        with (folder / "server.txt").open("ab") as log:
            command = [sys.executable, "-m", "mlflow", *words]
            server.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True))
        wait_until(lambda: _answers(port), "the MLflow server answers")

    def stop(_: int = 0) -> None:
        os.killpg(server[-1].pid, signal.SIGKILL)
        server[-1].wait()

    def runs() -> list[Any]:
        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("rl-training")
        return list(client.search_runs([experiment.experiment_id])) if experiment else []

    def histories(run_dir: Path) -> dict[str, History]:
        client, run_id = MlflowClient(uri), memory_of(run_dir)["run_id"]
        names = client.get_run(run_id).data.metrics
        return {run_id: {n: [(m.step, m.value) for m in client.get_metric_history(run_id, n)] for n in names}}

    def parents() -> list[str]:
        ids = [run.info.run_id for run in runs()]
        tags = [run.data.tags for run in runs()]
        return [t["rl_training.forked_from"] for t in tags if t.get("mlflow.parentRunId") in ids]

    start()
    try:
        yield Place(
            choice=f"mlflow:uri={uri},artifacts=true", histories=histories, parents=parents, cut=stop, restore=start
        )
    finally:
        stop()


@contextlib.contextmanager
def wandb_place(folder: Path) -> Iterator[Place]:
    """Use offline files."""

    def histories(run_dir: Path) -> dict[str, History]:
        found: dict[str, History] = {}
        for file in run_dir.glob("wandb/offline-run-*/*.wandb"):
            history: History = defaultdict(list)
            for record in wandb_records(file):
                items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
                for name in items:
                    if not name.startswith("_"):
                        history[name].append((int(items["_step"]), float(items[name])))
            found[file.name] = dict(history)
        return found

    def parents() -> list[str]:
        records = [record for file in folder.rglob("*.wandb") for record in wandb_records(file)]
        return [record.run.notes.removeprefix("forked from ") for record in records if record.run.notes]

    yield Place(choice="wandb:mode=offline,artifacts=true", histories=histories, parents=parents, cut=kill_service)


def wandb_records(path: Path) -> Iterator[Any]:
    """Yield the records of an offline file: blocks of 32 KiB in the log format of LevelDB, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        left = 2**15 - at % 2**15
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        if left < 7 or kind == 0:  # the end of a block is filled up
            at += left
            continue
        part += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(part)
            yield record
            part = b""


def kill_service(pid: int) -> None:
    """Kill the process to which W&B passes its records."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    for child in {int(word) for file in children for word in file.read_text().split()}:
        if "wandb-core" in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(child, signal.SIGKILL)
            return
    raise CaseError("there is no process of W&B to kill")


@contextlib.contextmanager
def trackio_place(folder: Path) -> Iterator[Place]:
    """Use a database below `folder`."""
    database = folder / "trackio" / "rl-training.db"

    def histories(run_dir: Path) -> dict[str, History]:
        name, history = memory_of(run_dir)["name"], defaultdict(list)
        with contextlib.closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id", [name])
            for step, values in rows.fetchall():
                for each, value in json.loads(values).items():
                    history[each].append((step, value))
        return {name: dict(history)}

    def parents() -> list[str]:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            configs = [json.loads(text) for (text,) in connection.execute("SELECT config FROM configs")]
        return [config["forked_from"] for config in configs if "forked_from" in config]

    yield Place(
        choice="trackio",
        histories=histories,
        parents=parents,
        cut=None,
        environment={"TRACKIO_DIR": str(folder / "trackio")},
    )


PLACES = {"mlflow": mlflow_place, "wandb": wandb_place, "trackio": trackio_place}


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


# --- What the folder says --------------------------------------------------------------------------------------------


def expected_history(run_dir: Path) -> History:
    """Return what a tracker must hold, from the log files."""
    by_step: dict[int, dict[str, float]] = defaultdict(dict)
    for record in read_json_lines(run_dir / "metrics.jsonl"):
        by_step[record["step"]] |= {f"train/{name}": value for name, value in record["metrics"].items()}
        by_step[record["step"]] |= {"gradient_step": record["gradient_step"], "time/wall_s": record["wall_s"]}
        by_step[record["step"]]["speed/steps_per_s"] = record["steps_per_s"]
    episodes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for record in read_json_lines(run_dir / "eval.jsonl"):
        episodes[record["step"]].append(record)
    for step, of_step in episodes.items():
        returns = [episode["return"] for episode in of_step]
        numbers = {"mean": fmean(returns), "std": pstdev(returns), "min": min(returns), "max": max(returns)}
        by_step[step] |= {f"eval/return_{name}": number for name, number in numbers.items()}
        by_step[step]["eval/length_mean"] = fmean(episode["length"] for episode in of_step)
    history: History = defaultdict(list)
    for step, values in sorted(by_step.items()):
        for name, value in values.items():
            history[name].append((step, float(value)))
    return dict(history)


def check(run_dir: Path, place: Place, when: str) -> int:
    """Compare what the tracker holds with the folder; return the number of steps."""
    held = place.histories(run_dir)
    if len(held) != 1:
        raise CaseError(f"{when}: {len(held)} runs in place of one: {list(held)}")
    (found,) = held.values()
    expected = expected_history(run_dir)
    if found.keys() != expected.keys():
        raise CaseError(f"{when}: names that only one of them has: {sorted(found.keys() ^ expected.keys())}")
    for name, values in expected.items():
        steps = [step for step, _ in found[name]]
        if steps != [step for step, _ in values]:
            raise CaseError(f"{when}: {name} has the steps {steps}, not {[step for step, _ in values]}")
        if name not in TIMES and found[name] != values:
            raise CaseError(f"{when}: {name} has other values")
    return len({step for values in expected.values() for step, _ in values})


def memory_of(run_dir: Path) -> dict[str, str]:
    (entry,) = _entries(run_dir)
    memory: dict[str, str] = entry["memory"]
    return memory


def _entries(run_dir: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads((run_dir / "trackers.json").read_text()).get("trackers", {}).values())
    except FileNotFoundError:
        return []


def wait_until(condition: Callable[[], bool], what: str) -> None:
    patience_ends = time.monotonic() + LONGEST_WAIT
    while not condition():
        if time.monotonic() > patience_ends:
            raise CaseError(f"waited {LONGEST_WAIT:.0f} s in vain until {what}")
        time.sleep(0.01)


# --- Training processes ----------------------------------------------------------------------------------------------


def start(*words: object, place: Place) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "rl_training", *map(str, words)],
        env={**os.environ, **place.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(*words: object, place: Place) -> tuple[str, str]:
    """Run a command to its end; return what it wrote to stdout and stderr."""
    return finish(start(*words, place=place))


def finish(process: "subprocess.Popen[str]") -> tuple[str, str]:
    out, err = process.communicate(timeout=LONGEST_WAIT)
    if process.returncode != 0:
        raise CaseError(f"{process.args!r} ended with {process.returncode}: {err[-2000:]}")
    return out, err


def run_folder(folder: Path) -> Path:
    """Return the only run folder below `folder`, once it is there."""
    wait_until(lambda: len(list(folder.glob("*/config.yaml"))) == 1, "there is a run folder")
    return next(folder.glob("*/config.yaml")).parent


def sent_step(run_dir: Path) -> int:
    return max((entry.get("sent_step", -1) for entry in _entries(run_dir)), default=-1)


def saved_step(run_dir: Path) -> int:
    return max(map(step_of, checkpoint_names(run_dir / "checkpoints")), default=0)


# --- The acceptance test ---------------------------------------------------------------------------------------------


def examine(name: str) -> dict[str, Any]:
    """Train with the tracker, kill it, cut it, fork it; raise `CaseError` if it holds anything else than the folder."""
    with tempfile.TemporaryDirectory(prefix="rl_training_trackers_") as root, PLACES[name](Path(root)) as place:
        folder, began = Path(root), time.monotonic()
        config = folder / "config.yaml"
        config.write_text(TrainConfig(**SETTINGS).to_yaml())
        call("train", config, "--output-dir", folder / "plain", "--quiet", place=place)
        killed_at = _kill_and_resume(config, folder / "killed", place)
        killed = run_folder(folder / "killed")
        steps = check(killed, place, "after the kills")
        for again in (1, 2):
            out, _ = call("track", killed, "--to", place.choice, place=place)
            if "nothing new" not in out or check(killed, place, f"after track {again}") != steps:
                raise CaseError(f"track sent something again: {out}")
        evaluations = read_json_lines(run_folder(folder / "plain") / "eval.jsonl")
        warnings = _cut(config, folder / "cut", place, expected=evaluations) if place.cut else None
        fork = _fork(killed, folder / "forks", place)
        hostile = Path(shutil.copytree(run_folder(folder / "plain"), folder / HOSTILE))
        call("track", hostile, "--to", place.choice, place=place)
        check(hostile, place, "with a hostile name")
        return {
            "outcome": "works",
            "steps": steps,
            "killed_at": killed_at,
            "warnings_when_cut": warnings,
            "fork": fork,
            "seconds": round(time.monotonic() - began, 1),
            "versions": {each: metadata.version(each) for each in (name, "torch")},
        }


def _kill_and_resume(config: Path, folder: Path, place: Place) -> list[list[int]]:
    """Kill the training several times when steps were sent that the newest checkpoint does not have."""
    process = start("train", config, "--output-dir", folder, "--track", place.choice, "--quiet", place=place)
    run_dir, killed_at = run_folder(folder), []
    for _ in range(KILLS):
        wait_until(
            partial(_is_past_a_checkpoint, process, run_dir, sent_step(run_dir)), "steps past a checkpoint are sent"
        )
        time.sleep(random.uniform(0.0, 0.5))
        process.kill()
        process.communicate()
        killed_at.append([saved_step(run_dir), sent_step(run_dir)])
        process = start("resume", run_dir, "--quiet", place=place)
    finish(process)
    return killed_at


def _is_past_a_checkpoint(process: "subprocess.Popen[str]", run_dir: Path, earlier: int) -> bool:
    if process.poll() is not None:
        raise CaseError(f"training ended before it was killed: {process.communicate()[1][-2000:]}")
    saved = saved_step(run_dir)
    return saved > 0 and sent_step(run_dir) > max(earlier, saved)


def _cut(config: Path, folder: Path, place: Place, *, expected: Sequence[Any]) -> int:
    """Cut the connection while a run trains; return the number of warnings. Restore it and send the rest."""
    process = start("train", config, "--output-dir", folder, "--track", place.choice, "--quiet", place=place)
    run_dir = run_folder(folder)
    wait_until(lambda: sent_step(run_dir) > 0, "something is sent")
    assert place.cut is not None
    place.cut(process.pid)
    try:
        _, err = finish(process)
    finally:
        place.restore()
    if read_json_lines(run_dir / "eval.jsonl") != expected:
        raise CaseError("the evaluations of a run whose tracker was cut differ from those without a tracker")
    call("track", run_dir, "--to", place.choice, place=place)
    check(run_dir, place, "after a cut")
    return err.count("records wait in the run folder")


def _fork(parent: Path, folder: Path, place: Place) -> str:
    steps = SETTINGS["total_timesteps"] + 500
    words = ("--output-dir", folder, "--total-timesteps", steps, "--track", place.choice, "--quiet")
    call("resume", parent, *words, place=place)
    check(run_folder(folder), place, "after a fork")
    check(parent, place, "of the parent after a fork")
    found = place.parents()
    expected = f"{parent.name} at step {SETTINGS['total_timesteps']}"
    if found != [expected]:
        raise CaseError(f"the fork names its parent as {found}, not as {expected!r}")
    return found[0]


# --- What it costs ---------------------------------------------------------------------------------------------------


class ThreadTime(Callback):
    """Measures the CPU time of the thread that sends records, as a share of that of training.

    It does not depend on what else the machine does, and bounds what sending takes from a run on one core.
    """

    def __init__(self) -> None:
        self.share = 0.0
        self._started = 0.0

    def on_start(self, run: Run) -> None:
        self._started = time.thread_time()

    def on_step(self, run: Run) -> None:
        if run.step >= run.config.total_timesteps:
            for thread in threading.enumerate():
                if thread.name == "trackers":
                    line = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
                    self.share = int(line.split()[0]) / 1e9 / (time.thread_time() - self._started)


def cost(name: str, repeats: int) -> dict[str, Any]:
    """Train with and without the tracker in turn, in this process."""
    with tempfile.TemporaryDirectory(prefix="rl_training_cost_") as root, PLACES[name](Path(root)) as place:
        os.environ.update(place.environment)
        folder = Path(root)
        settings = {"total_timesteps": COST_STEPS, "output_dir": folder / "runs", "tensorboard": False, "device": "cpu"}
        config = load_config("configs/dqn/cartpole.yaml").updated(**settings)
        _measure(config, ())  # compiles
        speeds: dict[str, list[float]] = {"without": [], "with": []}
        shares = []
        for number in range(repeats):
            kinds = ["without", "with"]
            for kind in kinds if number % 2 else reversed(kinds):  # either may be first
                speed, share = _measure(config, (place.choice,) if kind == "with" else ())
                speeds[kind].append(speed)
                shares += [share] if kind == "with" else []
        return {"steps": COST_STEPS, "log_interval": config.log_interval, "steps_per_s": speeds, "thread_share": shares}


def _measure(config: TrainConfig, track: Sequence[str]) -> tuple[float, float]:
    """Return the steps per second between the first and the last record, and the share of the sending thread."""
    thread = ThreadTime()
    run_dir = train(config, RunOptions(show_progress=False, callbacks=[thread], track=track)).run_dir
    records = read_json_lines(run_dir / "metrics.jsonl")
    first, last = records[0], records[-1]
    seconds = last["wall_s"] - first["wall_s"]
    return round((last["step"] - first["step"]) / seconds, 1), round(thread.share, 5)


if __name__ == "__main__":
    tracker, *repeats = sys.argv[1:]
    print(json.dumps(cost(tracker, int(repeats[0])) if repeats else examine(tracker)))
