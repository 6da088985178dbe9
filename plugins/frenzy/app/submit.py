"""Jobs with a DAG of their own: the jobs folder."""

from __future__ import annotations

from frenzy.app.services import NotFound, Services
from frenzy.core.errors import Reason, ReasonCode, SpecError
from frenzy.core.job import TrainingJob


def check_queue(services: Services, job: TrainingJob) -> None:
    """Raises SpecError where queues are set and ``job`` names none of them."""
    refusals = services.queues.rules().refusals(job.queue)
    if refusals:
        raise SpecError(refusals)


def dag_id_of(name: str) -> str:
    """The DAG of the job called ``name``."""
    return f"job_{name}"


def store_job(services: Services, job: TrainingJob, yaml_text: str) -> bool:
    """Store or replace the job's spec; True when it changed. Raises SpecError for a queue that is not there."""
    check_queue(services, job)
    return services.jobs.put(job.name, yaml_text)


def job_text(services: Services, name: str) -> str:
    """The stored spec as YAML; raises NotFound."""
    text = services.jobs.get(name)
    if text is None:
        raise NotFound(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=f"There is no stored job {name!r}."))
    return text


def remove_job(services: Services, name: str) -> None:
    """Take the job's spec out of the folder; its DAG goes with the next parse. Raises NotFound."""
    if not services.jobs.remove(name):
        raise NotFound(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=f"There is no stored job {name!r}."))
