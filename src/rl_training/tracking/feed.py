"""The records of a run as points for a tracker: one per step, in order, once everything of the step is written.

Trackers draw what they are sent and forget nothing. So a step is handed on only when its evaluation is there, too, and
the reader follows files that grow, that a resume truncates, or that end with an unfinished line.
"""

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from rl_training.core.durable_files import open_file
from rl_training.results.run_record import RunRecord, Status, is_episode, is_number, parsed


@dataclass(frozen=True, slots=True)
class Point:
    """What a run recorded at one step. `time`: the start of the run plus the seconds of training, in Unix time."""

    step: int
    values: Mapping[str, float]
    time: float


class Feed:
    """Reads metrics.jsonl and eval.jsonl of a run folder while they grow."""

    def __init__(self, path: Path) -> None:
        self._run = RunRecord(path)  # read once: its settings do not change, and parsing them takes milliseconds
        self._start_again()

    def _start_again(self) -> None:
        # In this order: when a record of metrics is there, the evaluations of all steps before it are, too.
        self._files = [_GrowingFile(self._run.path / f"{name}.jsonl") for name in ("metrics", "eval")]
        self._records: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self._newest = -1  # step
        self._wall_s = 0.0  # of the latest point: a step that was only evaluated has none of its own

    def points(self, status: Status, *, after: int) -> list[Point]:
        """Return the complete steps after the step `after`; those up to it are forgotten. `status`: of the run."""
        self._read()
        for step in [step for step in self._records if step <= after]:
            del self._records[step]
        wanted = self._run.config.get("eval_episodes")
        episodes = wanted if isinstance(wanted, int) else 1
        started = _start_time(self._run)
        points = []
        for step in sorted(self._records):
            records = self._records[step]
            if self._is_written(step, status, episodes):
                values = _values(records, episodes)
                self._wall_s = values.get("time/wall_s", self._wall_s)
                points.append(Point(step, values, started + self._wall_s))
        return [point for point in points if point.values]

    def _read(self) -> None:
        for file in self._files:
            lines = file.new_lines()
            if lines is None:  # the file was truncated by a resume, or replaced
                self._start_again()
                self._read()
                return
            for record in parsed(lines):
                self._records[record["step"]].append(record)
                self._newest = max(self._newest, record["step"])

    def _is_written(self, step: int, status: Status, episodes: int) -> bool:
        """Return whether nothing more comes for this step; a resume repeats an evaluation that was interrupted."""
        if step < self._newest or status == "finished" or not _is_evaluated(self._run.config, step):
            return True
        return status != "running" and _has_evaluation(self._records[step], episodes)


class _GrowingFile:
    """Reads the lines that were added to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._last = b""  # the line before the offset

    def new_lines(self) -> list[bytes] | None:
        """Return the new lines, without an unfinished last one; None if what was read before is not there any more."""
        content = b""
        with contextlib.suppress(FileNotFoundError), open_file(self._path) as file:
            file.seek(self._offset - len(self._last))
            content = file.read()
        if not content.startswith(self._last):
            return None
        lines = content[len(self._last) : content.rfind(b"\n") + 1].split(b"\n")[:-1]
        if lines:
            self._offset += sum(map(len, lines)) + len(lines)
            self._last = lines[-1] + b"\n"
        return lines


def _is_evaluated(config: Mapping[str, Any], step: int) -> bool:
    """Return whether the policy is evaluated at this step: at every interval that the envs' steps cross, and last."""
    interval, num_envs, last = (config.get(name) for name in ("eval_interval", "num_envs", "total_timesteps"))
    if isinstance(last, int) and step >= last:
        return True
    if not isinstance(interval, int) or interval < 1:
        return False
    return step // interval > (step - (num_envs if isinstance(num_envs, int) else 1)) // interval


def _has_evaluation(records: Sequence[Mapping[str, Any]], episodes: int) -> bool:
    return sum(map(is_episode, records)) >= episodes or any("held_out" in record for record in records)


def _values(records: Sequence[Mapping[str, Any]], episodes: int) -> dict[str, float]:
    """Return the named numbers of one step; those of an evaluation only if all its episodes are there."""
    values: dict[str, Any] = {}
    for record in records:
        metrics, held_out = record.get("metrics"), record.get("held_out")
        if isinstance(metrics, dict):
            # A name with a group is that of a callback (`run.log`).
            values |= {name if "/" in name else f"train/{name}": value for name, value in metrics.items()}
            values["gradient_step"] = record.get("gradient_step")
            values["time/wall_s"] = record.get("wall_s")
            values["speed/steps_per_s"] = record.get("steps_per_s", values.get("speed/steps_per_s"))
        elif isinstance(held_out, dict):
            values |= {f"eval/{name}": value for name, value in held_out.items()}
    played = [record for record in records if is_episode(record)]
    if len(played) >= max(episodes, 1):
        returns = [float(episode["return"]) for episode in played]
        values |= {
            "eval/return_mean": fmean(returns),
            "eval/return_std": pstdev(returns),
            "eval/return_min": min(returns),
            "eval/return_max": max(returns),
            "eval/length_mean": fmean(float(episode["length"]) for episode in played),
        }
    return {name: float(value) for name, value in values.items() if is_number(value)}


def _start_time(run: RunRecord) -> float:
    """Return when the run started, in Unix time; if it did not record that, when its config was written."""
    for start in run.starts[:1]:
        with contextlib.suppress(TypeError, ValueError, KeyError):
            return datetime.fromisoformat(start["started"]).timestamp()
    return (run.path / "config.yaml").stat().st_mtime
