"""What would become of a job if it were submitted now; nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from frenzy.app.facts import newcomer, scheduling_facts
from frenzy.app.inventory import has_changed, refresh_inventory
from frenzy.app.plan_listing import ASSUMED_STEPS, plan_facts, tuned_request
from frenzy.app.register import check_runs_read, planned, record_of
from frenzy.app.services import Services
from frenzy.app.stored_jobs import check_storable, check_use, dag_id_of
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.marp import micro_batches
from frenzy.core.planning.model_notes import model_line, model_notes
from frenzy.core.runs.access import Caller
from frenzy.core.runs.ledger import DataFacts, RunIdentity, RunRecord
from frenzy.core.runs.protocol import RegisterRun, WhatIf
from frenzy.core.runs.views import DraftView
from frenzy.core.values.errors import PermanentError, SpecError, TemporaryError, Violation
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.scheduling_facts import Hold, Start

_RUN_ID: Final = "draft"
_MOST_SHOWN: Final = 30
_STEPS_ASSUMED: Final = f"Times are for {ASSUMED_STEPS} steps: the data are counted when the run begins."
NOT_COUNTED: Final = DataFacts()
# Of a change: deeper and longer than any field.
_MOST_NAMES: Final = 6
_LONGEST_PATH: Final = 200
_SECTIONS: Final = ("training.", "constraints.")
_FIELDS: Final = ("data.sequence_length", "objective", "priority")
_CHANGEABLE: Final = f"one of training.*, constraints.*, {', '.join(_FIELDS)}; for the rest write a new job"


def check_draft(services: Services, job: TrainingJob, caller: Caller) -> bool:
    """Whether a job of its name is stored; raises what storing ``job`` and registering its first run would."""
    with services.ledger.reading() as tx:
        stored = check_storable(tx, services, job, caller)
        if caller.bound_to is not None:
            check_runs_read(tx, services, caller, job)
    return stored is not None


def check_changes(message: WhatIf) -> None:
    """Raises SpecError for a change after which what is known of the run's model and data would not hold."""
    closed = [each for each in message.changes if not _is_changeable(each)]
    if closed:
        raise SpecError(
            [Violation(path=each[:_LONGEST_PATH], value="a change", allowed=_CHANGEABLE) for each in closed]
        )


def _is_changeable(path: str) -> bool:
    names = path.split(".")
    is_short = len(path) <= _LONGEST_PATH and len(names) <= _MOST_NAMES and all(names)
    return is_short and (path.startswith(_SECTIONS) or path in _FIELDS)


def check_what_if(services: Services, job: TrainingJob, message: WhatIf, caller: Caller) -> None:
    """Raises SpecError where ``job``, which has the changes of ``message``, is none that the caller may ask about."""
    size = message.micro_batch_size
    if size is not None and (allowed := _micro_batches_but(size, job, services.marp_policy)):
        raise SpecError([Violation(path="micro_batch_size", value=str(size), allowed=allowed)])
    check_use(services, caller, job)


def _micro_batches_but(size: int, job: TrainingJob, policy: str) -> str | None:
    """What to give instead of micro-batches of ``size``; None where there are plans with them."""
    if job.workload is not None:
        return "the built-in trainer's alone; leave it out, the plan chooses it within workload.honours"
    batch = job.training.global_batch_size
    sizes = micro_batches(batch, policy)
    if size in sizes:
        return None
    near = (max((each for each in sizes if each < size), default=None), next((e for e in sizes if e > size), None))
    named = " or ".join(str(each) for each in near if each is not None)
    how = f"the policy {policy} has plans of" if size and batch % size == 0 else "cuts it evenly"
    return f"a part of training.global_batch_size = {batch} that {how}: give {named}, or change the global batch"


