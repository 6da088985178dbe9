"""What an administrator sets about queues and teams: shares of the cluster, and GPUs held at most.

A queue's share is its weight over the weights of all queues that have jobs; what others leave idle it
may borrow. A quota is a hard limit, whatever is idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from frenzy.core.errors import Violation

ANY_OTHER: Final = "*"
"""The name of the rule for every team that has none of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """GPUs held at most at a time: all together, and of single types. None, or a type without entry: no limit."""

    max_gpus: int | None = None
    max_gpus_by_type: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRule:
    """One queue. weight: of its share."""

    name: str
    weight: float = 1.0
    quota: Quota = Quota()


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamRule:
    """One team, or with the name ``*`` every team without a rule, each by itself."""

    name: str
    quota: Quota = Quota()


class Limit(NamedTuple):
    """One hard limit that jobs come under. holder: "queue" or "team". gpu_type: None for all types together."""

    holder: str
    name: str
    gpu_type: str | None
    num_gpus: int

    @property
    def title(self) -> str:
        """``"team vision"``."""
        return f"{self.holder} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """All queues and teams of an installation. Without queues, a job may name any, and all count alike."""

    queues: tuple[QueueRule, ...] = ()
    teams: tuple[TeamRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.queues or self.teams)

    def weight_of(self, queue: str) -> float:
        """A queue that is not known (any more) weighs 1."""
        return next((each.weight for each in self.queues if each.name == queue), 1.0)

    def limits_of(self, queue: str, team: str) -> tuple[Limit, ...]:
        """Every limit that a job of ``queue`` and ``team`` comes under."""
        limits: list[Limit] = []
        for of_queue in self.queues:
            if of_queue.name == queue:
                limits += _limits("queue", queue, of_queue.quota)
        known = {each.name: each.quota for each in self.teams}
        quota = known.get(team, known.get(ANY_OTHER))
        if quota is not None:
            limits += _limits("team", team, quota)
        return tuple(limits)

    def refusals(self, queue: str, path: str = "queue") -> tuple[Violation, ...]:
        """Why no job may name ``queue``; nothing where it may."""
        names = [each.name for each in self.queues]
        if not names or queue in names:
            return ()
        return (Violation(path=path, value=repr(queue), allowed=f"one of {', '.join(names)}"),)


NO_RULES: Final = QueueRules()


def _limits(holder: str, name: str, quota: Quota) -> list[Limit]:
    limits = [] if quota.max_gpus is None else [Limit(holder, name, None, quota.max_gpus)]
    return limits + [Limit(holder, name, gpu_type, num_gpus) for gpu_type, num_gpus in quota.max_gpus_by_type]
