"""What answers each endpoint: a use case, and how its arguments come from message, path and person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from fastapi import Request, Response

from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.api import endpoints as api
from frenzy.api.declaration import Endpoint
from frenzy.app.cancellation import cancel
from frenzy.app.cleaning import clean_run, ended_runs
from frenzy.app.finished import checkpoints, model_file, model_files, models, trackers
from frenzy.app.gauges import fleet_metrics, history, usage
from frenzy.app.observe import attempt_launching, attempt_started, report_pressure, report_progress
from frenzy.app.place import enqueue, place_status
from frenzy.app.preparing import prepared, preparing
from frenzy.app.queries import (
    explain,
    gpus_view,
    list_runs,
    memory_view,
    queue_view,
    run_view,
    runs_of_dag_run,
    shown_to,
)
from frenzy.app.queue_snapshot import queue_snapshot
from frenzy.app.reconciliation import reconcile, reconcile_targets
from frenzy.app.register import preview, register_run
from frenzy.app.services import Services
from frenzy.app.settlement import decide, end_attempt
from frenzy.app.stored_jobs import dag_id_of, job_text, remove_job, store_job
from frenzy.app.worker_logs import log_part, log_tail
from frenzy.core.runs.access import Caller, Sight, see_all
from frenzy.core.runs.protocol import (
    CancelRun,
    CleanedRun,
    CleanRun,
    EndedRun,
    RunView,
    SubmitJob,
    SubmittedJob,
    WhatIf,
)
from frenzy.core.runs.usage import UsageBy, UsageHistory, UsageView
from frenzy.core.runs.views import FinishedModel, WhatIfView
from frenzy.core.values.errors import ReasonCode
from frenzy.web.file_reply import file_reply
from frenzy.web.guards import person_of
from frenzy.web.manual import get_manual
from frenzy.web.messages import Act, services_of, text_reply
from frenzy.web.metrics_text import CONTENT_TYPE, metrics_text
from frenzy.web.new_job import presets
from frenzy.web.openapi import document_of
from frenzy.web.page_files import get_page, get_static

P = ParamSpec("P")
R = TypeVar("R")


class Asked:
    """One request: what answers it, who asks, and whom to tell of what they changed."""

    def __init__(self, request: Request) -> None:
        self.app, self._request, self._person = request.app, request, person_of(request)

    @cached_property
    def services(self) -> Services:
        """Made when first asked for: pages and static files are there whatever the settings say."""
        return services_of(self._request)

    @property
    def caller(self) -> Caller:
        return self._person.caller

    @property
    def sees(self) -> Sight:
        """Which DAGs' runs lists may show: Frenzy's tasks look after all of them."""
        return see_all if self.caller.is_service else self._person.sees

    @property
    def headers(self) -> Mapping[str, str]:
        return self._request.headers

    def shown(self, *views: RunView) -> tuple[RunView, ...]:
        """``views`` with no specification that is not the caller's to see."""
        return tuple(shown_to(self.services, self.caller, each) for each in views)

    def acted_on_run(self, event: str, view: RunView, particulars: str) -> None:
        identity = view.run.identity
        self.app.state.on_act(Act(self.caller.name, event, identity.dag_id, identity.run_id, particulars))

    def changed_job(self, event: str, name: str) -> None:
        self.app.state.on_act(Act(self.caller.name, event, dag_id_of(name)))
        self.app.state.on_job_changed(name)


Handler = Callable[Concatenate[Asked, P], R | Response]


def _runs(asked: Asked, limit: int = 50) -> tuple[RunView, ...]:
    return asked.shown(*list_runs(asked.services, limit=max(1, min(limit, 1000)), sees=asked.sees))


# The size of each is a listing of its folder.
_MOST_MODELS: Final = 100


def _models(asked: Asked, limit: int = 50, run_key: str | None = None) -> tuple[FinishedModel, ...]:
    return models(asked.services, limit=max(1, min(limit, _MOST_MODELS)), run_key=run_key, sees=asked.sees)


def _model_file(asked: Asked, run_key: str, name: str) -> Response:
    return file_reply(asked.headers, name, model_file(asked.services, run_key, name))


def _metrics(asked: Asked) -> Response:
    return text_reply(metrics_text(fleet_metrics(asked.services, asked.sees)), CONTENT_TYPE)


def _usage(asked: Asked, since_s: float, until_s: float | None = None, by: UsageBy = UsageBy.TEAM) -> UsageView:
    return usage(asked.services, since_s=since_s, until_s=until_s, by=by, sees=asked.sees)


def _history(
    asked: Asked, since_s: float, until_s: float | None = None, by: UsageBy = UsageBy.TEAM, num_parts: int = 24
) -> UsageHistory:
    return history(asked.services, since_s=since_s, until_s=until_s, by=by, num_parts=num_parts, sees=asked.sees)


def _runs_of_dag_run(asked: Asked, dag_id: str, run_id: str) -> tuple[RunView, ...]:
    return asked.shown(*runs_of_dag_run(asked.services, dag_id, run_id))


