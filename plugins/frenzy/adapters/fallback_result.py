"""The result of an attempt whose workers left none."""

from __future__ import annotations

from frenzy.core.values.launch import AttemptResult
from frenzy.ports import RunStore, telemetry_records


def put_fallback_result(store: RunStore, *, run_key: str, attempt: int, exit_code: int, detail: str) -> None:
    """Put result.json unless it is there; progress as telemetry and checkpoints tell it."""
    if store.result(run_key, attempt) is not None:
        return
    records = telemetry_records(store, run_key, attempt)
    newest = max(records, key=lambda each: each.step, default=None)
    store.put_result(
        run_key,
        attempt,
        AttemptResult(
            exit_code=exit_code,
            last_step=newest.step if newest else 0,
            total_steps=0,  # the ledger knows it where anybody does
            checkpoint_step=store.newest_checkpoint(run_key),
            final_loss=newest.loss if newest else None,
            detail=detail,
        ),
    )
