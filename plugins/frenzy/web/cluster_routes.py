"""Handlers of what all runs share: jobs, plans before a run exists, the queue, GPUs, the sweep."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Response

from frenzy.adapters.job_spec import job_from_yaml
from frenzy.app.queries import gpus_view, queue_view
from frenzy.app.queue_snapshot import queue_snapshot
from frenzy.app.register import preview
from frenzy.app.submit import dag_id_of, job_text, remove_job, store_job
from frenzy.app.sweep import apply_sweep, sweep_targets
from frenzy.core.errors import REASON_SENTENCES
from frenzy.core.protocol import RegisterRun, SubmitJob, SubmittedJob, SweepReport
from frenzy.web.messages import JobWatcher, ServicesOf, body_of, reply, text_reply

RegisterRunBody = Annotated[RegisterRun, Depends(body_of(RegisterRun))]
SubmitJobBody = Annotated[SubmitJob, Depends(body_of(SubmitJob))]
SweepReportBody = Annotated[SweepReport, Depends(body_of(SweepReport))]


def post_job(services: ServicesOf, changed_job: JobWatcher, message: SubmitJobBody) -> Response:
    """Store the spec; its DAG appears when the folder is parsed.

    run_id is None: the run is started through Airflow's own route, once the DAG is there.
    """
    job = job_from_yaml(message.yaml_text)
    changed = store_job(services, job, message.yaml_text)
    if changed:
        changed_job(job.name)
    return reply(SubmittedJob(name=job.name, dag_id=dag_id_of(job.name), changed=changed))


def get_jobs(services: ServicesOf) -> Response:
    return reply(tuple(services.jobs.names()))


def get_job(services: ServicesOf, name: str) -> Response:
    return text_reply(job_text(services, name), "application/yaml")


def delete_job(services: ServicesOf, changed_job: JobWatcher, name: str) -> Response:
    remove_job(services, name)
    changed_job(name)
    return Response(status_code=204)


def post_plan(services: ServicesOf, request: RegisterRunBody) -> Response:
    return reply(preview(services, request))


def get_queue(services: ServicesOf) -> Response:
    return reply(queue_view(services))


def get_queue_snapshot(services: ServicesOf) -> Response:
    return reply(queue_snapshot(services))


def get_gpus(services: ServicesOf) -> Response:
    return reply(gpus_view(services))


def get_sweep(services: ServicesOf) -> Response:
    return reply(sweep_targets(services))


def post_sweep(services: ServicesOf, report: SweepReportBody) -> Response:
    return reply(apply_sweep(services, report))


def get_reasons() -> Response:
    """The general sentence of every reason code, for readers of codes without particulars."""
    return reply(REASON_SENTENCES)
