"""Work that can fail on one rank, done so that all ranks hear of it and none waits for ever."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from torch import distributed

from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError
from frenzy.trainer.stores import is_of_store

logger = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_AFTER_S: Final = 30.0
_MEET_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rank could not do its part; ``of_storage`` when a later try may well succeed."""

    detail: str
    of_storage: bool


def attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Let every rank reach the next collective, whatever went wrong here."""
    try:
        return work(), None
    except Exception as error:
        logger.exception("this rank could not do its part of a save")
        return None, error


def failure_of(error: Exception | None) -> Failure | None:
    if error is None:
        return None
    return Failure(f"{type(error).__name__}: {error}", of_storage=is_of_store(error))


def from_rank0(work: Callable[[], T]) -> T:
    """Let rank 0 do ``work``; its result, or its failure, on every rank."""
    result, error = attempt(work) if distributed.get_rank() == 0 else (None, None)
    box: list[Any] = [(result, failure_of(error))]
    distributed.broadcast_object_list(box, src=0)
    shared, failure = box[0]
    raise_if_failed([failure], error)
    return shared  # type: ignore[no-any-return]


def from_rank0_at_length(work: Callable[[], T]) -> T:
    """As ``from_rank0``, for work that may take longer than a collective waits: all ranks meet meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(work) if distributed.get_rank() == 0 else None
        while not from_rank0(lambda: _has_ended(future)):
            pass
    return from_rank0(lambda: _result(future))


def gathered_at_length(work: Callable[[], T] | None) -> list[T | None]:
    """What each rank's ``work`` gives, by rank; None of a rank without. It may take longer than a collective waits."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = None if work is None else pool.submit(work)
        while not all(_gathered(future is None or _has_ended(future))):
            pass
    return _gathered(None if future is None else future.result())


def _gathered(own: Any) -> list[Any]:
    of_ranks: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(of_ranks, own)
    return of_ranks


def _has_ended(future: Future[T] | None) -> bool:
    assert future is not None
    wait([future], timeout=_MEET_EVERY_S)
    return future.done()


def _result(future: Future[T] | None) -> T:
    assert future is not None
    return future.result()


def raise_if_failed(failures: Sequence[Failure | None], own: Exception | None) -> None:
    """Fail on all ranks when one did: to be tried again for storage alone, else for good.

    The rank whose own fault it was raises its own error and the others repeat its words, so that
    running out of memory is told from a crash whichever rank is heard first.
    """
    failed = [(rank, each) for rank, each in enumerate(failures) if each is not None]
    if not failed:
        return
    worst = min(failed, key=lambda each: each[1].of_storage)
    detail = f"Rank {worst[0]} could not save: {worst[1].detail}"
    if worst[1].of_storage:
        raise TemporaryError(Reason(code=ReasonCode.WORKER_CRASHED, detail=detail), retry_after_s=RETRY_AFTER_S)
    raise own or RuntimeError(detail)
