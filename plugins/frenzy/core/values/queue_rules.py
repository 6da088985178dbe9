"""What an administrator sets about queues and teams: shares, quotas, who may use them, and with which secrets;
and the rows that tell how they stand.

A queue's share is its weight over the weights of all queues that have jobs; what others leave idle it
may borrow. A quota is a hard limit, whatever is idle. A secret that no rule of a job's queue or team names
is not for that job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from frenzy.core.values.errors import Violation
from frenzy.core.values.gpu_catalogue import types_named
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.units import counted

ANY_OTHER: Final = "*"
"""The name of the rule for every team that has none of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """GPUs held at most at a time: all together, and of single types. None, or a type without entry: no limit."""

    max_gpus: int | None = None
    max_gpus_by_type: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRule:
    """One queue. weight: of its share.

    users: who may use it; None: everybody. max_priority: the highest that its jobs may have. secrets: patterns of
    the references that its jobs may make (``*`` stands for any text).
    """

    name: str
    weight: float = 1.0
    quota: Quota = Quota()
    users: tuple[str, ...] | None = None
    max_priority: int | None = None
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamRule:
    """One team, or with the name ``*`` every team without a rule, each by itself.

    members: who may submit for it, and manage its jobs; None: everybody may submit, nobody manages others' jobs.
    secrets: as in QueueRule.
    """

    name: str
    quota: Quota = Quota()
    members: tuple[str, ...] | None = None
    secrets: tuple[str, ...] = ()


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

    @property
    def most(self) -> str:
        """``"1 GPU"``, ``"4 a100-80"``."""
        return counted(self.num_gpus, "GPU") if self.gpu_type is None else f"{self.num_gpus} {self.gpu_type}"

    @property
    def may_hold(self) -> str:
        """``"Team vision may hold 1 GPU"``: how a sentence begins."""
        return f"{self.holder.capitalize()} {self.name} may hold {self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """All queues and teams of an installation. Without queues, a job may name any, and all count alike."""

    queues: tuple[QueueRule, ...] = ()
    teams: tuple[TeamRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.queues or self.teams)

    def weight_of(self, queue: str) -> float:
        """A queue that is not known (any more) weighs 1."""
        rule = self.queue_rule(queue)
        return 1.0 if rule is None else rule.weight

    def limits_of(self, queue: str, team: str) -> tuple[Limit, ...]:
        """Every limit that a job of ``queue`` and ``team`` comes under."""
        of_queue, of_team = self.queue_rule(queue), self.team_rule(team)
        limits = [] if of_queue is None else _limits("queue", queue, of_queue.quota)
        return tuple(limits if of_team is None else [*limits, *_limits("team", team, of_team.quota)])

    def team_rule(self, team: str) -> TeamRule | None:
        """The rule that ``team`` comes under."""
        known = {each.name: each for each in self.teams}
        return known.get(team, known.get(ANY_OTHER))

    def queue_rule(self, queue: str) -> QueueRule | None:
        """The rule of ``queue``."""
        return next((each for each in self.queues if each.name == queue), None)

    def with_queue(self, name: str, **changes: Any) -> QueueRules:
        """The same with the fields ``changes`` of the queue called ``name``."""
        queues = (replace(each, **changes) if each.name == name else each for each in self.queues)
        return replace(self, queues=tuple(queues))

    def with_limit(self, limit: Limit) -> QueueRules:
        """The same with ``limit`` in place of the one that they have; a team without a rule of its own gets one."""
        rule = self.queue_rule(limit.name) if limit.holder == "queue" else self.team_rule(limit.name)
        quota = Quota() if rule is None else rule.quota
        if limit.gpu_type is None:
            quota = replace(quota, max_gpus=limit.num_gpus)
        else:
            by_type = {**dict(quota.max_gpus_by_type), limit.gpu_type: limit.num_gpus}
            quota = replace(quota, max_gpus_by_type=tuple(by_type.items()))
        if limit.holder == "queue":
            return self.with_queue(limit.name, quota=quota)
        # Of two rules of one name the last counts.
        return replace(self, teams=(*self.teams, TeamRule(name=limit.name, quota=quota)))

    def unknown_gpu_types(
        self, there: Collection[GpuType], elsewhere: Collection[GpuType] = ()
    ) -> tuple[Violation, ...]:
        """Quotas for types that are none of ``there``, where they limit nothing, and mean none of ``elsewhere``."""
        names = {each.name for each in there}
        holders = [("queues", each.name, each.quota) for each in self.queues]
        holders += [("teams", each.name, each.quota) for each in self.teams]
        return tuple(
            Violation(
                path=f"{section}.{name}.max_gpus_by_type",
                value=repr(gpu_type),
                allowed=_types_there(gpu_type, there),
            )
            for section, name, quota in holders
            for gpu_type, _ in quota.max_gpus_by_type
            if gpu_type not in names and not types_named(gpu_type, elsewhere)
        )

    def secrets_of(self, queue: str, team: str) -> tuple[str, ...]:
        """Patterns of the secrets that a job of ``queue`` and ``team`` may refer to; () where none are allowed."""
        rules = (self.queue_rule(queue), self.team_rule(team))
        return tuple(dict.fromkeys(each for rule in rules if rule is not None for each in rule.secrets))

    def may_use_secret(self, reference: str, *, queue: str, team: str) -> bool:
        """Whether a job of ``queue`` and ``team`` may refer to ``reference`` (``env:NAME``, ``k8s:secret/key``)."""
        return any(fnmatchcase(reference, pattern) for pattern in self.secrets_of(queue, team))

    def secret_refusals(self, secrets: Mapping[str, str], *, queue: str, team: str) -> tuple[Violation, ...]:
        """Which of ``secrets`` (variable to reference) a job of ``queue`` and ``team`` may not refer to."""
        patterns = ", ".join(self.secrets_of(queue, team)) or "none"
        allowed = (
            f"allowed for the queue {queue} and the team {team}: {patterns}; ask your administrator "
            "to name it in the queue file (docs/queues.md)"
        )
        return tuple(
            Violation(path=f"secrets.{name}", value=repr(reference), allowed=allowed)
            for name, reference in secrets.items()
            if not self.may_use_secret(reference, queue=queue, team=team)
        )

    def refusals(self, queue: str, path: str = "queue") -> tuple[Violation, ...]:
        """Why no job may name ``queue``; nothing where it may."""
        names = [each.name for each in self.queues]
        if not names or queue in names:
            return ()
        unnamed = "; jobs that name none are in 'default', if an administrator adds that" if queue == "default" else ""
        return (Violation(path=path, value=repr(queue), allowed=f"one of {', '.join(names)}{unnamed}"),)


NO_RULES: Final = QueueRules()


def idle_quota(unknown: Violation) -> str:
    """The sentence on one of ``QueueRules.unknown_gpu_types``."""
    return f"{unknown.path}: {unknown.value} limits nothing; {unknown.allowed}."


def _types_there(asked: str, there: Collection[GpuType]) -> str:
    meant = types_named(asked, there)
    hint = f" (did you mean {meant[0].name}?)" if len(meant) == 1 else ""
    return f"the cluster has {', '.join(each.name for each in there) or 'no GPU types'}{hint}"


def _limits(holder: str, name: str, quota: Quota) -> list[Limit]:
    limits = [] if quota.max_gpus is None else [Limit(holder, name, None, quota.max_gpus)]
    return limits + [Limit(holder, name, gpu_type, num_gpus) for gpu_type, num_gpus in quota.max_gpus_by_type]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRow:
    """One queue. held, share: effective GPUs (GPUs times the speed of their type, of the fastest), of ``total``.

    share: what it has a right to now; of a queue without jobs, what it would have once it had one.
    """

    queue: str
    weight: float
    num_waiting: int
    num_running: int
    num_gpus: int
    held: float
    share: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRow:
    """One limit. holder: "queue" or "team". gpu_type: None for all types together.

    limits_nothing: whether the cluster has no GPU type of that name.
    """

    holder: str
    name: str
    gpu_type: str | None
    held: int
    max_gpus: int
    limits_nothing: bool = False
