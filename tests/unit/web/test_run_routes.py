"""A run's walk over HTTP: the messages of the protocol go in and come out whole."""

from __future__ import annotations

from urllib.parse import quote

from tests.unit.web.conftest import ApiUser

from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import (
    AttemptStarted,
    CancelRun,
    Directive,
    DirectiveKind,
    EndReport,
    PlaceStatus,
    PlaceView,
    PressureReport,
    ProgressReport,
    RunView,
    Verdict,
    VerdictKind,
)
from frenzy.core.runs.views import Explanation, MemoryView
from frenzy.core.values.codec import dumps, encode
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import MemoryPressureSpec
from frenzy.core.values.launch import AttemptResult

PRESSURE = Reason(code=ReasonCode.MEMORY_PRESSURE_FORECAST, detail="It rises.")


def placed(op: ApiUser) -> PlaceView:
    view = op.registered(on_memory_pressure=MemoryPressureSpec(min_run_s=0))
    return op.ask("POST", f"/runs/{view.run.run_key}/enqueue", PlaceView)


def started(op: ApiUser) -> str:
    place = placed(op)
    attempt = f"/runs/{place.run_key}/attempts/1"
    op.ask("POST", f"{attempt}/launching", Directive)
    op.ask("POST", f"{attempt}/started", Directive, AttemptStarted(launcher_ref="pid 7"))
    op.ask("POST", f"{attempt}/progress", Directive, ProgressReport(last_step=5, last_loss=3.5))
    return place.run_key


def test_registering_plans_the_run_and_repeating_changes_nothing(op: ApiUser) -> None:
    first = op.registered()
    assert first.run.state is JobState.PLANNED
    assert any(each.rank == 1 for each in first.candidates)
    assert op.registered() == first
    assert op.ask("GET", f"/runs/{first.run.run_key}", RunView) == first


def test_runs_of_a_dag_run_are_found_by_ids_with_any_characters(op: ApiUser) -> None:
    run_id = "manual__2026-01-01T00:00:00.5+00:00/part 1?&#%"
    view = op.registered(run_id=run_id)
    path = f"/runs/by-dag/{quote(view.run.identity.dag_id, safe='')}/{quote(run_id, safe='')}"
    assert [each.run.run_key for each in op.ask("GET", path, tuple[RunView, ...])] == [view.run.run_key]
    assert op.ask("GET", "/runs/by-dag/other/none", tuple[RunView, ...]) == ()


def test_list_is_limited_and_without_events(op: ApiUser) -> None:
    for number in range(3):
        op.registered(run_id=f"r{number}")
    views = op.ask("GET", "/runs?limit=2", tuple[RunView, ...])
    assert len(views) == 2
    assert all(view.events == () for view in views)


def test_a_list_carries_no_plans_while_a_view_of_one_run_does(op: ApiUser) -> None:
    keys = [op.registered(run_id=f"r{number}").run.run_key for number in range(30)]
    for key in keys:
        op.send("POST", f"/runs/{key}/enqueue")
    listed = op.send("GET", "/runs")
    assert len(listed.content) < len(keys) * 8_000
    assert {(len(each["candidates"]), each["run"]["model_config"]) for each in listed.json()} == {(0, None)}
    waiting = [each for each in listed.json() if each["queue_entry"] is not None]
    assert waiting
    assert all(each["queue_entry"]["plans"] == [] for each in waiting)
    whole = op.ask("GET", f"/runs/{waiting[0]['run']['run_key']}", RunView)
    assert whole.candidates
    assert whole.run.model_config
    assert whole.queue_entry is not None
    assert whole.queue_entry.plans


def test_place_is_the_same_when_asked_again(op: ApiUser) -> None:
    place = placed(op)
    assert place.status is PlaceStatus.PLACED
    assert place.spec is not None
    assert op.ask("GET", f"/runs/{place.run_key}/place", PlaceView) == place


def test_attempt_reports_are_kept(op: ApiUser) -> None:
    run_key = started(op)
    view = op.ask("GET", f"/runs/{run_key}", RunView)
    assert view.run.state is JobState.RUNNING
    assert (view.attempts[0].last_step, view.attempts[0].last_loss) == (5, 3.5)


