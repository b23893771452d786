"""TensorBoard: event files in the run folder, with the config and the hyperparameters."""

import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import yaml

from rl_training.core.durable_files import open_log
from rl_training.experiment.run_dir import check_no_links
from rl_training.results.run_record import Status
from rl_training.tracking.feed import Point
from rl_training.tracking.trackers import TrackedRun

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter


class TensorBoard:
    """Writes to the folder `tensorboard` of the run.

    Not with PyTorch's `SummaryWriter`: its thread prints a traceback when the disk is full.
    """

    place = ""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._writer: RecordWriter | None = None

    def open(self, run: TrackedRun) -> int:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        check_no_links(run.record.path)
        folder = run.record.path / "tensorboard"
        folder.mkdir(exist_ok=True)
        held = run.sent_step if any(folder.glob("events.*")) else -1
        # TensorBoard reads the files in the order of their names.
        self._file = open_log(folder / f"events.out.tfevents.{time.time_ns():019}.{os.getpid()}")
        self._writer = RecordWriter(self._file)
        self._write(time.time(), file_version="brain.Event:2")
        # Hides later steps, which a process wrote that was killed before it noted them as sent.
        self._write(time.time(), step=held + 1, session_log=SessionLog(status=SessionLog.START))
        if held < 0:
            for summary in _settings(run):
                self._write(time.time(), summary=summary)
        return held

    def send(self, points: Sequence[Point]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        assert self._file is not None
        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            self._write(point.time, step=point.step, summary=Summary(value=values))
        self._file.flush()

    def close(self, status: Status) -> None:
        assert self._file is not None
        self._file.close()

    def _write(self, wall_time: float, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        assert self._writer is not None
        self._writer.write(Event(wall_time=wall_time, **content).SerializeToString())


def _settings(run: TrackedRun) -> list[Any]:
    """Return the config as text and its values as hyperparameters, by which TensorBoard compares runs."""
    from torch.utils.tensorboard.summary import hparams, text

    values = {name.removeprefix("algo_kwargs."): value for name, value in run.record.values.items()}
    plain = {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in values.items()
    }
    config = yaml.safe_dump(run.config, sort_keys=False)
    return [text("config", f"```\n{config}```"), *hparams(plain, {"eval/return_mean": 0.0})]
