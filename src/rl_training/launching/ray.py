"""Ray: workers that are tasks of a Ray cluster, one on this machine by default. Ray starts a killed one again."""

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rl_training.core.extras import require
from rl_training.core.ray_cluster import connect_to_ray
from rl_training.errors import ConfigError
from rl_training.launching.pool import LaunchOptions
from rl_training.launching.worker import work

_WHAT = "--launcher ray"
_OPTIONS = ("address", "num_cpus", "num_gpus")

log = logging.getLogger("rl_training")


def check_ray_options(given: Mapping[str, str]) -> None:
    """Raise `ConfigError` for unknown options, and for numbers that are none."""
    for key, value in given.items():
        if key not in _OPTIONS:
            close = get_close_matches(key, _OPTIONS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"--ray {key}: unknown option{hint} known: {', '.join(_OPTIONS)}")
        if key != "address":
            _number(key, value)


def require_ray() -> None:
    require("ray", extra="ray", what=_WHAT)


def _number(key: str, text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (number := float(text)) < float("inf"):
            return number
    raise ConfigError(f"--ray {key}={text!r}: must be a number >= 0, such as 0.25")


def _work(root: str, retries: int, flags: Sequence[str], folder: str) -> bool:
    if Path(folder).is_dir():  # where the user's modules are; other machines may not have it
        os.chdir(folder)
    return work(Path(root), retries=retries, flags=flags)


class RayWorkers:
    """Workers that are Ray tasks."""

    def __init__(self, options: LaunchOptions) -> None:
        self._options = options
        self._ray = connect_to_ray(_WHAT, options.ray.get("address"))
        needs = {key: _number(key, options.ray[key]) for key in ("num_cpus", "num_gpus") if key in options.ray}
        self._task = self._ray.remote(max_retries=-1, **needs)(_work)
        self._tasks: list[Any] = []

    def alive(self) -> int:
        if self._tasks:
            ended, self._tasks = self._ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)
            for task in ended:
                try:
                    self._ray.get(task)
                except Exception as error:
                    log.warning("a Ray task failed: %s", error)
        return len(self._tasks)

    def start(self, count: int) -> None:
        options = self._options
        arguments = (str(options.root), options.retries, list(options.flags), str(Path.cwd()))
        self._tasks += [self._task.remote(*arguments) for _ in range(count)]

    def close(self) -> None:
        """Make the workers save their runs and end, then leave the cluster."""
        if not self._ray.is_initialized():
            return
        for task in self._tasks:
            self._ray.cancel(task, force=False)
        if self._tasks:
            self._ray.wait(self._tasks, num_returns=len(self._tasks))
        self._ray.shutdown()
