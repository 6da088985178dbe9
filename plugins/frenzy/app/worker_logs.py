"""What workers wrote: the end of a rank's log, or part after part of it."""

from __future__ import annotations

from frenzy.app.services import NotFound, Services, require_run
from frenzy.core.runs.ledger import Attempt, RunRecord
from frenzy.core.runs.masking import hidden_bytes
from frenzy.core.runs.views import LogLines
from frenzy.core.values.errors import Reason, ReasonCode


def log_tail(services: Services, run_key: str, attempt: int | None = None, rank: int = 0) -> str:
    """The end of one rank's log, without masked texts; of the newest attempt when none is named. Raises NotFound."""
    return log_part(services, run_key, attempt, rank).text


def log_part(
    services: Services, run_key: str, attempt: int | None = None, rank: int = 0, offset: int | None = None
) -> LogLines:
    """The log from byte ``offset`` on, in whole lines while the attempt runs; None: its end. Raises NotFound."""
    run, wanted = _attempt(services, run_key, attempt, rank)
    found = services.runs.log_part(
        run_key,
        wanted.attempt,
        rank=rank,
        offset=offset,
        whole_lines=wanted.is_live and offset is not None,
        hidden=hidden_bytes(run),
    )
    return LogLines(
        attempt=wanted.attempt,
        rank=rank,
        text=found.text,
        next_offset=found.next_offset,
        is_over=not wanted.is_live and not found.has_more,
    )


def _attempt(services: Services, run_key: str, attempt: int | None, rank: int) -> tuple[RunRecord, Attempt]:
    """The run and that attempt of it; raises NotFound, also where the attempt has no such rank."""
    with services.ledger.reading() as tx:
        run = require_run(tx, run_key)
        attempts = {each.attempt: each for each in tx.attempts(run_key)}
    wanted = attempt if attempt is not None else max(attempts, default=1)
    if wanted not in attempts:
        raise _no_log(f"Run {run_key!r} has no attempt {wanted}; it has {list(attempts) or 'none yet'}.")
    num_ranks = attempts[wanted].plan.num_gpus
    if rank >= num_ranks:
        ranks = f"ranks 0 to {num_ranks - 1}" if num_ranks > 1 else "rank 0 only"
        raise _no_log(f"Attempt {wanted} of run {run_key!r} has no rank {rank}; it has {ranks}.")
    return run, attempts[wanted]


def _no_log(detail: str) -> NotFound:
    return NotFound(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail))
