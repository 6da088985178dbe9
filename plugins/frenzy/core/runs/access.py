"""Whose a job and its runs are, and who may use a queue, a team, a priority: the administrator's rules.

Which DAGs a person may see or change at all is for Airflow's auth manager to say; this comes on top of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, Violation
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob
from frenzy.core.values.queue_rules import QueueRules

HIDDEN: Final = "***"

# Those of the DAG ids that somebody may see.
Sight = Callable[[Iterable[str]], frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks. is_admin: may do everything people may. is_service: Frenzy's own tasks and triggers."""

    name: str
    is_admin: bool = False
    is_service: bool = False

    @property
    def bound_to(self) -> str | None:
        """Whose rules of queue, team and priority bind the caller; None: nobody's."""
        return None if self.is_admin or self.is_service else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Whose a stored job is.

    owner: None for jobs that nobody is known to have stored; only administrators manage those. bound_to: who stored it
    last, so whose rules of queue, team and priority its runs keep; None for administrators, whom none binds.
    """

    name: str
    owner: str | None
    team: str
    bound_to: str | None = None


class Forbidden(PermanentError):
    """The caller may not do this."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(Reason(code=ReasonCode.NOT_ALLOWED, detail=what, remedy=remedy))

    @classmethod
    def anothers(cls, what: str, owner: str | None, team: str) -> Forbidden:
        """To do this to a job or run that is another's."""
        of_whom = "an administrator" if owner is None else f"its owner {owner}, its team {team} or an administrator"
        return cls(what, f"Ask {of_whom}; an administrator lists the members of teams in the queue file.")


def see_all(dag_ids: Iterable[str]) -> frozenset[str]:
    """The sight of the installation itself."""
    return frozenset(dag_ids)


def task_acts_for(user: str | None) -> Caller:
    """Whose rights a task has: those of ``user``, who started its DAG run, or of the DAG's author, who is trusted."""
    return Caller(name="", is_service=True) if user is None else Caller(name=user)


def record_of_stored(job: TrainingJob, caller: Caller, before: JobRecord | None) -> JobRecord:
    """Whose ``job`` is once ``caller`` has stored it. It keeps its owner; one that had none is the caller's."""
    owner = (None if before is None else before.owner) or caller.name or None
    return JobRecord(name=job.name, owner=owner, team=job.team, bound_to=caller.bound_to)


def record_of_started(job: TrainingJob, user: str | None) -> JobRecord:
    """Whose a run of ``job`` is that is not stored: its starter's; nobody's, and bound to nobody, if scheduled."""
    return JobRecord(name=job.name, owner=user, team=job.team, bound_to=user)


def may_manage(caller: Caller, *, owner: str | None, team: str, rules: QueueRules) -> bool:
    """Whether ``caller`` may replace, end, clean and read the whole of what ``owner`` and ``team`` own."""
    if caller.is_admin or caller.is_service or (owner is not None and caller.name == owner):
        return True
    rule = rules.team_rule(team)
    return rule is not None and rule.members is not None and caller.name in rule.members


def use_refusals(user: str, job: TrainingJob, rules: QueueRules) -> tuple[Violation, ...]:
    """Why ``user`` may not submit ``job`` to its queue, for its team, with its priority; nothing where they may."""
    found: list[Violation] = []
    queue, team = rules.queue_rule(job.queue), rules.team_rule(job.team)
    if queue is not None and queue.users is not None and user not in queue.users:
        found.append(_refusal("queue", job.queue, f"{user} is not among its users"))
    if queue is not None and queue.max_priority is not None and job.priority > queue.max_priority:
        allowed = f"at most {queue.max_priority} in the queue {job.queue}"
        found.append(Violation(path="priority", value=repr(job.priority), allowed=allowed))
    if team is not None and team.members is not None and user not in team.members:
        found.append(_refusal("team", job.team, f"{user} is not among its members"))
    return tuple(found)


def outline(job: TrainingJob) -> TrainingJob:
    """What everybody who may see its runs may know of ``job``: its name and how it queues; the rest is defaults."""
    return replace(
        TrainingJob(name=job.name, model=ModelSpec(path=HIDDEN), data=DataSpec(path=HIDDEN)),
        description="Only its owner, its team and administrators may see the specification.",
        queue=job.queue,
        team=job.team,
        priority=job.priority,
        objective=job.objective,
        elastic=job.elastic,
    )


def _refusal(path: str, value: str, why: str) -> Violation:
    allowed = f"{why}; name another {path}, or ask an administrator to list them in the queue file"
    return Violation(path=path, value=repr(value), allowed=allowed)
