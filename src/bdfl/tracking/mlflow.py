"""MLflow tracker: on a server or in a local database. MLflow's telemetry stays off.

Metrics are sent in batches every few seconds. A resumed run is found by its tags; rounds already there are not sent
again.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bdfl.errors import require
from bdfl.tracking.tracker import DELAY, Outcome, TrackedRun, UnknownTracker

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

_NAME_TAG, _IDENTITY_TAG = "bdfl.name", "bdfl.identity"
_MOST_AT_A_TIME = 500  # metrics; MLflow accepts 1000
_EVERY_S = 2.0
_STATUS = {Outcome.FINISHED: "FINISHED", Outcome.INTERRUPTED: "KILLED", Outcome.FAILED: "FAILED"}
# Defaults: quiet, and an unreachable server does not delay a run for minutes.
_SETTINGS = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def open_mlflow(where: str) -> "MlflowTracker":
    """Open a tracker that writes to `where`: a folder for a database, or any tracking URI of MLflow."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # before the import
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    require("--track mlflow", "mlflow", "sqlalchemy")
    if not where:
        raise UnknownTracker("mlflow: no place given, mlflow:FOLDER or mlflow:URI expected")
    return MlflowTracker(where)


class MlflowTracker:
    """Writes runs to a tracking URI, one at a time; experiments are named after scenarios."""

    def __init__(self, where: str) -> None:
        self._folder = None if ":" in where else Path(where).absolute()
        self._uri = where if self._folder is None else f"sqlite:///{self._folder / 'mlflow.db'}"
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._known: set[int] = set()  # rounds already there
        self._waiting: list[Metric] = []
        self._sent_s = 0.0

    def begin(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        client = self._client = MlflowClient(self._uri)
        experiment = self._experiment(client, run.experiment)
        self._waiting, self._known = [], set()
        self._sent_s = time.monotonic()
        found = _find_run(client, experiment, run) if run.is_continued else None
        if found is not None:
            self._run_id = found
            self._known = {metric.step for metric in client.get_metric_history(found, DELAY)}
            client.update_run(found, status="RUNNING")
            return
        tags = {_NAME_TAG: run.name, _IDENTITY_TAG: run.identity, "mlflow.note.content": run.description}
        self._run_id = client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        client.log_batch(self._run_id, params=[Param(key, str(value)) for key, value in run.parameters.items()])
        if run.document:
            client.log_text(self._run_id, run.document, "scenario.toml")

    def round(self, round: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        if round in self._known:
            return
        now_ms = time.time_ns() // 10**6
        self._waiting += [Metric(name, value, now_ms, round) for name, value in values.items()]
        if len(self._waiting) >= _MOST_AT_A_TIME or time.monotonic() - self._sent_s >= _EVERY_S:
            self._send()

    def finish(self, outcome: Outcome, files: Sequence[Path]) -> None:
        if self._client is None:
            return
        self._send()
        for path in files:
            self._client.log_artifact(self._run_id, str(path))
        self._client.set_terminated(self._run_id, _STATUS[outcome])

    def _send(self) -> None:
        assert self._client is not None
        if self._waiting:
            self._client.log_batch(self._run_id, metrics=self._waiting)
        self._waiting, self._sent_s = [], time.monotonic()

    def _experiment(self, client: "MlflowClient", name: str) -> str:
        found = client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        artifacts = None if self._folder is None else (self._folder / "artifacts").as_uri()
        return str(client.create_experiment(name, artifact_location=artifacts))


def _find_run(client: "MlflowClient", experiment: str, run: TrackedRun) -> str | None:
    """Return the newest run of this name and identity."""
    same = f"tags.`{_IDENTITY_TAG}` = '{run.identity}'"
    for found in client.search_runs([experiment], same, order_by=["attributes.start_time DESC"]):
        if found.data.tags.get(_NAME_TAG) == run.name:
            return str(found.info.run_id)
    return None
