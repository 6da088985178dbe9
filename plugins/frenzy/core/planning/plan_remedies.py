"""When no plan fits: the change of the least effect that makes one fit, found by trying it.

Changes of the job (``job_remedies``) and beyond it (``resource_remedies``) have an effect on the run, from the same
numbers computed in less memory to another method. The search goes up this order until the changes so far suffice,
then leaves out each that is not needed, the one with the most effect first. At most one change is beyond the
job; what leaves the result as it is, or nearly, stays where without it sequences would be shorter or GPUs more. Each
value is then the least that suffices. A search that grows too large is given up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from frenzy.core.planning.grid import divisors
from frenzy.core.planning.job_remedies import Effect, JobChange, job_changes
from frenzy.core.planning.remedy_changes import Change, Situation, Solve, feasible_plans, nearest
from frenzy.core.planning.request import PlanRequest
from frenzy.core.planning.resource_remedies import (
    RESOURCE_CHANGES,
    ResourceChange,
    more_gpus,
    shorter_sequences,
    with_length,
)
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.resource_plan import Candidate

# How many candidates are looked at in search of a remedy, about half a second's work. A look costs as much as so
# many candidates at least, and where a batch splits in many ways as one for so many pairs of data-parallel degree
# and micro-batch.
_MOST_CANDIDATES: Final = 2_000
_LEAST_COST: Final = 20
_SPLITS_PER_COST: Final = 50
# Effects of changes that are made rather than to take more of this.
_RATHER: Final[Mapping[ResourceChange | None, tuple[Effect, ...]]] = {
    more_gpus: (Effect.SAME_RESULT,),
    shorter_sequences: (Effect.SAME_RESULT, Effect.APPROXIMATION),
}
_OTHER_WAYS: Final = (Effect.OTHER_METHOD, Effect.COARSER)
# A change with which sequences are hardly longer is not worth making.
_WORTH_MAKING: Final = 0.95
_NONE_FOUND: Final = "No change that was tried makes it fit: take a smaller model."


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
    request: PlanRequest,
    cluster: Cluster,
    candidates: tuple[Candidate, ...],
    solve: Solve,
    *,
    within: bool = False,
) -> Remedy | None:
    """The changes of the least effect after which ``solve`` finds a feasible plan; None when none of those known do.

    candidates: what ``solve`` finds before any change. within: the cluster stays as it is.
    """
    if not candidates:
        return None
    budget = Budget(solve)
    budget.learn(request, cluster, candidates)
    search = _Search(Situation(request, cluster, ()), budget)
    changes = job_changes(request, candidates, cluster)
    for step in _steps(changes, within=within):
        upto = tuple(each for each in changes if each.effect <= step.effect)
        safe = tuple(each for each in upto if not each.may_harm)
        for chosen in dict.fromkeys((upto, safe) if step.resource is None else (upto, safe, ())):
            found = search.tightened(search.needed(chosen, step.resource), step.resource)
            if budget.is_spent:
                return None
            if found is not None:
                return _remedy(found)
    # Where a choice cannot be launched, some of the others may not be either, and spoil all together.
    alone = (search.tightened((each,), None) for each in changes)
    return next((_remedy(found) for found in alone if found is not None), None)


def _remedy(found: Situation) -> Remedy:
    return Remedy(changes=found.changes, request=found.request, cluster=found.cluster)


@dataclass(frozen=True, slots=True)
class _Step:
    """All changes of the job up to an effect, and perhaps one beyond it."""

    effect: Effect
    resource: ResourceChange | None = None


def _steps(changes: Sequence[JobChange], *, within: bool) -> list[_Step]:
    """From the least effect to the most; of as much, changes of the job first. Where another method does not suffice
    with sequences as they are, it is tried with shorter ones.
    """
    of_job = [_Step(effect) for effect in sorted({each.effect for each in changes})]
    beyond = [
        _Step(effect, each) for each, effect in RESOURCE_CHANGES.items() if not within or each is shorter_sequences
    ]
    if any(each.effect in _OTHER_WAYS for each in of_job):
        beyond.append(_Step(max(_OTHER_WAYS), shorter_sequences))
    return sorted([*of_job, *beyond], key=lambda each: (each.effect, each.resource is not None))


@dataclass(slots=True)
class Budget:
    """``solve``, for changed jobs, as long as it costs no more than a remedy is worth.

    What the memory model does not cover is no plan, and no remedy. The answer to the very same request and cluster is
    kept: they are told by identity, for a request cannot be hashed.
    """

    solve: Solve
    left: int = _MOST_CANDIDATES
    known: dict[tuple[int, int], tuple[PlanRequest, Cluster, tuple[Candidate, ...]]] = field(default_factory=dict)

    def __call__(self, request: PlanRequest, cluster: Cluster) -> tuple[Candidate, ...]:
        key = (id(request), id(cluster))
        if key not in self.known:
            if self.is_spent:
                return ()
            self.learn(request, cluster, self._solved(request, cluster))
            splits = len(divisors(request.global_batch_size, request.global_batch_size))
            self.left -= max(_LEAST_COST, len(self.known[key][-1]), splits**2 // _SPLITS_PER_COST)
        return self.known[key][-1]

    def learn(self, request: PlanRequest, cluster: Cluster, found: tuple[Candidate, ...]) -> None:
        """``solve`` would find these. Keeps both alive, so that nothing else gets their identity."""
        self.known[id(request), id(cluster)] = (request, cluster, found)

    def _solved(self, request: PlanRequest, cluster: Cluster) -> tuple[Candidate, ...]:
        try:
            return self.solve(request, cluster)
        except PermanentError:
            return ()

    @property
    def is_spent(self) -> bool:
        return self.left <= 0


@dataclass(frozen=True)
class _Search:
    """Tries combinations. changed: where those of the job have led; known: where those suffice that were tried."""

    start: Situation
    solve: Solve
    changed: dict[tuple[JobChange, ...], Situation] = field(default_factory=dict)
    known: dict[tuple[tuple[JobChange, ...], ResourceChange | None], Situation | None] = field(default_factory=dict)

    def needed(self, chosen: tuple[JobChange, ...], resource: ResourceChange | None) -> tuple[JobChange, ...]:
        """``chosen`` without what does not help, that of the most effect first; as it is where it does not suffice."""
        after = self._sufficient(chosen, resource)
        if after is None:
            return chosen
        for each in reversed(chosen):
            fewer = tuple(other for other in chosen if other is not each)
            is_rather = each.effect in _RATHER.get(resource, ())
            if self._nearly(fewer, after) if is_rather else self._sufficient(fewer, resource) is not None:
                chosen = fewer
                if each.may_harm and resource is not None:  # it may have needed more of it
                    after = self._sufficient(chosen, resource) or after
        return chosen

    def _nearly(self, chosen: tuple[JobChange, ...], after: Situation) -> bool:
        """Whether ``chosen`` suffice on the cluster of ``after``, with sequences nearly as long."""
        changed = self._changed(chosen)
        length = math.ceil(_WORTH_MAKING * after.request.sequence_length)
        shorter = changed.request if length >= changed.request.sequence_length else with_length(changed.request, length)
        return self._fits(replace(changed, request=shorter, cluster=after.cluster))

    def tightened(self, chosen: tuple[JobChange, ...], resource: ResourceChange | None) -> Situation | None:
        """The situation after ``chosen`` and ``resource``, each value the least that suffices; None if none does."""
        after = self._sufficient(chosen, resource)
        if after is None:
            return None
        for each in chosen:
            after = each.tighten(after, self.start, self.solve)
        return after if self._fits(after) else None

    def _sufficient(self, chosen: tuple[JobChange, ...], resource: ResourceChange | None) -> Situation | None:
        """The situation after both, where a plan fits."""
        key = (chosen, resource)
        if key not in self.known:
            after = self._changed(chosen)
            fitting = after if resource is None and self._fits(after) else None
            self.known[key] = fitting if resource is None else resource(after, self.solve)
        return self.known[key]

    def _changed(self, changes: tuple[JobChange, ...]) -> Situation:
        if changes not in self.changed:
            situation = self.start
            for each in changes:
                situation = each.lift(situation)
            self.changed[changes] = situation
        return self.changed[changes]

    def _fits(self, after: Situation) -> bool:
        return bool(feasible_plans(self.solve(after.request, after.cluster)))


def refusal_of(candidates: Sequence[Candidate], remedy: Remedy | None) -> Reason:
    """One reason for all refused ``candidates``: that of the plan that came nearest to running."""
    if not candidates:
        return Reason(code=ReasonCode.NEVER_FITS, detail="The cluster has no GPU at all.", remedy="Add a GPU type.")
    refused = nearest(candidates)
    sentence = remedy.sentence if remedy is not None else refused.reason.remedy or _NONE_FOUND
    detail = f"No plan fits the cluster; the nearest: {refused.reason.sentence}"
    return Reason(code=refused.reason.code, detail=detail, remedy=sentence)
