"""MLflow's own client: one run whatever fails, and keys of the job alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.values import launch_spec
from tests.trainer.mlflow_server import MlflowServer, mlflow_server

from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import TrackerSpec
from frenzy.core.values.run_files import ExitCode
from frenzy.trainer import files
from frenzy.trainer.trackers.mlflow_tracker import MlflowTracker
from frenzy.trainer.trackers.tracker import Ending, Point, TrackedAttempt

NEW = TrackedRun(kind="mlflow", tracker_run="run-1")


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that a tracker's process has of its own, and a home with a password in it."""
    for name, value in (("ALLOW_FILE_STORE", "true"), ("HTTP_REQUEST_MAX_RETRIES", "0"), ("HTTP_REQUEST_TIMEOUT", "5")):
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".mlflow").mkdir()
    login = "[mlflow]\nmlflow_tracking_username = airflow\nmlflow_tracking_password = of-its-own\n"
    (tmp_path / ".mlflow/credentials").write_text(login)


def attempt(run_dir: str, scratch: Path, server: MlflowServer | None = None) -> TrackedAttempt:
    spec = launch_spec(run_dir)
    labels = {"label2id": {"C++ (the language)": 0, "a//b": 1}}
    job = replace(spec.job, model=replace(spec.job.model, config={**(spec.job.model.config or {}), **labels}))
    tracker = TrackerSpec(kind="mlflow", uri=server.url) if server else TrackerSpec(kind="mlflow", mode="offline")
    return TrackedAttempt(replace(spec, job=job), tracker, scratch)


def test_names_that_mlflow_does_not_take_become_ones_that_it_takes(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    asked = attempt(str(tmp_path / "run"), tmp_path)
    known = MlflowTracker(asked).open(NEW, first_step=1)
    params = MlflowClient(tracking_uri=Path(known.place).as_uri()).get_run(known.tracker_run).data.params
    assert {params["model.config.label2id.C__ _the language_"], params["model.config.label2id.a__b"]} == {"0", "1"}


def test_a_try_after_one_that_failed_makes_no_second_run(tmp_path: Path) -> None:
    with mlflow_server() as server:
        server.refuses.append("runs/log-batch")
        tracker = MlflowTracker(attempt(str(tmp_path / "run"), tmp_path, server))
        with pytest.raises(Exception, match="REFUSED"):
            tracker.open(NEW, first_step=1)
        server.refuses.clear()
        known = tracker.open(NEW, first_step=1)
    assert list(server.runs) == [known.tracker_run]


def test_a_password_of_whoever_airflow_runs_as_is_sent_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "of-the-job")
    with mlflow_server() as server:
        MlflowTracker(attempt(str(tmp_path / "run"), tmp_path, server)).open(NEW, first_step=1)
    assert server.authorizations == {"Bearer of-the-job"}


def test_a_run_that_was_cancelled_is_killed_and_one_that_was_moved_goes_on(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    asked = attempt(str(tmp_path / "run"), tmp_path)
    for code, status in (
        (ReasonCode.CANCELLED_BY_USER, "KILLED"),
        (ReasonCode.MEMORY_PRESSURE_FORECAST, "SCHEDULED"),
    ):
        tracker = MlflowTracker(asked)
        known = tracker.open(NEW, first_step=1)
        tracker.close(Ending.of(ExitCode.CHECKPOINTED, Reason(code=code)))
        client = MlflowClient(tracking_uri=Path(known.place).as_uri())
        assert client.get_run(known.tracker_run).info.status == status


def test_files_that_could_not_be_kept_are_not_replaced_by_older_ones(tmp_path: Path) -> None:
    asked = attempt(f"memory://{tmp_path.name}/run", tmp_path / "scratch")
    tracker = MlflowTracker(asked)
    known = tracker.open(NEW, first_step=1)
    tracker.log([Point(step=1, time_s=0.0, values={"train/loss": 2.0})])
    asked.keep_files()
    tracker.log([Point(step=2, time_s=0.0, values={"train/loss": 1.0})])
    assert tracker.open(known, first_step=3).last_step == 2
    asked.keep_files()
    (metric,) = asked.folder.glob(f"*/{known.tracker_run}/metrics/train/loss")
    assert len(metric.read_text().splitlines()) == 2
    place = f"{asked.place}/{metric.relative_to(asked.folder).as_posix()}"
    assert files.read_text(place) == metric.read_text()
