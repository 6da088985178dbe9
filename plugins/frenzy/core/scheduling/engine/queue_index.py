"""The waiting jobs in queue order, as an immutable index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from frenzy.core.scheduling.engine.options import Contender
from frenzy.core.values.scheduling_facts import QueuedJob

Order = Callable[[QueuedJob], tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Waiting:
    """All waiting jobs, in queue order; what else is known of them is found when it is asked for."""

    in_order: tuple[Contender, ...]
    order: Order

    @staticmethod
    def of(contenders: Iterable[Contender], order: Order) -> Waiting:
        return Waiting(tuple(sorted(contenders, key=lambda each: order(each.job))), order)

    def __iter__(self) -> Iterator[Contender]:
        return iter(self.in_order)

    def __len__(self) -> int:
        return len(self.in_order)

    @cached_property
    def pressed(self) -> tuple[Contender, ...]:
        """Those whose memory outgrew their GPUs."""
        return tuple([each for each in self.in_order if each.job.pressed])

    @cached_property
    def _by_key(self) -> Mapping[str, Contender]:
        return {each.job.run_key: each for each in self.in_order}

    def only(self, run_keys: Collection[str]) -> Waiting:
        """The jobs of ``run_keys``."""
        return Waiting(tuple([each for each in self.in_order if each.job.run_key in run_keys]), self.order)

    def put(self, contender: Contender) -> Waiting:
        """With ``contender`` at its place."""
        return Waiting.of((*self.in_order, contender), self.order)

    def without(self, run_keys: Collection[str]) -> Waiting:
        """Without the jobs of ``run_keys``, those that wait."""
        return Waiting(tuple([each for each in self.in_order if each.job.run_key not in run_keys]), self.order)

    def find(self, run_key: str) -> Contender | None:
        """The waiting job of that key; None if it does not wait."""
        return self._by_key.get(run_key)
