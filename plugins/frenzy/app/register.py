"""Registering a run: its spec is frozen, its plans are listed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frenzy.app.inventory import refresh_inventory
from frenzy.app.plan_listing import first_plans, plan_facts
from frenzy.app.queries import view_of
from frenzy.app.services import Services, log_event
from frenzy.app.states import move
from frenzy.app.stored_jobs import check_job, check_managed, check_use, dag_id_of
from frenzy.core.planning.selection import fitting
from frenzy.core.runs.access import Caller, Forbidden, may_manage, record_of_started
from frenzy.core.runs.ledger import FINAL_STATES, RUN_KEY_LENGTH, JobState, RunRecord
from frenzy.core.runs.protocol import PlanPreview, RegisterRun, RunView
from frenzy.core.runs.run_root import reads_runs
from frenzy.core.runs.same_training import knowing_its_checkpoints
from frenzy.core.runs.steps import total_steps
from frenzy.core.values.errors import Reason, SpecError, Violation
from frenzy.core.values.job import JOB_DAG_PREFIX, TrainingJob
from frenzy.core.values.prepared_data import PreparedPaths
from frenzy.core.values.resource_plan import Candidate
from frenzy.ports import LedgerTx

# Of a job's finished runs the newest, which are looked at for a model that was not removed.
_MOST_ENDED: Final = 20
# Of these a pattern, or a folder, stands for all files that it matches.
_MANY_FILES: Final = ("data.path", "validation.path")


def register_run(services: Services, request: RegisterRun) -> RunView:
    """Freeze the spec and list the plans; a repeated call for a run that is on changes nothing.

    A run that had ended (its tasks were cleared) starts over with the spec of this call. Its checkpoints are kept if
    the spec still trains the same thing, and the data, if they are prepared again, are the same; else they go once
    workers are about to start. A warm start from the newest model is one from the run that has left it by now. A stored
    job's run belongs to the job's owner, any other to who started its DAG run.
    Raises SpecError for a queue, team, priority, secret or source that is not the owner's, Forbidden for the name of
    another's job.
    """
    now_s = services.clock.now_s()
    with services.ledger.reading() as tx:
        known = _registered(tx, request.identity.run_key)
    if known is not None:
        return known
    request, begins_with = _with_newest_model(services, request, now_s)
    fresh = record_of(request, now_s)
    with services.ledger.reading() as tx:
        _checked_owner(tx, services, request, fresh.run_key)
    # Asked last: a mistake in the cluster file hides no other.
    cluster = services.inventory.cluster()
    with services.ledger.transaction() as tx:
        refresh_inventory(tx, cluster, services.inventory.cluster)
        fresh = _at_its_commit(tx.run(fresh.run_key), fresh)
        facts = plan_facts(tx, services, fresh)
    # Between two transactions: nobody waits for the ledger while this run is planned. Plans are made anew before
    # the run is queued, so that a cluster that changes meanwhile is none of its business.
    plans = first_plans(facts, services, fresh)
    with services.ledger.transaction() as tx:
        known = _registered(tx, fresh.run_key)
        if known is not None:
            return known
        owner = _checked_owner(tx, services, request, fresh.run_key)
        run = _pending(tx, replace(fresh, owner=owner))
        if begins_with:
            log_event(tx, run.run_key, now_s, "model", begins_with)
        return view_of(tx, _planned(tx, run, plans))


def _with_newest_model(services: Services, request: RegisterRun, now_s: float) -> tuple[RegisterRun, str]:
    """``request`` with the run whose model is the newest that it is to start from, and a sentence of that.

    Without a warm start where none is there yet; as it is where none is asked for. A run that goes on from checkpoints
    keeps the one that it had, without a sentence. Raises SpecError for no job's name.
    """
    checkpoint, name = request.job.checkpoint, request.job.checkpoint.newest_of
    if name is None:
        return request, ""
    dag_id = dag_id_of(name) if name else request.identity.dag_id
    name = name or request.job.name
    ours = request.identity.run_key  # one that was cleared has a record
    with services.ledger.reading() as tx:
        before = tx.run(ours)
        ended = tx.runs(states=(JobState.SUCCEEDED,), dag_ids=(dag_id,), job_name=name, limit=_MOST_ENDED)
        if not ended and dag_id != request.identity.dag_id and tx.job(name) is None and not tx.has_dag(dag_id):
            allowed = f"there is no stored job {name!r}; newest for this job's own, or newest:JOB for a stored one's"
            raise SpecError(
                [Violation(path="checkpoint.warm_start", value=repr(checkpoint.warm_start), allowed=allowed)]
            )
    if before is not None and _goes_on(services, before, record_of(request, now_s)):
        job = replace(request.job, checkpoint=replace(checkpoint, warm_start=before.job.checkpoint.warm_start))
        return replace(request, job=job), ""
    keys = [each.run_key for each in ended if each.run_key != ours]
    found = next((each for each in keys if services.runs.model_files(each)), None)
    said = f"Starts from the model of {name} {found}, its newest."
    if found is None:
        none = f"No finished model of {name}'s last runs is left" if keys else f"{name} has no finished model yet"
        said = f"{none}: this run starts from the model of its own specification."
    job = replace(request.job, checkpoint=replace(checkpoint, warm_start=found))
    return replace(request, job=job), said


def _goes_on(services: Services, before: RunRecord, run: RunRecord) -> bool:
    """Whether ``run``, whose tasks were cleared, goes on from a checkpoint."""
    run = knowing_its_checkpoints(before, _at_its_commit(before, run))
    is_kept = run.job.checkpoint.resume != "never" and not run.stale_checkpoints
    return is_kept and services.runs.newest_checkpoint(run.run_key) is not None


def _registered(tx: LedgerTx, run_key: str) -> RunView | None:
    """The run, if it is on and has its plans."""
    before = tx.run(run_key)
    is_on = before is not None and before.state not in FINAL_STATES and before.plan_table
    return view_of(tx, before) if before is not None and is_on else None


def _checked_owner(tx: LedgerTx, services: Services, request: RegisterRun, run_key: str) -> str | None:
    """Whose the run is; raises what ``register_run`` does.

    What an earlier owner's run of that key left stays theirs: a job that was stored anew by another, or a DAG run that
    was deleted and made again, does not take it over.
    """
    identity, job = request.identity, request.job
    prefix, _, name = identity.dag_id.partition(JOB_DAG_PREFIX)
    stored = None if prefix else tx.job(name)
    whose = stored or record_of_started(job, tx.started_by(identity.dag_id, identity.run_id))
    before = tx.run(run_key)
    if before is not None and before.owner != whose.owner:
        what = f"The DAG run {identity.run_id} was another's; trigger a new one."
        raise Forbidden.anothers(what, before.owner, before.job.team)
    if whose.bound_to is None:
        check_job(services, job)
        return whose.owner
    user = Caller(name=whose.bound_to)
    check_use(services, user, job)
    check_runs_read(tx, services, user, job)
    theirs = tx.job(job.name) if stored is None else None
    if theirs is not None:
        check_managed(services, user, theirs)
    return whose.owner


def check_runs_read(tx: LedgerTx, services: Services, caller: Caller, job: TrainingJob) -> None:
    """Raises SpecError where ``job`` starts from what another's run left, which its workers would be let read.

    A run is known by its key, wherever in a path that stands: folders of runs are called so on every storage. Nor may a
    pattern or folder of data stand for several runs, or teams' prepared data be read by another way than their own.
    """
    rules, found, any_run = services.queues.rules(), [], services.runs.run_dir("any")
    prepared = PreparedPaths.beside(any_run, job.team).folder.rpartition("/")[0]
    given = (
        ("checkpoint.warm_start", job.checkpoint.warm_start),
        ("data.path", job.data.path),
        ("validation.path", job.validation.path),
        ("model.path", job.model.path),
        ("model.tokenizer", job.model.tokenizer),
    )
    for path, text in given:
        if f"{prepared}/" in f"{text}/":
            found.append(Violation(path=path, value=repr(text), allowed="data and models, not what was made of them"))
        if text and path in _MANY_FILES and reads_runs(text, any_run.rpartition("/")[0]):
            allowed = "no pattern or folder that takes in the folders of runs; name one run, or a folder of data"
            found.append(Violation(path=path, value=repr(text), allowed=allowed))
        for key in {each for each in (text or "").split("/") if len(each) == RUN_KEY_LENGTH}:
            run = tx.run(key)
            if run is not None and not may_manage(caller, owner=run.owner, team=run.job.team, rules=rules):
                allowed = f"a run of {caller.name} or of a team of theirs; {key} is another's"
                found.append(Violation(path=path, value=repr(text), allowed=allowed))
    if found:
        raise SpecError(found)


def preview(services: Services, request: RegisterRun, caller: Caller) -> PlanPreview:
    """The plans that ``request`` would get now; nothing is stored. Raises SpecError as ``register_run``."""
    check_use(services, caller, request.job)
    return planned(services, record_of(request, services.clock.now_s()))


def planned(
    services: Services, run: RunRecord, *, micro_batch_size: int | None = None, extra_bytes_per_gpu: int = 0
) -> PlanPreview:
    """The plans of ``run``, which need not be in the ledger, or why there are none; the rest as of ``first_plans``."""
    with services.ledger.reading() as tx:
        facts = plan_facts(tx, services, run)
    candidates, reason = first_plans(
        facts, services, run, micro_batch_size=micro_batch_size, extra_bytes_per_gpu=extra_bytes_per_gpu
    )
    return PlanPreview(candidates=candidates, reason=reason)


def record_of(request: RegisterRun, now_s: float) -> RunRecord:
    """The run as it begins."""
    return RunRecord(
        run_key=request.identity.run_key,
        identity=request.identity,
        job=request.job,
        state=JobState.PENDING,
        created_s=now_s,
        updated_s=now_s,
        model_config=request.model_config,
        data_facts=request.data_facts,
        total_steps=total_steps(request.job, request.data_facts),
        masked=request.masked,
        asked_model=request.asked_model,
        script_content=request.script_content,
    )


def _at_its_commit(before: RunRecord | None, run: RunRecord) -> RunRecord:
    """``run`` with the commit that it began with, wherever a branch is now, unless another model is asked for."""
    if before is None or before.commit is None or not before.was_asked_for(run.job.model, run.asked_model):
        return run
    model = replace(run.job.model, revision=before.commit)
    return replace(run, job=replace(run.job, model=model), model_config=before.model_config or run.model_config)


def _pending(tx: LedgerTx, run: RunRecord) -> RunRecord:
    before = tx.run(run.run_key)
    if before is not None:
        run = replace(run, num_attempts=before.num_attempts, generation=before.generation + 1)
        run = knowing_its_checkpoints(before, run)
    tx.put_run(run)
    again = "" if before is None else " again"
    registered = f"PENDING: job {run.job.name!r} registered{again}, its spec is frozen."
    log_event(tx, run.run_key, run.created_s, "state", registered)
    return run


def _planned(tx: LedgerTx, run: RunRecord, plans: tuple[tuple[Candidate, ...], Reason | None]) -> RunRecord:
    candidates, refusal = plans
    now_s, run = run.created_s, replace(run, plan_table=tx.put_plan_table(candidates))
    tx.put_run(run)
    if refusal is not None:
        return move(tx, run, JobState.FAILED_NO_RESOURCE, now_s, refusal)
    feasible = [each for each in candidates if each.feasible]
    best = min(feasible, key=lambda each: each.rank or 0)
    reason = Reason(code=best.reason.code, detail=f"{fitting(len(feasible))}; best: {best.plan.plan_id}.")
    return move(tx, run, JobState.PLANNED, now_s, reason)
