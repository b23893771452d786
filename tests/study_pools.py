"""Pools without processes: one that writes runs as if they had been trained, and one that trains in this process."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_dir import read_run_config
from rl_training.launching.pool import Ended
from rl_training.runtime.trainer import RunOptions, resume

Returns = Callable[[Mapping[str, Any], int], Sequence[float]]  # of the evaluations, by settings and seed


class QueuePool:
    """Runs `jobs` of the runs that were submitted, a part of each per call of `ended`."""

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs
        self.waiting: list[Path] = []
        self.submitted: list[Path] = []
        self.stopped: list[Path] = []
        self._ended: list[Ended] = []

    def submit(self, folder: Path) -> None:
        self.waiting.append(folder)
        self.submitted.append(folder)

    def running(self) -> list[Path]:
        return self.waiting[: self.jobs]

    def ended(self) -> list[Ended]:
        for folder in self.running():
            end = self.run(folder)
            if end is not None:
                self.waiting.remove(folder)
                self._ended.append(end)
        ended, self._ended = self._ended, []
        return ended

    def run(self, folder: Path) -> Ended | None:
        raise NotImplementedError

    def stop(self, folder: Path) -> None:
        self.waiting.remove(folder)
        self.stopped.append(folder)
        self._ended.append(Ended(folder, "interrupted"))

    def close(self) -> None:
        self.waiting.clear()


class PretendPool(QueuePool):
    """Writes one evaluation of a run per call: the next of those that a function returns for settings and seed.

    A run with fewer returns than evaluations fails after them.
    """

    def __init__(self, returns: Returns, jobs: int = 1) -> None:
        super().__init__(jobs)
        self._returns = returns
        self._configs: dict[Path, TrainConfig] = {}

    def run(self, folder: Path) -> Ended | None:
        config = self._configs[folder] = self._configs.get(folder) or read_run_config(folder)
        returns = self._returns(config.algo_kwargs, config.seed)
        file = folder / "eval.jsonl"
        lines = file.read_text().splitlines() if file.is_file() else []
        done = len(lines) // config.eval_episodes
        if done < len(returns):
            records = _evaluation(config, done + 1, returns[done])
            file.write_text("".join(f"{line}\n" for line in [*lines, *records]))
            return None
        if done * config.eval_interval < config.total_timesteps:
            return Ended(folder, "failed", "weights are not finite")
        final = [json.loads(line) for line in lines[-config.eval_episodes :]]
        (folder / "result.json").write_text(json.dumps({"step": config.total_timesteps, "wall_s": 1.0, "eval": final}))
        return Ended(folder, "finished")


def _evaluation(config: TrainConfig, number: int, value: float) -> list[str]:
    record = {"step": number * config.eval_interval, "return": value, "length": 1}
    return [json.dumps({**record, "episode": episode}) for episode in range(config.eval_episodes)]


class TrainingPool(QueuePool):
    """Trains each run in this process."""

    def run(self, folder: Path) -> Ended:
        resume(folder, RunOptions(show_progress=False))
        return Ended(folder, "finished")