def draft(
    services: Services,
    job: TrainingJob,
    model_config: Mapping[str, Any],
    *,
    shown: str,
    data_facts: DataFacts = NOT_COUNTED,
    micro_batch_size: int | None = None,
    extra_bytes_per_gpu: int = 0,
) -> DraftView:
    """The plans of ``job``, and what the next pass would do with it. shown: its specification without its secrets.

    Planning and decision are those of a run; only what is not counted before there is one is assumed.
    micro_batch_size, extra_bytes_per_gpu: as of ``first_plans``.
    """
    run = _run_of(services, job, model_config, data_facts)
    plans = partial(planned, services, run, micro_batch_size=micro_batch_size, extra_bytes_per_gpu=extra_bytes_per_gpu)
    preview = plans()
    if preview.reason is not None and _refreshed(services):
        preview = plans()
    fitting = sorted((each for each in preview.candidates if each.feasible), key=lambda each: each.rank or 0)
    refused = [each for each in preview.candidates if not each.feasible]
    model, notes = _told_of(run)
    view = replace(
        unplanned(job, shown=shown, note=None if run.total_steps is not None else _STEPS_ASSUMED),
        model=model,
        model_notes=notes,
        total_steps=run.total_steps or ASSUMED_STEPS,
        candidates=(*fitting[:_MOST_SHOWN], *refused[:_MOST_SHOWN]),
        num_fitting=len(fitting),
        num_refused=len(refused),
        reason=preview.reason,
    )
    return _with_decision(services, view, run, fitting) if fitting else view


def _refreshed(services: Services) -> bool:
    """Whether the cluster is another than the one that was known; from now on it is known."""
    try:
        cluster = services.inventory.cluster()
        if not has_changed(services, cluster):
            return False
        with services.ledger.transaction() as tx:
            return refresh_inventory(tx, cluster, services.inventory.cluster)
    except TemporaryError:  # nobody tells what the cluster is now
        return False


def _run_of(services: Services, job: TrainingJob, config: Mapping[str, Any], data_facts: DataFacts) -> RunRecord:
    """The run that would be registered."""
    identity = RunIdentity(dag_id=dag_id_of(job.name), run_id=_RUN_ID, task_group="")
    request = RegisterRun(identity=identity, job=job, model_config=config, data_facts=data_facts)
    return record_of(request, services.clock.now_s())


def tuned(
    services: Services,
    job: TrainingJob,
    model_config: Mapping[str, Any],
    *,
    data_facts: DataFacts = NOT_COUNTED,
    extra_bytes_per_gpu: int = 0,
) -> tuple[TrainingJob, tuple[str, ...]]:
    """``job`` changed as little as makes a plan fit, and what was changed: nothing where it fits, or nothing helps.

    extra_bytes_per_gpu: memory beyond the prediction that it was seen to need.
    """
    run = _run_of(services, job, model_config, data_facts)
    with services.ledger.reading() as tx:
        facts = plan_facts(tx, services, run)
    remedy = tuned_request(facts, services, run, extra_bytes_per_gpu)
    return (job, ()) if remedy is None else (remedy.request.job, tuple(str(each) for each in remedy.changes))


def memory_to_spare(services: Services, run_key: str) -> int:
    """What the newest attempt of the run needed on each GPU beyond its plan; 0 before there is one."""
    with services.ledger.reading() as tx:
        attempts = tx.attempts(run_key)
    return attempts[-1].extra_bytes_per_gpu if attempts else 0


def unplanned(job: TrainingJob, *, shown: str, note: str | None) -> DraftView:
    """The view of a job that could be submitted, but whose plans are not known."""
    steps = job.training.max_steps or ASSUMED_STEPS
    return DraftView(name=job.name, dag_id=dag_id_of(job.name), shown=shown, total_steps=steps, note=note)


def _told_of(run: RunRecord) -> tuple[str | None, tuple[str, ...]]:
    """What is trained, and what its user may not expect of that."""
    with suppress(PermanentError):  # of a model that is not supported the reason says so
        if run.job.names_a_model:
            shape = model_shape(run.model_config or {})
            return model_line(run.job, shape, run.total_steps or ASSUMED_STEPS), model_notes(run.job, shape)
    return None, ()


def _with_decision(services: Services, view: DraftView, run: RunRecord, fitting: list[Candidate]) -> DraftView:
    """What the very decision of a pass says of the run, were it the last in the queue."""
    with services.ledger.reading() as tx:
        facts = scheduling_facts(tx, services, run.created_s)
        job = newcomer(tx, services, run, tuple(each.plan for each in fitting), run.created_s)
    facts = replace(facts, queued=(*facts.queued, job))
    for action in services.schedule(facts, run.created_s, services.current_policy):
        if isinstance(action, Start) and action.run_key == run.run_key:
            started = [each for each in fitting[_MOST_SHOWN:] if each.plan.plan_id == action.plan.plan_id]
            candidates = (*view.candidates, *started)
            return replace(view, candidates=candidates, reason=action.reason, plan_id=action.plan.plan_id)
        if isinstance(action, Hold) and action.run_key == run.run_key:
            return replace(
                view, reason=action.reason, position=action.position, expected_start_s=action.expected_start_s
            )
    return view
