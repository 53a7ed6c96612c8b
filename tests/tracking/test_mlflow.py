"""What MLflow keeps is what was told, once, however often a run was stopped; and MLflow is silent."""

import os
from dataclasses import replace
from importlib.util import find_spec

import pytest

from bdfl.tracking import Outcome, TrackedRun, open_tracker
from bdfl.tracking.tracker import Tracking

pytestmark = [
    pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed"),  # not imported here: we do first
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # MLflow's own
]

RUN = TrackedRun(
    name="mine", experiment="small", identity="ab" * 32, parameters={"seed": 3, "a.b": "text"}, document="x = 1"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a database, which takes MLflow seconds to begin."""
    return tmp_path_factory.mktemp("mlflow") / "kept"


def tell(folder, run, rounds, *, outcome=Outcome.FINISHED, files=()):
    tracker = open_tracker(f"mlflow:{folder}")
    tracker.begin(run)
    for round in rounds:
        tracker.round(round, {"time/delay_s": 0.5 * round, "learning/loss": 1.0 / round})
    tracker.finish(outcome, files)


def read(folder, experiment):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return client, found


def test_numbers_parameters_and_files_are_kept_once_over_all_stops(folder, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MLflow would put files, were it not told where
    page = tmp_path / "report.html"
    page.write_text("<p>report</p>")
    tell(folder, RUN, [1, 2], outcome=Outcome.INTERRUPTED)
    client, [run] = read(folder, "small")
    assert run.info.status == "KILLED"
    tell(folder, replace(RUN, is_continued=True), range(1, 5), files=[page])
    client, [run] = read(folder, "small")
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.params == {"seed": "3", "a.b": "text"}
    history = client.get_metric_history(run.info.run_id, "time/delay_s")
    assert sorted((metric.step, metric.value) for metric in history) == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]
    assert {artifact.path for artifact in client.list_artifacts(run.info.run_id)} == {"report.html", "scenario.toml"}
    tell(folder, RUN, [1])
    tell(folder, replace(RUN, identity="cd" * 32, is_continued=True), [1])
    assert len(read(folder, "small")[1]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert capfd.readouterr() == ("", "")
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_long_runs_are_sent_in_batches_that_lose_nothing(folder):
    tell(folder, replace(RUN, experiment="long"), range(1, 700))
    client, [run] = read(folder, "long")
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "learning/loss")]
    assert sorted(steps) == list(range(1, 700))


def test_a_server_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    lines = []
    tracking = Tracking({"mlflow": open_tracker("mlflow:http://127.0.0.1:9")}, lines.append)
    tracking.begin(RUN)
    tracking.tell(1, {"time/delay_s": 1.0})
    tracking.finish(Outcome.FINISHED)
    assert len(lines) == 1
    assert lines[0].endswith("; going on without it")
