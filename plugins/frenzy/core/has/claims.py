"""What every active job, waiting or running, could hold and what that would be worth to it."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import NamedTuple

from frenzy.core.has.choices import Capacity, Choice, Table, Tables
from frenzy.core.has.chunks import Chunks
from frenzy.core.has.options import Contender
from frenzy.core.has.policy import HasPolicy
from frenzy.core.has.state import SchedulingState
from frenzy.core.job import Objective
from frenzy.core.queue import QueuedJob, RunningJob

NOTHING = Table.of(())


class Claim(NamedTuple):
    """One active job in a pass.

    current: what it holds. others: what it could hold instead. left: of the job, in multiples of its
    choices' ``unit_s``. is_fixed: it keeps what it has whatever happens. has_moves: others may make it move;
    without, it may only grow into idle GPUs. work: effective GPU-seconds that are left with its most
    efficient plan. weight: of a second of its time against others'. is_displaced: it runs on a node that
    takes no new work, and should go elsewhere. in_order: its plans are in an order that is not one of
    speed; it takes the first that can be had. by_cost: it goes by cost, not by time. due_s: see
    ``claims_of``. num_held: GPUs it holds on nodes that take new work.
    """

    job: QueuedJob | RunningJob
    run_key: str
    team: str
    current: Choice | None
    others: Table
    left: float
    is_fixed: bool
    has_moves: bool
    restart_s: float
    work: float
    weight: float
    is_displaced: bool
    in_order: bool
    by_cost: bool
    due_s: float
    num_held: int

    def run_s(self, choice: Choice) -> float:
        """How long what is left takes with ``choice``."""
        return self.left * choice.unit_s


@dataclass(frozen=True, slots=True)
class Line:
    """All claims in the order they are served, and what every sweep over them needs.

    free: those that are not fixed. behind: for each of these the weight of all that come after it. holding: the
    places in ``free`` of jobs that hold GPUs. kept: jobs that hold what they have until their turn comes, if
    ever. restart_s: the median of what a move costs a job that runs. num_tables: of the jobs that wait. now_s:
    when it is decided.
    """

    claims: list[Claim]
    free: list[Claim]
    behind: list[float]
    holding: list[int]
    kept: list[Claim]
    restart_s: float
    num_tables: int
    now_s: float

    @staticmethod
    def of(claims: list[Claim], now_s: float) -> Line:
        running = [claim for claim in claims if claim.current is not None]
        # Only a job that runs is ever fixed.
        free = [claim for claim in claims if not claim.is_fixed]
        weights = [claim.weight for claim in free]
        costs = [claim.restart_s for claim in running if not claim.is_fixed]
        return Line(
            claims,
            free,
            list(accumulate(weights, sub, initial=sum(weights)))[1:],
            [at for at, claim in enumerate(free) if claim.current is not None],
            [claim for claim in running if claim.is_fixed or not claim.has_moves or claim.is_displaced],
            statistics.median_low(costs) if costs else 0.0,
            len({id(claim.others) for claim in claims if claim.current is None}),
            now_s,
        )

    def must_not_be_overtaken(self, claim: Claim) -> bool:
        """Whether none behind a job that finds no place may take what it waits for: it is due, or matters more."""
        return claim.due_s <= self.now_s or claim.job.priority > self.free[-1].job.priority

    def next_holding(self, at: int) -> int:
        """The place in ``free`` of the next job after ``at`` that holds GPUs; the end if there is none."""
        found = bisect_right(self.holding, at)
        return self.holding[found] if found < len(self.holding) else len(self.free)


class _Entry(NamedTuple):
    """A claim with what decides when it is served. made_for: identity of the contender; 0 for a job that runs."""

    minus_priority: int
    due_s: float
    run_key: str
    made_for: int
    claim: Claim


@dataclass(frozen=True, slots=True)
class _Remembered:
    """The waiting jobs of the last decision, ``entries`` in the order they are served.

    What a waiting job claims does not depend on time, and most of a queue is the same from one decision to
    the next. ``contenders`` keeps alive what ``made_for`` names.
    """

    policy: HasPolicy
    capacity: Capacity
    contenders: Chunks[Contender]
    entries: list[_Entry]


_last: list[_Remembered] = []


def claims_of(state: SchedulingState, now_s: float, policy: HasPolicy, capacity: Capacity) -> list[Claim]:
    """A claim for every active job, in the order they are served.

    By priority, then by the time each is due: its submission plus ``slowdown`` times what the whole
    cluster would take for the rest of it. Short jobs go before long ones that came at about the same
    time, and none is overtaken for ever.
    """
    tables = Tables(state.rules, capacity)
    running = state.running
    entries = [each for each in _waiting_entries(state, tables, policy) if each[2] not in running]
    entries += sorted(_entry(_of_running(job, tables, now_s, policy), 0) for job in running.values())
    # A run key has one claim, so that no two claims are ever compared; two sorted runs are quickly merged.
    entries.sort()
    return [each[4] for each in entries]


def _waiting_entries(state: SchedulingState, tables: Tables, policy: HasPolicy) -> list[_Entry]:
    """Of all waiting jobs, sorted; made only for those that did not wait at the last decision."""
    capacity, contenders = tables.capacity, state.waiting.in_order
    before = _last[0] if _last and _last[0].capacity is capacity and _last[0].policy == policy else None
    if before is not None and before.contenders is contenders:
        return before.entries
    here = {id(each): each for each in contenders}
    entries = [each for each in before.entries if each[3] in here] if before is not None else []
    if len(entries) < len(here):
        for each in entries:
            del here[each[3]]
        entries += [_entry(_of_waiting(each, tables, policy), at) for at, each in here.items()]
        entries.sort()
    _last[:] = [_Remembered(policy, capacity, contenders, entries)]
    return entries


def _entry(claim: Claim, made_for: int) -> _Entry:
    return _Entry(-claim.job.priority, claim.due_s, claim.run_key, made_for, claim)


def _due_s(job: QueuedJob | RunningJob, work: float, policy: HasPolicy, capacity: Capacity) -> float:
    share = policy.share_of(job.team) if policy.shares else 1.0
    return job.submitted_s + policy.slowdown * work / (share * max(capacity.effective, 1e-9))


def _of_waiting(contender: Contender, tables: Tables, policy: HasPolicy) -> Claim:
    job = contender.job
    table = tables.of_waiting(contender)
    left = believed_left(job.work_left, job.work_done, policy)
    elasticity = job.elasticity
    work = table.work(left)
    return Claim(
        job,
        job.run_key,
        job.team,
        None,
        table,
        left,
        False,
        True,
        elasticity.restart_s if elasticity is not None and job.work_done > 0 else 0.0,
        work,
        _weight(work, job.team, policy),
        False,
        job.ordered,
        job.objective is Objective.COST,
        _due_s(job, work, policy, tables.capacity),
        0,
    )


def _of_running(job: RunningJob, tables: Tables, now_s: float, policy: HasPolicy) -> Claim:
    progress = job.progress(now_s)
    left = believed_left(job.work_left - progress, job.work_done + progress, policy)
    not_ready = tables.capacity.not_ready
    leaving = [each.num_gpus for each in job.placement.allocations if each.node in not_ready] if not_ready else []
    is_displaced = bool(leaving)
    elasticity = job.elasticity
    is_settled = elasticity is not None and job.ran_s(now_s) >= max(elasticity.min_run_s, 1e-9)
    current, others = tables.of_running(job, is_displaced=is_displaced)
    others = others if is_settled else NOTHING
    work = _work_of_running(current, others, left, is_displaced=is_displaced)
    return Claim(
        job,
        job.run_key,
        job.team,
        current,
        others,
        left,
        not is_settled,
        is_displaced or job.moves_left(now_s) >= 1,
        elasticity.restart_s if elasticity is not None else 0.0,
        work,
        _weight(work, job.team, policy),
        is_displaced,
        False,
        job.objective is Objective.COST,
        # What was given for its memory is not taken back by its equals.
        -math.inf if job.pressed else _due_s(job, work, policy, tables.capacity),
        current.num_gpus - sum(leaving),
    )


def _work_of_running(current: Choice, others: Table, left: float, *, is_displaced: bool) -> float:
    """A job that has to leave its GPUs is not counted with what it has, if it could have anything else."""
    own = left * current.unit_s * current.gpus
    if others.least is None:
        return own
    return others.work(left) if is_displaced else min(own, others.work(left))


def believed_left(left: float, done: float, policy: HasPolicy) -> float:
    """What is left of a job, in multiples of its plans' run times.

    A job that outlived its estimate is believed to have a share of what it did still before it: the
    longer it ran, the longer it will (so it is with run times of heavy tail).
    """
    return left if left > 0 else max(policy.overrun_share * done, 1e-9)


def _weight(work: float, team: str, policy: HasPolicy) -> float:
    share = policy.share_of(team) if policy.shares else 1.0
    return share * math.pow(max(work, 1e-9), policy.size_exponent) if policy.size_exponent else share
