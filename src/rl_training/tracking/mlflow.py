"""MLflow: a tracking server, or a database such as sqlite:///mlflow.db."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.results.run_record import Status
from rl_training.tracking.feed import Point
from rl_training.tracking.trackers import PROJECT, TrackedRun, artifacts_of, check_address, switch, without_login

if TYPE_CHECKING:
    from mlflow import MlflowClient

_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_MOST_METRICS, _MOST_PARAMS = 1_000, 100  # in one request
_LONGEST_NAME, _LONGEST_VALUE = 250, 6_000
_GONE = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")
_VARIABLES = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # MLflow's own values add up to minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is for results
}


class Mlflow:
    """One run in an experiment of MLflow. Logins come from MLflow's own variables, such as MLFLOW_TRACKING_TOKEN."""

    def __init__(self, *, uri: str = "", experiment: str = PROJECT, artifacts: str = "false") -> None:
        import mlflow

        check_address(uri)
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
        self._uri = uri or mlflow.get_tracking_uri()
        self._experiment = experiment
        self._artifacts = switch("artifacts", artifacts)
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._path: Path | None = None

    @property
    def place(self) -> str:
        return without_login(self._uri) + (f", experiment {self._experiment}" if self._experiment != PROJECT else "")

    def open(self, run: TrackedRun) -> int:
        from mlflow import MlflowClient

        with _answering():
            self._client, self._path = MlflowClient(self._uri), run.record.path
            self._run_id = run.memory.get("run_id", "")
            if self._run_id:
                held = self._held_step()
                if held is not None:
                    self._client.update_run(self._run_id, status="RUNNING")
                    return held
            self._run_id = self._create(run)
        run.memory["run_id"] = self._run_id
        return -1

    def send(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        requests: list[list[Metric]] = [[]]
        for point in points:
            time = int(1000 * point.time)
            metrics = [Metric(_name(name), value, time, point.step) for name, value in point.values.items()]
            if len(requests[-1]) + len(metrics) > _MOST_METRICS:  # a step is stored as a whole or not at all
                requests.append([])
            requests[-1] += metrics[:_MOST_METRICS]
        assert self._client is not None
        with _answering():
            for request in requests:
                self._client.log_batch(self._run_id, metrics=request)

    def close(self, status: Status) -> None:
        assert self._client is not None
        assert self._path is not None
        if status == "running":
            return
        with _answering():
            if self._artifacts and status == "finished":
                with artifacts_of(self._path) as files:
                    for file in files:
                        self._client.log_artifact(self._run_id, str(file))
            self._client.set_terminated(self._run_id, _STATUS[status])

    def _held_step(self) -> int | None:
        """Return the last step that MLflow has of the run, -1 for none; None if the run was deleted there."""
        from mlflow.exceptions import MlflowException

        assert self._client is not None
        try:
            found = self._client.get_run(self._run_id)
        except MlflowException as error:
            if error.error_code in _GONE:
                return None
            raise
        if found.info.lifecycle_stage != "active":
            return None
        # Every record of metrics has the wall time, and every evaluation the same names.
        of_evaluations = [name for name in found.data.metrics if name.startswith("eval/")]
        names = [name for name in ("time/wall_s", *of_evaluations[:1]) if name in found.data.metrics]
        steps = [metric.step for name in names for metric in self._client.get_metric_history(self._run_id, name)]
        return max(steps, default=-1)

    def _create(self, run: TrackedRun) -> str:
        from mlflow.entities import Param

        assert self._client is not None
        tags = {"rl_training.algo": run.record.algo, "rl_training.env_id": run.record.env_id}
        if run.parent is not None:
            tags["rl_training.forked_from"] = str(run.parent)
            if "run_id" in run.parent.memory:
                tags["mlflow.parentRunId"] = run.parent.memory["run_id"]
        created = self._client.create_run(self._experiment_id(), run_name=run.name, tags=tags)
        params = [Param(_name(name), _text(value)) for name, value in run.record.values.items()]
        run_id: str = created.info.run_id
        for start in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + _MOST_PARAMS])
        return run_id

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        assert self._client is not None
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            with contextlib.suppress(MlflowException):  # another process may create it at the same time
                return str(self._client.create_experiment(self._experiment))
            found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            raise ConnectionError(f"MLflow has no experiment {self._experiment!r}")
        return str(found.experiment_id)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Raise `ConnectionError` if the server cannot be reached."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if str(error).startswith("API request to ") and "failed with" in str(error):
            raise ConnectionError(without_login(str(error))) from None
        raise


def _name(name: str) -> str:
    """Return a name that MLflow accepts: letters, digits and `_-. /`, and no path that leads elsewhere."""
    parts = [part if part.strip(".") else "_" for part in re.sub(r"[^\w. /-]", "_", name).split("/")]
    return "/".join(parts)[:_LONGEST_NAME]


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:_LONGEST_VALUE]