def test_pressure_ends_in_another_attempt(op: ApiUser) -> None:
    run_key = started(op)
    report = PressureReport(
        reason=PRESSURE,
        progress=ProgressReport(last_step=9, checkpoint_step=9),
        extra_bytes_per_gpu=1,
        forecast_extra_bytes_per_gpu=2,
    )
    directive = op.ask("POST", f"/runs/{run_key}/attempts/1/pressure", Directive, report)
    assert directive.kind is DirectiveKind.CHECKPOINT_AND_STOP
    result = AttemptResult(exit_code=98, last_step=9, total_steps=100, checkpoint_step=9)
    op.ask("POST", f"/runs/{run_key}/attempts/1/end", RunView, EndReport(result=result))
    verdict = op.ask("POST", f"/runs/{run_key}/decide", Verdict)
    assert verdict.kind is VerdictKind.RETRY


def test_cancelling_frees_a_queued_run_at_once(op: ApiUser) -> None:
    view = op.registered()
    reason = Reason(code=ReasonCode.CANCELLED_BY_USER, detail="Not needed.")
    ended = op.ask("POST", f"/runs/{view.run.run_key}/cancel", RunView, CancelRun(reason=reason))
    assert ended.run.state is JobState.CANCELLED


def test_memory_and_explanation_name_the_run(op: ApiUser) -> None:
    run_key = started(op)
    assert op.ask("GET", f"/runs/{run_key}/memory", MemoryView).attempts[0].attempt == 1
    assert op.ask("GET", f"/runs/{run_key}/explain", Explanation).lines


def test_logs_default_to_the_newest_attempt(op: ApiUser) -> None:
    run_key = started(op)
    assert op.send("GET", f"/runs/{run_key}/logs").status_code == 200
    missing = op.send("GET", f"/runs/{run_key}/logs?attempt=9")
    assert missing.status_code == 404
    assert "no attempt 9" in missing.json()["detail"]["message"]


def test_logs_of_a_rank_that_an_attempt_does_not_have_name_those_it_has(op: ApiUser) -> None:
    run_key = started(op)
    num_gpus = op.ask("GET", f"/runs/{run_key}", RunView).attempts[0].plan.num_gpus
    assert op.send("GET", f"/runs/{run_key}/logs?rank={num_gpus - 1}").status_code == 200
    missing = op.send("GET", f"/runs/{run_key}/logs?rank={num_gpus}")
    assert missing.status_code == 404
    assert f"no rank {num_gpus}; it has rank" in missing.json()["detail"]["message"]


def test_unknown_run_is_not_found(op: ApiUser) -> None:
    response = op.send("GET", "/runs/none")
    assert response.status_code == 404
    assert "'none'" in response.json()["detail"]["message"]


def test_body_that_is_not_the_message_is_refused_with_its_path(op: ApiUser) -> None:
    run_key = started(op)
    path = f"/runs/{run_key}/attempts/1/progress"
    for body, words in (("{", "not valid JSON"), ('{"last_step": "5"}', "last_step"), ('{"steps": 1}', "'steps'")):
        response = op.send("POST", path, body)
        assert response.status_code == 400
        assert words in response.json()["detail"]["message"]


def test_message_of_a_newer_release_is_refused(op: ApiUser) -> None:
    document = {"schema_version": 99, "launcher_ref": "pid 1"}
    response = op.send("POST", f"/runs/{started(op)}/attempts/1/started", dumps(document))
    assert response.status_code == 400
    assert "schema version 99" in response.json()["detail"]["message"]


def test_attempt_must_be_a_number(op: ApiUser) -> None:
    response = op.send("POST", "/runs/x/attempts/first/launching")
    assert response.status_code == 400
    assert response.json()["detail"]["violations"] == [
        {
            "path": "path.attempt",
            "value": "'first'",
            "allowed": "Input should be a valid integer, unable to parse string as an integer",
        }
    ]


def test_reply_carries_the_schema_version_and_is_not_stored(op: ApiUser) -> None:
    view = op.registered()
    response = op.send("GET", f"/runs/{view.run.run_key}")
    assert response.json()["schema_version"] == 1
    assert response.headers["cache-control"] == "no-store"
    assert {k: v for k, v in response.json().items() if k != "schema_version"} == encode(view)
