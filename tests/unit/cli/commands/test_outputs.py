"""Where a model is, how good it is, what a run can go on from, and how it does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.cli.commands.test_logs import written
from tests.unit.cli.conftest import Said, World

from frenzy.app.cancellation import cancel
from frenzy.cli.commands.metrics import server
from frenzy.cli.commands.server import connect
from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import ConstraintsSpec, TrackerSpec

Command = Callable[..., Said]
SCORES = {"perplexity": 12.5, "loss": 2.53, "held_out": True, "prompt": "To be", "sample": " or not\x1b[2J"}


def finished(world: World, name: str, **job: Any) -> str:
    run_key = written(world, name, "trained\n", **job)
    assert isinstance(world.services.runs, InMemoryRunStore)
    world.services.runs.write_model(run_key, {"model.safetensors": bytes(2 * 1024**2)})
    return run_key


def stopped(world: World, name: str) -> str:
    run_key = world.registered(name).run.run_key
    cancel(world.services, run_key, Reason(code=ReasonCode.CANCELLED_BY_USER))
    return run_key


def test_models_are_listed_with_their_places(online: Command, world: World) -> None:
    run_key = finished(world, "listed-model")
    path = f"{world.services.runs.run_dir(run_key)}/model"
    assert path in online("models").out
    found = json.loads(online("models", "--json").out)
    (model,) = [each for each in found if each["run_key"] == run_key]
    assert model["path"] == path
    assert f"{datetime.fromtimestamp(model['ended_s']).astimezone():%Y-%m-%d %H:%M:%S}" in online("models").out


@pytest.mark.parametrize("name", ["key", "job"])
def test_of_one_model_path_perplexity_sample_and_page_are_told(name: str, online: Command, world: World) -> None:
    run_key = finished(world, f"one-model-{name}")
    world.airflow.evaluation = SCORES
    said = online("models", run_key if name == "key" else f"one-model-{name}").out
    for text in (
        f"{run_key}/model",
        "2.0 MiB",
        "12.5000 on held-out text (loss 2.5300)",
        " or not",
        f"{world.url}/dags/job_",
    ):
        assert text in said
    assert "\x1b" not in said
    lines = {each[:14].strip(): each[14:] for each in said.splitlines()}
    assert (lines["Prompt"], lines["Sample"]) == ("To be", "or not[2J")
    assert lines["Training loss"].endswith("in the last step")
    told = json.loads(online("models", run_key, "--json").out)
    assert told["evaluations"]["evaluate"]["perplexity"] == 12.5
    world.airflow.evaluation = None


def test_words_of_a_sample_that_read_like_a_command_stay(
    online: Command, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.airflow, "evaluation", {**SCORES, "sample": "to frenzy up"})
    monkeypatch.setenv("PATH", "")
    assert " to frenzy up\n" in online("models", finished(world, "frenzied-model")).out


def test_a_model_that_is_being_evaluated_is_said_to_be(online: Command, world: World) -> None:
    run_key = finished(world, "not-yet-evaluated")
    world.airflow.evaluating = "running"
    assert "no scores: the task evaluate is running" in online("models", run_key).out
    assert json.loads(online("models", run_key, "--json").out)["evaluating"] == {"evaluate": "running"}
    world.airflow.evaluating = None


def test_a_model_is_fetched_whole_into_a_new_folder_and_never_mixed_with_another(
    online: Command, world: World, tmp_path: Path
) -> None:
    run_key = finished(world, "fetched")
    assert isinstance(world.services.runs, InMemoryRunStore)
    files = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 64, "tokenizer/vocab.json": b"[]"}
    world.services.runs.write_model(run_key, files)
    folder = tmp_path / "mine"
    assert online("models", "fetched", "--download", str(folder)).status == 0
    found = {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    assert found == files
    said = online("models", run_key, "--download", str(folder))
    assert (said.status, "files of two models would mix" in said.err) == (2, True)
    assert "name the run" in online("models", "--download", str(folder)).err


@pytest.mark.parametrize("name", ["../outside", "/outside", "inside/../../outside"])
def test_no_name_in_a_store_leads_a_download_out_of_its_folder(
    name: str, online: Command, world: World, tmp_path: Path
) -> None:
    run_key = finished(world, f"leads-out-{len(name)}")
    assert isinstance(world.services.runs, InMemoryRunStore)
    world.services.runs.write_model(run_key, {name: b"x"})
    said = online("models", run_key, "--download", str(tmp_path / "mine"))
    assert (said.status, "leads out of its folder" in " ".join(said.err.split())) == (2, True), said.err
    assert [*tmp_path.iterdir()] == []


def test_where_trackers_show_a_run_is_told(online: Command, world: World) -> None:
    run_key = finished(world, "tracked", tracking=(TrackerSpec(kind="wandb"),))
    assert isinstance(world.services.runs, InMemoryRunStore)
    known = TrackedRun(kind="wandb", tracker_run="7", place="https://there/7", last_step=3, problem="no key")
    world.services.runs.write_tracked(run_key, known)
    for command in ("models", "status"):
        assert "https://there/7 to step 3; it gets no more: no key" in online(command, run_key).out
    assert json.loads(online("models", run_key, "--json").out)["tracked"][0]["place"] == "https://there/7"


def test_a_model_that_was_cleaned_away_is_said_to_be(online: Command, world: World) -> None:
    run_key = written(world, "cleaned-model", "trained\n")
    said = " ".join(online("models", run_key).out.split())
    assert "frenzy clean removed it, or the script wrote none into FRENZY_MODEL_DIR" in said


def test_a_run_without_a_model_is_named_with_its_state(online: Command, world: World) -> None:
    said = online("models", stopped(world, "no-model"))
    assert said.status == 2
    assert "CANCELLED: it has left no model" in said.err


def test_checkpoints_are_listed_with_their_places(online: Command, world: World) -> None:
    run_key = stopped(world, "saved")
    assert "no complete checkpoint" in online("checkpoints", run_key).out
    assert isinstance(world.services.runs, InMemoryRunStore)
    for step in (20, 10):
        world.services.runs.write_checkpoint(run_key, step)
    root = world.services.runs.run_dir(run_key)
    assert json.loads(online("checkpoints", run_key, "--json").out) == [
        {"step": step, "path": f"{root}/checkpoints/step-{step}"} for step in (10, 20)
    ]


def test_a_stopped_run_goes_on_from_its_newest_checkpoint(online: Command, world: World) -> None:
    run_key = stopped(world, "resumed")
    assert isinstance(world.services.runs, InMemoryRunStore)
    world.services.runs.write_checkpoint(run_key, 30)
    said = online("resume", run_key)
    assert (said.status, said.out) == (0, f"resumed {run_key} goes on from step 30.\n")
    dag_id, body = world.airflow.cleared[-1]
    assert (dag_id, body["task_ids"], body["include_downstream"]) == ("job_resumed", ["train.profile"], True)
    assert body["reset_dag_runs"] and not body["dry_run"]


def test_a_run_that_no_plan_fitted_goes_on_with_a_warning_why_it_failed(online: Command, world: World) -> None:
    said = online("resume", world.registered("nowhere", constraints=ConstraintsSpec(gpu_types=("none",))).run.run_key)
    assert said.status == 0
    assert "no plan fits the cluster. Unless that has changed, it fails again:" in said.err
    assert "none" in said.err.partition("again:")[2]


def test_what_runs_or_has_a_model_is_not_resumed(online: Command, world: World) -> None:
    before = len(world.airflow.cleared)
    running, done = world.registered("still-on").run.run_key, finished(world, "all-done")
    assert "goes on by itself" in online("resume", running).err
    assert "has finished its model" in online("resume", done).err
    assert len(world.airflow.cleared) == before


def test_a_job_is_run_anew_with_what_its_run_was_started_with(online: Command, world: World) -> None:
    run_key = stopped(world, "tried")
    world.airflow.conf = {"max_steps": 3}
    told = json.loads(online("retry", run_key, "--json").out)
    dag_id, body = world.airflow.triggered[-1]
    assert (dag_id, body["conf"], body["dag_run_id"]) == ("job_tried", {"max_steps": 3}, told["run_id"])
    world.airflow.conf = {}


def test_gpu_time_is_told_with_its_total(online: Command, world: World) -> None:
    written(world, "used", "x\n")
    lines = online("usage", "--by", "job").out.splitlines()
    assert "GPU-hours" in lines[1] and lines[-2].startswith("all")
    assert "price_per_hour" in lines[-1]
    assert any(line.startswith("used") for line in lines)
    assert online("usage", "--days", "0").out.startswith("No run held")


def test_metrics_are_printed_once_or_served_on_a_port(online: Command, world: World) -> None:
    assert "# TYPE frenzy_unplaced_jobs gauge" in online("metrics").out
    with connect() as api, server(api, "127.0.0.1", 0) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        root = f"http://127.0.0.1:{listening.server_port}"
        assert "frenzy_gpus" in httpx.get(f"{root}/metrics", trust_env=False).text
        assert httpx.get(f"{root}/other", trust_env=False).status_code == 404
        listening.shutdown()
        thread.join()
