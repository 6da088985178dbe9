"""Trackers of real attempts: their own libraries read back what a run that moved has left."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.launching import Case, LaunchServer, forget_checkpoint, losses
from tests.trainer.mlflow_server import mlflow_server
from tests.trainer.test_scripts import recipe

from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.values import codec
from frenzy.core.values.run_files import ExitCode, RunPaths


def tracked(case: Case, kind: str) -> TrackedRun:
    return codec.loads(TrackedRun, Path(RunPaths(case.run_dir).tracked(kind)).read_text())


def two_attempts(server: LaunchServer, case: Case) -> tuple[Case, Case]:
    """Steps 1 to 5 with a checkpoint of step 4, lost at step 5; then 5 to 8."""
    first = replace(case, num_steps=5)
    assert server.run(first).exit_code == ExitCode.DONE
    forget_checkpoint(case, 5)
    second = replace(case, attempt=2, num_steps=8)
    done = server.run(second)
    assert (done.exit_code, done.resumed_from_step) == (ExitCode.DONE, 4), done
    return first, second


def test_tensorboard_has_one_curve_of_all_attempts(server: LaunchServer, text: str, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    job = {"tracking": [{"kind": "tensorboard"}], "checkpoint": {"every_steps": 4}}
    case = Case(run_dir=str(tmp_path / "run"), data=text, job={**job, "validation": {"every_steps": 4}})
    first, second = two_attempts(server, case)
    known = tracked(case, "tensorboard")
    assert (known.last_step, known.problem) == (8, "")
    read = EventAccumulator(known.place)
    read.Reload()
    curve = read.Scalars("train/loss")
    assert [each.step for each in curve] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [each.value for each in curve] == pytest.approx(losses(first)[:4] + losses(second), rel=1e-6)
    assert [each.step for each in read.Scalars("validation/loss")] == [4, 8]


def test_wandb_offline_has_each_step_once(server: LaunchServer, text: str, tmp_path: Path) -> None:
    job = {"tracking": [{"kind": "wandb", "mode": "offline"}], "checkpoint": {"every_steps": 4}}
    case = Case(run_dir=str(tmp_path / "run"), data=text, job=job)
    first, second = two_attempts(server, case)
    known = tracked(case, "wandb")
    assert (known.last_step, known.problem) == (8, "")
    runs = sorted(Path(known.place).glob("wandb/offline-run-*"))
    assert {each.name.partition("-run-")[2].partition("-")[2] for each in runs} == {known.tracker_run}
    told = [point for each in runs for point in points_of_wandb(next(each.glob("*.wandb")))]
    assert [point["_step"] for point in told] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [point["train/loss"] for point in told] == pytest.approx(losses(first) + losses(second)[1:])


def points_of_wandb(file: Path) -> list[dict[str, Any]]:
    from wandb.proto import wandb_internal_pb2

    found = []
    for data in log_records(file.read_bytes()):
        kept = wandb_internal_pb2.Record()
        kept.ParseFromString(data)
        if kept.HasField("history"):
            items = {each.key or "/".join(each.nested_key): each.value_json for each in kept.history.item}
            found.append({name: json.loads(value) for name, value in items.items()})
    return found


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of a log as LevelDB writes it: blocks of 32 KiB, of parts with checksum, length and kind."""
    place, record = 7, b""
    while place < len(content):
        if 2**15 - place % 2**15 < 7:
            place += 2**15 - place % 2**15
            continue
        length, kind = struct.unpack_from("<4xHB", content, place)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def test_mlflow_offline_goes_on_with_its_run(server: LaunchServer, text: str, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    job = {"tracking": [{"kind": "mlflow", "mode": "offline", "project": "small"}], "checkpoint": {"every_steps": 4}}
    case = Case(run_dir=str(tmp_path / "run"), data=text, job={**job, "env": {"MLFLOW_ALLOW_FILE_STORE": "true"}})
    two_attempts(server, case)
    known = tracked(case, "mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        client = MlflowClient(tracking_uri=Path(known.place).as_uri())
    experiment = client.get_experiment_by_name("small")
    assert experiment is not None
    assert [each.info.run_id for each in client.search_runs([experiment.experiment_id])] == [known.tracker_run]
    steps = [each.step for each in client.get_metric_history(known.tracker_run, "train/loss")]
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8]
    run = client.get_run(known.tracker_run)
    assert (run.info.status, run.data.tags["frenzy.attempt"]) == ("FINISHED", "2")
    assert run.data.params["training.learning_rate"] == "0.002"


def test_mlflows_server_gets_the_run_of_a_script_by_a_secret(
    script_server: LaunchServer, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mlflow_server() as mlflow:
        base = recipe("torchrun_ddp.py", tmp_path / "run", text)
        tracking = [{"kind": "mlflow", "uri": mlflow.url}]
        case = replace(base, job={**base.job, "tracking": tracking})
        assert script_server.run(replace(case, num_steps=3)).exit_code == ExitCode.DONE
        assert script_server.run(replace(case, num_steps=6, attempt=2)).resumed_from_step == 3
        (run,) = mlflow.runs.values()
    assert [step for name, step, _ in run.points if name == "train/loss"] == [1, 2, 3, 4, 5, 6]
    assert (run.info["status"], run.tags["frenzy.run_key"]) == ("FINISHED", "run")
    assert mlflow.experiments == ["frenzy"]
    assert tracked(case, "mlflow").place == f"{mlflow.url}/#/experiments/7/runs/{run.info['run_id']}"


def test_a_tracker_that_cannot_be_reached_keeps_no_training_back(
    server: LaunchServer, text: str, tmp_path: Path
) -> None:
    tracking = [{"kind": "mlflow", "uri": "http://127.0.0.1:9"}, {"kind": "tensorboard"}]
    case = Case(run_dir=str(tmp_path / "run"), data=text, job={"tracking": tracking})
    began_s = time.monotonic()
    assert server.run(case).exit_code == ExitCode.DONE
    assert time.monotonic() - began_s < 300
    assert "127.0.0.1" in tracked(case, "mlflow").problem
    assert tracked(case, "tensorboard").last_step == 4
    log = Path(RunPaths(case.run_dir).logs_dir(1), "tracker-mlflow.log").read_text()
    assert log.count("mlflow gets no more of this run") == 1