def _cancel(asked: Asked, run_key: str, message: CancelRun) -> RunView:
    caller, detail = asked.caller, message.reason.detail
    if not caller.is_service:
        detail = f"Cancelled by {caller.name}: {detail}" if detail else f"Cancelled by {caller.name}."
    view = cancel(asked.services, run_key, replace(message.reason, detail=detail))
    asked.acted_on_run("frenzy_cancel_run", view, detail)
    return asked.shown(view)[0]


def _what_if(asked: Asked, run_key: str, message: WhatIf) -> WhatIfView:
    found: WhatIfView = asked.app.state.drafter.what_if(asked.services, run_key, message, asked.caller)
    return found


def _ended_runs(asked: Asked, older_than_s: float = 0.0) -> tuple[EndedRun, ...]:
    return ended_runs(asked.services, older_than_s=older_than_s, caller=asked.caller)


def _clean_run(asked: Asked, run_key: str, message: CleanRun) -> CleanedRun:
    cleaned = clean_run(asked.services, run_key, message)
    if cleaned.num_bytes and not message.dry_run:
        asked.acted_on_run("frenzy_clean_run", run_view(asked.services, run_key), f"{cleaned.num_bytes} bytes")
    return cleaned


def _submit(asked: Asked, message: SubmitJob) -> SubmittedJob:
    job = job_from_yaml(message.yaml_text)
    changed = store_job(asked.services, job, message.yaml_text, caller=asked.caller, dag_run=message.dag_run)
    if changed:
        asked.changed_job("frenzy_store_job", job.name)
    return SubmittedJob(name=job.name, dag_id=dag_id_of(job.name), changed=changed)


def _jobs(asked: Asked) -> tuple[str, ...]:
    names = {dag_id_of(name): name for name in asked.services.jobs.names()}
    return tuple(sorted(names[dag_id] for dag_id in asked.sees(names)))


def _remove_job(asked: Asked, name: str) -> None:
    remove_job(asked.services, name)
    asked.changed_job("frenzy_remove_job", name)


def _of(endpoint: Endpoint[P, R], handler: Handler[P, R]) -> tuple[Endpoint[..., Any], Handler[..., Any]]:
    """A row of the table; a handler with other parameters, or another reply, is an error of types."""
    return endpoint, handler


def _case(
    endpoint: Endpoint[P, R], use_case: Callable[Concatenate[Services, P], R]
) -> tuple[Endpoint[..., Any], Handler[..., Any]]:
    """The same for a use case that takes just what the endpoint is given."""

    def handler(asked: Asked, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return use_case(asked.services, *args, **kwargs)

    return _of(endpoint, handler)


HANDLERS: Final = dict(
    (
        _of(api.page, lambda asked, name: get_page(name)),
        _of(api.static, lambda asked, name: get_static(name)),
        _of(api.manual, lambda asked, name: get_manual(name)),
        _of(api.openapi, lambda asked: document_of(asked.app)),
        _case(api.register, register_run),
        _of(api.runs, _runs),
        _of(api.runs_of_dag_run, _runs_of_dag_run),
        _of(api.run_view, lambda asked, run_key: asked.shown(run_view(asked.services, run_key))[0]),
        _case(api.preparing, preparing),
        _case(api.prepared, prepared),
        _case(api.enqueue, enqueue),
        _case(api.place, place_status),
        _case(api.launching, attempt_launching),
        _case(api.started, attempt_started),
        _case(api.progress, report_progress),
        _case(api.pressure, report_pressure),
        _case(api.end, end_attempt),
        _case(api.decide, decide),
        _of(api.cancel, _cancel),
        _of(api.ended_runs, _ended_runs),
        _of(api.clean_run, _clean_run),
        _case(api.memory, memory_view),
        _case(api.explain, explain),
        _of(api.what_if, _what_if),
        _case(api.logs, log_tail),
        _case(api.log_part, log_part),
        _case(api.checkpoints, checkpoints),
        _case(api.trackers, trackers),
        _of(api.models, _models),
        _case(api.model_files, model_files),
        _of(api.model_file, _model_file),
        _of(api.submit, _submit),
        _of(api.jobs, _jobs),
        _of(api.job, lambda asked, name: text_reply(job_text(asked.services, name), "application/yaml")),
        _of(api.remove_job, _remove_job),
        _of(api.plan, lambda asked, request: preview(asked.services, request, asked.caller)),
        _of(api.draft, lambda asked, message: asked.app.state.drafter.view(asked.services, message, asked.caller)),
        _of(api.presets, lambda asked: presets(asked.caller.name)),
        _of(api.queue, lambda asked: queue_view(asked.services, asked.sees)),
        _case(api.queue_snapshot, queue_snapshot),
        _of(api.gpus, lambda asked: gpus_view(asked.services, asked.sees)),
        _of(api.metrics, _metrics),
        _of(api.usage, _usage),
        _of(api.usage_history, _history),
        _of(api.reasons, lambda asked: {each: each.sentence for each in ReasonCode}),
        _case(api.reconcile_targets, reconcile_targets),
        _case(api.reconcile, reconcile),
    )
)
