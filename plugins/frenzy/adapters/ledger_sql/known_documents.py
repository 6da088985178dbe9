"""Values by their documents: they are immutable, so the same text may give the same object again."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache, lru_cache, partial
from typing import Any, Final, TypeVar, cast

from frenzy.core.runs.ledger import QueueEntry, RunRecord
from frenzy.core.values import codec
from frenzy.core.values.errors import Reason

T = TypeVar("T")
# A pass reads those of all that wait: a cache that is smaller than the queue would never be hit.
_OF_ALL_THAT_WAIT: Final = frozenset((RunRecord, QueueEntry, Reason))
_MANY: Final = 16_384
_MOST: Final = 4096


def loads(kind: type[T], document: str) -> T:
    """The value of type ``kind`` in ``document``."""
    return cast(T, _loader(cast(Hashable, kind))(document))


@cache
def _loader(kind: Hashable) -> Any:
    return lru_cache(maxsize=_MANY if kind in _OF_ALL_THAT_WAIT else _MOST)(partial(codec.loads, cast(type, kind)))
