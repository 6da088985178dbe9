"""What a waiting job was promised, and what other jobs leave alone for its sake."""

from __future__ import annotations

import math
from dataclasses import dataclass

from frenzy.core.scheduling.engine.options import Option
from frenzy.core.scheduling.engine.room import Need, TypeRoom, lesser, minus
from frenzy.core.values.cluster import Placement
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """When and where a waiting job can start an option if running jobs end as expected.

    start_s: None when that hangs on a job whose end is not known. after: names of the jobs whose
    end it waits for last. preference: place of the option in the job's list, from 0.
    """

    option: Option
    preference: int
    placement: Placement
    start_s: float | None
    after: tuple[str, ...]

    @property
    def end_s(self) -> float:
        return math.inf if self.start_s is None else self.start_s + self.option.run_s


@dataclass(slots=True, kw_only=True)
class Reservation:
    """A promise that is kept, for the length of one pass.

    instead_of: the plan the job could have started at once and gave up for the promise.
    at_start: room of the GPU type at the promised start, without the promised placement and
    without what has been started since to last beyond it.
    """

    job: QueuedJob
    promise: Promise
    instead_of: ResourcePlan | None
    at_start: TypeRoom
    _spare: TypeRoom | None = None

    def begins_after(self, end_s: float) -> bool:
        """Whether a job that ends at ``end_s`` is gone by the promised start."""
        return self.promise.start_s is not None and end_s <= self.promise.start_s

    def spare(self, now: TypeRoom) -> TypeRoom:
        """What is idle in ``now`` and not needed at the start: all that longer jobs may use."""
        if self._spare is None:
            free = {name: lesser(free, self.at_start.free[name]) for name, free in now.free.items()}
            self._spare = TypeRoom.of(free, now.not_ready)
        return self._spare

    def narrow(self, need: Need, placement: Placement, *, now: TypeRoom, lasts_beyond: bool) -> None:
        """Take account of ``placement``, started for ``need``; ``now`` is what it left idle."""
        if lasts_beyond:
            self.at_start = taken_out(self.at_start, need, placement)
        if self._spare is not None:
            names = [each.node for each in placement.allocations]
            changed = {name: lesser(now.free[name], self.at_start.free[name]) for name in names}
            self._spare = self._spare.with_free(changed)


def taken_out(room: TypeRoom, need: Need, placement: Placement) -> TypeRoom:
    """``room`` without what ``need`` holds with ``placement``."""
    return room.with_free(
        {each.node: minus(room.free[each.node], need.on_node(each.num_gpus)) for each in placement.allocations}
    )
