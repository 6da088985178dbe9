"""What runs leave: models, checkpoints, and curves at trackers."""

from __future__ import annotations

from frenzy.app.services import NotFound, Services, require_run
from frenzy.core.runs.access import Sight, see_all
from frenzy.core.runs.ledger import Attempt, JobState, RunRecord
from frenzy.core.runs.masking import without_masked
from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.runs.views import FinishedModel, ModelFile, SavedCheckpoint
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.run_files import RunPaths
from frenzy.ports import LedgerTx, StoredFile


def models(
    services: Services, *, limit: int = 50, run_key: str | None = None, sees: Sight = see_all
) -> tuple[FinishedModel, ...]:
    """Of the newest runs that succeeded, newest first; of that run only, where one is named."""
    with services.ledger.reading() as tx:
        runs = _succeeded(tx, limit, sees) if run_key is None else _one(tx, run_key, sees)
        tx.read_ahead(run.run_key for run in runs)
        found = [(run, tx.attempts(run.run_key)) for run in runs]
    return tuple(_model(services, run, attempts) for run, attempts in found if attempts)


def _succeeded(tx: LedgerTx, limit: int, sees: Sight) -> tuple[RunRecord, ...]:
    return tx.runs(states=(JobState.SUCCEEDED,), dag_ids=sees(tx.dag_ids()), limit=limit)


def _one(tx: LedgerTx, run_key: str, sees: Sight) -> tuple[RunRecord, ...]:
    run = tx.run(run_key)
    is_shown = run is not None and run.state is JobState.SUCCEEDED and bool(sees([run.identity.dag_id]))
    return (run,) if run is not None and is_shown else ()


def _model(services: Services, run: RunRecord, attempts: tuple[Attempt, ...]) -> FinishedModel:
    last, num_bytes = attempts[-1], sum(services.runs.model_files(run.run_key).values())
    return FinishedModel(
        run_key=run.run_key,
        job_name=run.job.name,
        dag_id=run.identity.dag_id,
        run_id=run.identity.run_id,
        team=run.job.team,
        owner=run.owner,
        ended_s=run.updated_s,
        path=RunPaths(services.runs.run_dir(run.run_key)).model_dir if num_bytes else None,
        num_bytes=num_bytes,
        steps=last.last_step,
        loss=last.last_loss,
        plan_id=last.plan.plan_id,
        num_attempts=len(attempts),
        num_gpus=last.plan.num_gpus,
        run_s=sum((each.ended_s or run.updated_s) - (each.started_s or each.created_s) for each in attempts),
    )


def model_files(services: Services, run_key: str) -> tuple[ModelFile, ...]:
    """The files of the finished model, by name. Raises NotFound."""
    _require_finished(services, run_key)
    return tuple(ModelFile(name=name, num_bytes=size) for name, size in services.runs.model_files(run_key).items())


def model_file(services: Services, run_key: str, name: str) -> StoredFile:
    """The file that ``model_files`` lists by that name. Raises NotFound."""
    _require_finished(services, run_key)
    found = services.runs.model_file(run_key, name)
    if found is None:
        raise _no_file(f"The model of run {run_key!r} has no file {name!r}.", f"See: frenzy models {run_key}")
    return found


def _require_finished(services: Services, run_key: str) -> None:
    """What lies in the folder before the run has succeeded is no model."""
    with services.ledger.reading() as tx:
        run = require_run(tx, run_key)
    if run.state is not JobState.SUCCEEDED:
        raise _no_file(
            f"The run {run_key} of {run.job.name} is {run.state}: it has left no model.", "See: frenzy models"
        )


def _no_file(detail: str, remedy: str) -> NotFound:
    return NotFound(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))


def trackers(services: Services, run_key: str) -> tuple[TrackedRun, ...]:
    """Where the run's curves are, and how far. Raises NotFound."""
    with services.ledger.reading() as tx:
        run = require_run(tx, run_key)
    return without_masked(services.runs.tracked(run_key), run) if run.job.tracking else ()


def checkpoints(services: Services, run_key: str) -> tuple[SavedCheckpoint, ...]:
    """The complete ones that it may go on from, oldest first. Raises NotFound."""
    with services.ledger.reading() as tx:
        if require_run(tx, run_key).stale_checkpoints:
            return ()
    paths = RunPaths(services.runs.run_dir(run_key))
    return tuple(
        SavedCheckpoint(step=step, path=paths.checkpoint_manifest(step).rpartition("/")[0])
        for step in services.runs.checkpoint_steps(run_key)
    )
