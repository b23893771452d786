"""Weights & Biases, online or as an offline file in the run folder."""

import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.run_dir import check_no_links, read_run_config
from rl_training.results.run_record import Status
from rl_training.tracking.feed import Point
from rl_training.tracking.trackers import PROJECT, TrackedRun, artifacts_of, switch

_EXIT_CODES = {"finished": 0, "running": 0, "interrupted": 75, "failed": 1}
_MODES = ("", "online", "offline")


class Wandb:
    """One run of a project. W&B itself looks for the login: `wandb login`, or WANDB_API_KEY.

    An offline file cannot be continued: a resumed run writes a new one with all its steps, which replaces the old one.
    """

    def __init__(self, *, project: str = PROJECT, entity: str = "", mode: str = "", artifacts: str = "false") -> None:
        if mode not in _MODES:
            raise ConfigError(f"mode must be online or offline, got {mode!r}")
        import wandb

        self._project, self._entity = project, entity
        self._is_offline = (mode or wandb.setup().settings.mode) != "online"
        self._artifacts = switch("artifacts", artifacts)
        self._run: Any = None
        self._path: Path | None = None

    @property
    def place(self) -> str:
        project = f"{self._entity}/{self._project}" if self._entity else self._project
        return f"project {project}{', offline' if self._is_offline else ''}"

    def open(self, run: TrackedRun) -> int:
        import wandb

        check_no_links(run.record.path)
        known = run.memory.get("id") if not self._is_offline else None
        self._path = run.record.path
        self._run = wandb.init(
            id=known or secrets.token_hex(4),
            project=self._project,
            entity=self._entity or None,
            group=read_run_config(run.record.path).digest(),
            name=run.name,
            config=run.config,
            notes=f"forked from {run.parent}" if run.parent else None,
            mode="offline" if self._is_offline else "online",
            resume="allow",
            reinit="create_new",
            dir=str(run.record.path),
            # Silent: it would ask for a login in the middle of training.
            settings=wandb.Settings(console="off", save_code=False, silent=True),
        )
        if self._is_offline:
            _remove_replaced(run.record.path / "wandb", run.memory.get("folder", ""))
            run.memory["folder"] = Path(self._run.dir).parent.name
        run.memory["id"] = self._run.id
        return int(self._run.starting_step) - 1

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log(dict(point.values), step=point.step)

    def close(self, status: Status) -> None:
        import wandb

        if self._artifacts and status == "finished":
            assert self._path is not None
            with artifacts_of(self._path) as files:
                artifact = wandb.Artifact(f"run-{self._run.id}", type="run")
                for file in files:
                    artifact.add_file(str(file))
                self._run.log_artifact(artifact)
                self._run.finish(exit_code=_EXIT_CODES[status])
        else:
            self._run.finish(exit_code=_EXIT_CODES[status])


def _remove_replaced(folder: Path, name: str) -> None:
    """Remove the offline file of an earlier start, unless it was uploaded: the new one holds all its steps."""
    old = folder / name
    if re.fullmatch(r"offline-run-[\w-]+", name) and old.is_dir() and not any(old.glob("*.synced")):
        shutil.rmtree(old, ignore_errors=True)
