"""Freeing the space of runs that ended long ago. Their history stays, and so does what others learn from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from frenzy.app.services import Services, log_event, require_run
from frenzy.core.runs.access import Caller, may_manage
from frenzy.core.runs.ledger import ACTIVE_STATES, FINAL_STATES, JobState, RunRecord
from frenzy.core.runs.protocol import CleanedRun, CleanRun, EndedRun
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.prepared_data import PreparedPaths
from frenzy.core.values.units import format_bytes, format_duration
from frenzy.ports import LedgerTx

_BEFORE_THE_QUEUE: Final = frozenset({JobState.PENDING, JobState.PLANNED, JobState.PREPARING})
# Another's run that ended so lately may be evaluated yet, or cleared.
_LIKELY_RESUMED_S: Final = 86_400.0


def ended_runs(services: Services, *, older_than_s: float, caller: Caller) -> tuple[EndedRun, ...]:
    """Runs that ended at least ``older_than_s`` ago and are ``caller``'s to clean, oldest first."""
    latest_s, rules = services.clock.now_s() - older_than_s, services.queues.rules()
    with services.ledger.reading() as tx:
        old = (run for run in tx.runs(states=FINAL_STATES) if run.updated_s <= latest_s)
        ended = [run for run in old if may_manage(caller, owner=run.owner, team=run.job.team, rules=rules)]
    ended.sort(key=lambda run: (run.updated_s, run.run_key))
    return tuple(
        EndedRun(run_key=run.run_key, job_name=run.job.name, state=run.state, ended_s=run.updated_s) for run in ended
    )


def clean_run(services: Services, run_key: str, wish: CleanRun) -> CleanedRun:
    """Remove the files of a run that ended long ago, its finished model only if that is wished too.

    Raises NotFound, and PermanentError for a run that has not ended, or not long enough ago, or whose
    model a run that has not ended is to begin with.
    """
    with services.ledger.reading() as tx:
        run = require_run(tx, run_key)
        _refuse_if_needed(tx, services, run, wish)
    # Nothing is left of most: reading the runs that may use it is long work.
    has_data = services.runs.clean_data(_data_of(run), dry_run=True) > 0
    unused = _unused_data(services, run, wish) if has_data else ()
    num_bytes = services.runs.clean(run_key, keep_model=not wish.models, dry_run=wish.dry_run)
    num_bytes += services.runs.clean_data(unused, dry_run=wish.dry_run)
    if num_bytes and not wish.dry_run:
        kept = "the model too" if wish.models else "all but the model"
        with services.ledger.transaction() as tx:
            text = f"{format_bytes(num_bytes)} of its files were removed, {kept}."
            log_event(tx, run_key, services.clock.now_s(), "clean", text)
    return CleanedRun(run_key=run_key, num_bytes=num_bytes)


def _unused_data(services: Services, run: RunRecord, wish: CleanRun) -> tuple[str, ...]:
    """Folders of prepared data that only this run used, and runs that may be cleaned just as well.

    None while the team has a run that is yet to find what is there.
    """
    latest_s = services.clock.now_s() - max(wish.older_than_s, _LIKELY_RESUMED_S)
    with services.ledger.reading() as tx:
        active = tx.runs(states=ACTIVE_STATES)
        if any(_may_find(each) and each.job.team == run.job.team for each in active):
            return ()
        unused = {*_data_of(run)} - _all_data(active)
        ended = tx.runs(states=FINAL_STATES) if unused else ()
    kept = _all_data(each for each in ended if each.updated_s > latest_s and each.run_key != run.run_key)
    return tuple(sorted(unused - kept))


def _all_data(runs: Iterable[RunRecord]) -> set[str]:
    return {folder for run in runs for folder in _data_of(run)}


def _data_of(run: RunRecord) -> tuple[str, ...]:
    if run.prepared is None:
        return ()
    paths = PreparedPaths.beside(run.run_key, run.job.team)
    return tuple(each.lstrip("/") for each in paths.folders_of(run.prepared))


def _may_find(run: RunRecord) -> bool:
    return run.state in _BEFORE_THE_QUEUE and run.prepared is None


def _refuse_if_needed(tx: LedgerTx, services: Services, run: RunRecord, wish: CleanRun) -> None:
    ended_for_s = services.clock.now_s() - run.updated_s
    if run.state not in FINAL_STATES or any(each.run_key == run.run_key for each in tx.held_leases()):
        raise _refusal(run, f"It has not ended: it is {run.state}.", "Wait for its end, or use frenzy cancel.")
    if ended_for_s < wish.older_than_s:
        raise _refusal(run, f"It ended only {format_duration(ended_for_s)} ago.", "Clean runs that ended before.")
    user = _user_of_model(tx, services.runs.run_dir(run.run_key)) if wish.models else None
    if user is not None:
        raise _refusal(run, f"The job {user.job.name} is to begin with its model.", "Clean it when that job has ended.")


def _user_of_model(tx: LedgerTx, run_dir: str) -> RunRecord | None:
    return next(
        (run for run in tx.runs(states=ACTIVE_STATES) if any(_lies_in(each, run_dir) for each in _paths_of(run))), None
    )


def _paths_of(run: RunRecord) -> tuple[str, ...]:
    job = run.job
    given = (job.checkpoint.warm_start, job.model.path, job.model.tokenizer, job.data.path, job.validation.path)
    return tuple(each for each in given if each)


def _lies_in(path: str, run_dir: str) -> bool:
    place, folder = (each.removeprefix("file://").rstrip("/") for each in (path, run_dir))
    return f"{place}/".startswith(f"{folder}/") or place == folder.rpartition("/")[2]  # a run key


def _refusal(run: RunRecord, why: str, remedy: str) -> PermanentError:
    detail = f"The files of {run.job.name} {run.run_key} stay. {why}"
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))
