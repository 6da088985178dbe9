"""What runs leave: models, checkpoints, and curves at trackers."""

from __future__ import annotations

from frenzy.app.services import Services, require_run
from frenzy.core.runs.access import Sight, see_all
from frenzy.core.runs.ledger import Attempt, JobState, RunRecord
from frenzy.core.runs.masking import without_masked
from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.runs.views import FinishedModel, SavedCheckpoint
from frenzy.core.values.launch import RunPaths
from frenzy.ports import LedgerTx


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
    last, num_bytes = attempts[-1], services.runs.model_bytes(run.run_key)
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


def trackers(services: Services, run_key: str) -> tuple[TrackedRun, ...]:
    """Where the run's curves are, and how far. Raises NotFound."""
    with services.ledger.reading() as tx:
        run = require_run(tx, run_key)
    return without_masked(services.runs.tracked(run_key), run)


def checkpoints(services: Services, run_key: str) -> tuple[SavedCheckpoint, ...]:
    """The complete ones, oldest first. Raises NotFound."""
    with services.ledger.reading() as tx:
        require_run(tx, run_key)
    paths = RunPaths(services.runs.run_dir(run_key))
    return tuple(
        SavedCheckpoint(step=step, path=paths.checkpoint_manifest(step).rpartition("/")[0])
        for step in services.runs.checkpoint_steps(run_key)
    )
