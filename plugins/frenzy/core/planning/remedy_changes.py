"""What a remedy is made of: one change of one field, and where a series of them has led."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.resource_plan import Candidate, ResourcePlan

Solve = Callable[[PlanRequest, Cluster], tuple[Candidate, ...]]


@dataclass(frozen=True, slots=True)
class Change:
    """``field`` from ``before`` to ``after``, as a person would write them."""

    field: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.field}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Situation:
    """A request and a cluster, and the changes that led to them."""

    request: PlanRequest
    cluster: Cluster
    changes: tuple[Change, ...]

    def asking(self, request: PlanRequest, change: Change) -> Situation:
        """The same with another request."""
        return replace(self, request=request, changes=(*self.changes, change))

    def on(self, cluster: Cluster, change: Change) -> Situation:
        """The same on another cluster."""
        return replace(self, cluster=cluster, changes=(*self.changes, change))


def feasible_plans(candidates: Sequence[Candidate]) -> list[ResourcePlan]:
    """Plans that can run, by rank."""
    return [each.plan for each in candidates if each.feasible]


def nearest(candidates: Sequence[Candidate]) -> Candidate:
    """The refused plan that came nearest to running: by the share of memory that it lacks.

    Of those that lack none, as plans refused by a limit, the one on the smallest card and the fewest GPUs: the one that
    a remedy adds. Those that cannot be launched come last.
    """
    return min(candidates, key=_distance)


def _distance(candidate: Candidate) -> tuple[int, float, int, int, str]:
    plan = candidate.plan
    lacking = max(0.0, plan.memory.required_bytes / max(1, plan.gpu_memory_bytes) - 1.0)
    return (int(candidate.reason.code is ReasonCode.PREDICTED_NOT_LAUNCHABLE), lacking, *card_then_count(candidate))


def card_then_count(candidate: Candidate) -> tuple[int, int, str]:
    """Sorts by the card's memory, then by GPUs."""
    return (candidate.plan.gpu_memory_bytes, candidate.plan.num_gpus, candidate.plan.plan_id)
