"""Handlers of what all runs share: jobs, plans before a run exists, the queue, GPUs, the sweep."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Response

from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.app.queries import gpus_view, queue_view
from frenzy.app.queue_snapshot import queue_snapshot
from frenzy.app.register import preview
from frenzy.app.submit import dag_id_of, job_text, remove_job, store_job
from frenzy.app.sweep import apply_sweep, sweep_targets
from frenzy.core.runs.protocol import RegisterRun, SubmitJob, SubmittedJob, SweepReport
from frenzy.core.values.errors import REASON_SENTENCES
from frenzy.web.access import PersonOf, SightOf
from frenzy.web.messages import (
    SPECIFICATION,
    SWEEP,
    Act,
    ActWatcher,
    JobWatcher,
    ServicesOf,
    body_of,
    reply,
    text_reply,
)

RegisterRunBody = Annotated[RegisterRun, Depends(body_of(RegisterRun, SPECIFICATION))]
SubmitJobBody = Annotated[SubmitJob, Depends(body_of(SubmitJob, SPECIFICATION))]
SweepReportBody = Annotated[SweepReport, Depends(body_of(SweepReport, SWEEP))]


def post_job(
    services: ServicesOf, who: PersonOf, changed_job: JobWatcher, acted: ActWatcher, message: SubmitJobBody
) -> Response:
    """Store the spec; its DAG appears when the folder is parsed.

    run_id is None: the run is started through Airflow's own route, once the DAG is there.
    """
    job = job_from_yaml(message.yaml_text)
    changed = store_job(services, job, message.yaml_text, caller=who.caller, dag_run=message.dag_run)
    if changed:
        acted(Act(who=who.caller.name, event="frenzy_store_job", dag_id=dag_id_of(job.name)))
        changed_job(job.name)
    return reply(SubmittedJob(name=job.name, dag_id=dag_id_of(job.name), changed=changed))


def get_jobs(services: ServicesOf, sees: SightOf) -> Response:
    names = {dag_id_of(name): name for name in services.jobs.names()}
    return reply(tuple(sorted(names[dag_id] for dag_id in sees(names))))


def get_job(services: ServicesOf, name: str) -> Response:
    return text_reply(job_text(services, name), "application/yaml")


def delete_job(services: ServicesOf, who: PersonOf, changed_job: JobWatcher, acted: ActWatcher, name: str) -> Response:
    remove_job(services, name)
    acted(Act(who=who.caller.name, event="frenzy_remove_job", dag_id=dag_id_of(name)))
    changed_job(name)
    return Response(status_code=204)


def post_plan(services: ServicesOf, who: PersonOf, request: RegisterRunBody) -> Response:
    return reply(preview(services, request, who.caller))


def get_queue(services: ServicesOf, sees: SightOf) -> Response:
    return reply(queue_view(services, sees))


def get_queue_snapshot(services: ServicesOf) -> Response:
    return reply(queue_snapshot(services))


def get_gpus(services: ServicesOf, sees: SightOf) -> Response:
    return reply(gpus_view(services, sees))


def get_sweep(services: ServicesOf) -> Response:
    return reply(sweep_targets(services))


def post_sweep(services: ServicesOf, report: SweepReportBody) -> Response:
    return reply(apply_sweep(services, report))


def get_reasons() -> Response:
    """The general sentence of every reason code, for readers of codes without particulars."""
    return reply(REASON_SENTENCES)
