"""Jobs, plan previews, queue, GPUs and reconciliation over HTTP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fastapi import FastAPI
from tests.unit.web.conftest import ApiUser

from frenzy.core.runs.protocol import (
    PlaceView,
    PlanPreview,
    ReconcileReport,
    ReconcileSummary,
    ReconcileTarget,
    SubmitJob,
    SubmittedJob,
)
from frenzy.core.runs.views import GpusView, QueueView
from frenzy.core.values.codec import dumps
from frenzy.core.values.errors import ReasonCode

YAML = """
name: words
model: {config: {model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 2, vocab_size: 300, n_positions: 64}}
data: {path: words.txt, sequence_length: 32}
training: {max_steps: 10, global_batch_size: 4}
"""


def test_job_is_stored_once_and_comes_back_as_written(op: ApiUser) -> None:
    first = op.ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=YAML))
    again = op.ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=YAML))
    assert (first.name, first.dag_id, first.changed, again.changed) == ("words", "job_words", True, False)
    assert op.send("GET", "/jobs").json() == ["words"]
    assert op.send("GET", "/jobs/words").text == YAML


def test_a_client_of_an_older_release_is_told_what_this_one_does_not_know(op: ApiUser) -> None:
    refused = op.send("POST", "/jobs", dumps({"yaml_text": YAML, "trigger": False, "conf": None}))
    assert refused.status_code == 400
    assert "'conf'" in refused.json()["detail"]["message"]
    assert "release" in refused.json()["detail"]["remedy"]


def test_a_job_that_would_read_this_machines_api_is_neither_stored_nor_registered_nor_planned(op: ApiUser) -> None:
    place = "https://127.0.0.1:8080/frenzy/api/v1/runs"
    asked = op.registration()
    asked = replace(asked, job=replace(asked.job, data=replace(asked.job.data, path=place)))
    yaml_text = YAML.replace("words.txt", f'"{place}"')
    for path, message in (("/jobs", SubmitJob(yaml_text=yaml_text)), ("/runs", asked), ("/plan", asked)):
        refused = op.send("POST", path, message)
        assert refused.status_code == 400
        (violation,) = refused.json()["detail"]["violations"]
        assert violation["path"] == "data.path"
        assert "FRENZY_DATA_HOSTS" in violation["allowed"]
    assert op.send("GET", "/jobs").json() == []


def test_removed_job_is_gone(op: ApiUser) -> None:
    op.ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=YAML))
    assert op.send("DELETE", "/jobs/words").status_code == 204
    assert op.send("GET", "/jobs/words").status_code == 404
    assert op.send("DELETE", "/jobs/words").status_code == 404


def test_whoever_parses_is_told_of_each_change_once(op: ApiUser, app: FastAPI) -> None:
    told: list[str] = []
    app.state.on_job_changed = told.append
    for _ in range(2):
        op.ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=YAML))
    op.send("DELETE", "/jobs/words")
    assert told == ["words", "words"]


def test_every_violation_of_a_refused_job_is_told(op: ApiUser) -> None:
    text = YAML.replace("max_steps: 10", "max_steps: 0").replace("sequence_length", "seq_length")
    response = op.send("POST", "/jobs", SubmitJob(yaml_text=text))
    assert response.status_code == 400
    detail = response.json()["detail"]
    assert detail["code"] == "SPEC_REFUSED"
    assert {"data.seq_length", "training.max_steps"} <= {each["path"] for each in detail["violations"]}


def test_preview_lists_plans_and_stores_nothing(op: ApiUser) -> None:
    request = op.registration("preview")
    assert op.ask("POST", "/plan", PlanPreview, request).candidates
    assert op.send("GET", "/runs").json() == []


def test_queue_and_gpus_show_who_holds_what(op: ApiUser) -> None:
    view = op.registered()
    op.ask("POST", f"/runs/{view.run.run_key}/enqueue", PlaceView)
    running = op.ask("GET", "/queue", QueueView).running
    assert [row.run_key for row in running] == [view.run.run_key]
    gpus = op.ask("GET", "/gpus", GpusView)
    assert sum(row.num_gpus - row.num_free for row in gpus.types) == running[0].num_gpus
    assert any(view.run.run_key in {each.run_key for each in row.holders} for row in gpus.nodes)


def test_reconciliation_lists_what_holds_gpus_and_takes_findings(op: ApiUser) -> None:
    view = op.registered()
    op.ask("POST", f"/runs/{view.run.run_key}/enqueue", PlaceView)
    targets = op.ask("GET", "/reconcile", tuple[ReconcileTarget, ...])
    assert [each.run_key for each in targets] == [view.run.run_key]
    assert op.ask("POST", "/reconcile", ReconcileSummary, ReconcileReport(findings=())).num_released == 0


def test_reason_sentences_are_the_core_s(op: ApiUser) -> None:
    assert op.send("GET", "/reasons").json() == {each.value: each.sentence for each in ReasonCode}


def test_sample_jobs_of_this_project_are_accepted(op: ApiUser) -> None:
    folder = Path(__file__).parents[3] / "include/jobs"
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        assert op.ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=text)).changed, path.name
