"""The result of an attempt whose workers left none."""

from __future__ import annotations

from typing import Final

from frenzy.core.values.launch import AttemptResult
from frenzy.ports import RunStore

# The newest are in every sample.
_ENOUGH: Final = 1_000


def put_fallback_result(store: RunStore, *, run_key: str, attempt: int, exit_code: int, detail: str) -> None:
    """Put result.json unless it is there; progress as telemetry and checkpoints tell it."""
    if store.result(run_key, attempt) is not None:
        return
    records = store.telemetry_sample(run_key, attempt, most_records=_ENOUGH)
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
