"""Jobs with a DAG of their own: the jobs folder, and whose they are."""

from __future__ import annotations

from frenzy.app.services import NotFound, Services
from frenzy.core.runs.access import (
    Caller,
    Forbidden,
    JobRecord,
    may_manage,
    record_of_stored,
    task_acts_for,
    use_refusals,
)
from frenzy.core.runs.ledger import ACTIVE_STATES
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, SpecError
from frenzy.core.values.job import JOB_DAG_PREFIX, TrainingJob
from frenzy.core.values.sources import check_sources
from frenzy.ports import LedgerTx

_NAMED = 5


def check_job(services: Services, job: TrainingJob) -> None:
    """Raises SpecError where ``job`` names none of the queues that are set, a secret that is not for it, or reads from
    where nothing may be read.
    """
    rules = services.queues.rules()
    refusals = rules.refusals(job.queue) + rules.secret_refusals(job.secrets, queue=job.queue, team=job.team)
    if refusals:
        raise SpecError(refusals)
    check_sources(job, services.sources)


def check_use(services: Services, caller: Caller, job: TrainingJob) -> None:
    """Raises SpecError where ``caller`` may not use what ``job`` names: queue, team, priority, secrets, sources."""
    check_job(services, job)
    refusals = () if caller.bound_to is None else use_refusals(caller.bound_to, job, services.queues.rules())
    if refusals:
        raise SpecError(refusals)


def dag_id_of(name: str) -> str:
    """The DAG of the job called ``name``."""
    return f"{JOB_DAG_PREFIX}{name}"


def store_job(
    services: Services, job: TrainingJob, yaml_text: str, *, caller: Caller, dag_run: tuple[str, str] | None = None
) -> bool:
    """Store or replace the job's spec; True when it changed. A new one belongs to ``caller``.

    dag_run: of the task that asks; who started that run is then the caller.
    Raises SpecError for a queue, team, priority or secret that is not the caller's, Forbidden for another's job.
    """
    with services.ledger.transaction() as tx:
        if caller.is_service:
            caller = task_acts_for(None if dag_run is None else tx.started_by(*dag_run))
        before = check_storable(tx, services, job, caller)
        tx.put_job(record_of_stored(job, caller, before))
        return services.jobs.put(job.name, yaml_text)


def check_storable(tx: LedgerTx, services: Services, job: TrainingJob, caller: Caller) -> JobRecord | None:
    """Whose the job's name is, None where it is free. Raises what ``store_job`` does."""
    check_use(services, caller, job)
    before = _known(tx, services, job.name)
    if before is not None:
        check_managed(services, caller, before)
    return before


def _known(tx: LedgerTx, services: Services, name: str) -> JobRecord | None:
    """Whose the name is: a stored job's, or a DAG's of the DAGs folder, which is nobody's. None where it is free."""
    record = tx.job(name)
    if record is not None:
        return record
    taken = services.jobs.get(name) is not None or tx.has_dag(dag_id_of(name))
    return JobRecord(name=name, owner=None, team="") if taken else None


def check_managed(services: Services, caller: Caller, record: JobRecord) -> None:
    """Raises Forbidden unless ``caller`` may manage the job of ``record``."""
    if not may_manage(caller, owner=record.owner, team=record.team, rules=services.queues.rules()):
        raise Forbidden.anothers(f"The job {record.name!r} is another's.", record.owner, record.team)


def require_managed(services: Services, name: str, caller: Caller) -> None:
    """Raises Forbidden unless ``caller`` may manage the stored job called ``name``; NotFound where there is none."""
    with services.ledger.reading() as tx:
        record = _known(tx, services, name)
    if record is None:
        raise _not_found(name)
    check_managed(services, caller, record)


def job_text(services: Services, name: str) -> str:
    """The stored spec as YAML; raises NotFound."""
    text = services.jobs.get(name)
    if text is None:
        raise _not_found(name)
    return text


def remove_job(services: Services, name: str) -> None:
    """Take the job's spec out of the folder; its DAG goes with the next parse.

    Raises NotFound, and PermanentError where a run of it has not ended: its DAG would be gone from under it.
    """
    with services.ledger.transaction() as tx:
        active = tx.runs(states=ACTIVE_STATES, dag_ids=[dag_id_of(name)])
        if active:
            detail = f"Runs of {name} have not ended: {', '.join(each.run_key for each in active[:_NAMED])}."
            raise PermanentError(
                Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy="Wait for them, or: frenzy cancel RUN")
            )
        tx.drop_job(name)
        if not services.jobs.remove(name):
            raise _not_found(name)


def _not_found(name: str) -> NotFound:
    return NotFound(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=f"There is no stored job {name!r}."))
