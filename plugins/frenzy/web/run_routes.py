"""Handlers of one training run: registering it, placing it, its attempts, and what is known of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Query, Response

from frenzy.app.cancel import cancel
from frenzy.app.clean import clean_run, ended_runs
from frenzy.app.observe import attempt_launching, attempt_started, report_pressure, report_progress
from frenzy.app.place import enqueue, place_status
from frenzy.app.queries import explain, list_runs, log_tail, memory_view, run_view, runs_of_dag_run, shown_to
from frenzy.app.register import register_run
from frenzy.app.settle import decide, end_attempt
from frenzy.core.runs.protocol import (
    AttemptStarted,
    CancelRun,
    CleanRun,
    EndReport,
    PressureReport,
    ProgressReport,
    RegisterRun,
    RunView,
)
from frenzy.web.access import Person, PersonOf, SightOf
from frenzy.web.messages import SPECIFICATION, Act, ActWatcher, ServicesOf, body_of, reply, text_reply

AttemptStartedBody = Annotated[AttemptStarted, Depends(body_of(AttemptStarted))]
CleanRunBody = Annotated[CleanRun, Depends(body_of(CleanRun))]
CancelRunBody = Annotated[CancelRun, Depends(body_of(CancelRun))]
EndReportBody = Annotated[EndReport, Depends(body_of(EndReport))]
PressureReportBody = Annotated[PressureReport, Depends(body_of(PressureReport))]
ProgressReportBody = Annotated[ProgressReport, Depends(body_of(ProgressReport))]
Rank = Annotated[int, Query(ge=0, le=1_000_000)]
RegisterRunBody = Annotated[RegisterRun, Depends(body_of(RegisterRun, SPECIFICATION))]


def post_run(services: ServicesOf, request: RegisterRunBody) -> Response:
    return reply(register_run(services, request))


def get_runs(services: ServicesOf, who: PersonOf, sees: SightOf, limit: int = 50) -> Response:
    found = list_runs(services, limit=max(1, min(limit, 1000)), sees=sees)
    return reply(tuple(shown_to(services, who.caller, each) for each in found))


def get_runs_of_dag_run(services: ServicesOf, who: PersonOf, dag_id: str, run_id: str) -> Response:
    found = runs_of_dag_run(services, dag_id, run_id)
    return reply(tuple(shown_to(services, who.caller, each) for each in found))


def get_run(services: ServicesOf, who: PersonOf, run_key: str) -> Response:
    return reply(shown_to(services, who.caller, run_view(services, run_key)))


def post_enqueue(services: ServicesOf, run_key: str) -> Response:
    return reply(enqueue(services, run_key))


def get_place(services: ServicesOf, run_key: str) -> Response:
    return reply(place_status(services, run_key))


def post_launching(services: ServicesOf, run_key: str, attempt: int) -> Response:
    return reply(attempt_launching(services, run_key, attempt))


def post_started(
    services: ServicesOf,
    run_key: str,
    attempt: int,
    message: AttemptStartedBody,
) -> Response:
    return reply(attempt_started(services, run_key, attempt, message))


def post_progress(
    services: ServicesOf,
    run_key: str,
    attempt: int,
    message: ProgressReportBody,
) -> Response:
    return reply(report_progress(services, run_key, attempt, message))


def post_pressure(
    services: ServicesOf,
    run_key: str,
    attempt: int,
    message: PressureReportBody,
) -> Response:
    return reply(report_pressure(services, run_key, attempt, message))


def post_end(services: ServicesOf, run_key: str, attempt: int, message: EndReportBody) -> Response:
    return reply(end_attempt(services, run_key, attempt, message))


def post_decide(services: ServicesOf, run_key: str) -> Response:
    return reply(decide(services, run_key))


def post_cancel(
    services: ServicesOf, who: PersonOf, acted: ActWatcher, run_key: str, message: CancelRunBody
) -> Response:
    """End the run; the history says who wanted it."""
    caller, detail = who.caller, message.reason.detail
    if not caller.is_service:
        detail = f"Cancelled by {caller.name}: {detail}" if detail else f"Cancelled by {caller.name}."
    view = cancel(services, run_key, replace(message.reason, detail=detail))
    acted(_act(who, "frenzy_cancel_run", view, detail))
    return reply(shown_to(services, caller, view))


def _act(who: Person, event: str, view: RunView, particulars: str = "") -> Act:
    identity = view.run.identity
    return Act(
        who=who.caller.name, event=event, dag_id=identity.dag_id, run_id=identity.run_id, particulars=particulars
    )


def get_ended(services: ServicesOf, who: PersonOf, older_than_s: Annotated[float, Query(ge=0)] = 0.0) -> Response:
    return reply(ended_runs(services, older_than_s=older_than_s, caller=who.caller))


def post_clean(services: ServicesOf, who: PersonOf, acted: ActWatcher, run_key: str, message: CleanRunBody) -> Response:
    cleaned = clean_run(services, run_key, message)
    if cleaned.num_bytes and not message.dry_run:
        acted(_act(who, "frenzy_clean_run", run_view(services, run_key), f"{cleaned.num_bytes} bytes"))
    return reply(cleaned)


def get_memory(services: ServicesOf, run_key: str) -> Response:
    return reply(memory_view(services, run_key))


def get_explain(services: ServicesOf, run_key: str) -> Response:
    return reply(explain(services, run_key))


def get_logs(services: ServicesOf, run_key: str, attempt: int | None = None, rank: Rank = 0) -> Response:
    return text_reply(log_tail(services, run_key, attempt, rank=rank))
