"""When no plan fits: the smallest change that makes one fit, found by trying it.

Changes of the job (``remedy_job``): let the plan checkpoint, use a choice that the trainer can run,
raise the user's own limits. Changes beyond it (``remedy_resources``): shorten the sequences, add
GPUs of a type that is there, add host memory, then GPU memory. The fewest changes win; of as many,
those that come first in this order. Each value is then the least that suffices. A search that grows too
large is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from frenzy.core.planning.grid import divisors
from frenzy.core.planning.job_remedies import JobChange, job_changes
from frenzy.core.planning.remedy_changes import Change, Situation, Solve, feasible_plans, nearest
from frenzy.core.planning.request import PlanRequest
from frenzy.core.planning.resource_remedies import RESOURCE_CHANGES, ResourceChange
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.resource_plan import Candidate

# How many candidates are looked at in search of a remedy, about half a second's work: the number of combinations
# doubles with each change that could help. A look costs as much as so many candidates at least, and where a batch
# splits in many ways as one for so many pairs of data-parallel degree and micro-batch.
_MOST_CANDIDATES: Final = 2_000
_LEAST_COST: Final = 20
_SPLITS_PER_COST: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One or more changes; the request and cluster they lead to."""

    changes: tuple[Change, ...]
    request: PlanRequest
    cluster: Cluster

    @property
    def field(self) -> str:
        """What the first change is of."""
        return self.changes[0].field

    @property
    def sentence(self) -> str:
        return f"{' and '.join(str(each) for each in self.changes)} would fit."


def first_remedy(
    request: PlanRequest, cluster: Cluster, candidates: tuple[Candidate, ...], solve: Solve
) -> Remedy | None:
    """The fewest changes after which ``solve`` finds a feasible plan; None when none of those known do.

    candidates: what ``solve`` finds before any change.
    """
    budget = _Budget(solve)
    search = _Search(Situation(request, cluster, ()), budget)
    if not candidates:
        return None
    changes = job_changes(request, candidates, cluster)
    resources = [each for each in (None, *RESOURCE_CHANGES) if search.helps(changes, each)]
    if not resources:
        return None
    for count in range(1, len(changes) + 2):
        for resource in resources:
            for chosen in combinations(changes, count - (resource is not None)):
                found = search.tightened(chosen, resource)
                if budget.is_spent:
                    return None
                if found is not None:
                    return Remedy(changes=found.changes, request=found.request, cluster=found.cluster)
    return None


@dataclass(slots=True)
class _Budget:
    """``solve``, for changed jobs, as long as it costs no more than a remedy is worth.

    What the memory model does not cover is no plan, and no remedy.
    """

    solve: Solve
    left: int = _MOST_CANDIDATES

    def __call__(self, request: PlanRequest, cluster: Cluster) -> tuple[Candidate, ...]:
        if self.is_spent:
            return ()
        try:
            found = self.solve(request, cluster)
        except PermanentError:
            found = ()
        splits = len(divisors(request.global_batch_size, request.global_batch_size))
        self.left -= max(_LEAST_COST, len(found), splits**2 // _SPLITS_PER_COST)
        return found

    @property
    def is_spent(self) -> bool:
        return self.left <= 0


@dataclass(frozen=True)
class _Search:
    """Tries combinations; ``known`` are the answers already had."""

    start: Situation
    solve: Solve
    known: dict[tuple[JobChange, ...], bool] = field(default_factory=dict)

    def helps(self, changes: Sequence[JobChange], resource: ResourceChange | None) -> bool:
        """Whether ``resource``, or nothing beyond the job, can help at all: with every change of the job made."""
        after = self._changed(changes)
        return self._fits(tuple(changes), after) if resource is None else resource(after, self.solve) is not None

    def tightened(self, chosen: tuple[JobChange, ...], resource: ResourceChange | None) -> Situation | None:
        """The situation after ``chosen`` and ``resource``, each value the least that suffices; None if none does."""
        after = self._changed(chosen)
        if resource is None:
            if not self._fits(chosen, after):
                return None
        else:
            changed = resource(after, self.solve)
            if changed is None:
                return None
            after = changed
        for each in chosen:
            after = each.tighten(after, self.start, self.solve)
        return after if feasible_plans(self.solve(after.request, after.cluster)) else None

    def _changed(self, changes: Sequence[JobChange]) -> Situation:
        situation = self.start
        for each in changes:
            situation = each.lift(situation)
        return situation

    def _fits(self, chosen: tuple[JobChange, ...], after: Situation) -> bool:
        if chosen not in self.known:
            self.known[chosen] = bool(feasible_plans(self.solve(after.request, after.cluster)))
        return self.known[chosen]


def refusal_of(candidates: Sequence[Candidate], cluster: Cluster, remedy: Remedy | None) -> Reason:
    """One reason for all refused ``candidates``: that of the plan that came nearest to running."""
    if not candidates:
        return Reason(code=ReasonCode.NEVER_FITS, detail="The cluster has no GPU at all.", remedy="Add a GPU type.")
    refused = nearest(candidates)
    sentence = remedy.sentence if remedy is not None else refused.reason.remedy
    detail = f"No plan fits the cluster; the nearest: {refused.reason.sentence}"
    return Reason(code=refused.reason.code, detail=detail, remedy=sentence)
