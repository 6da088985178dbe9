"""The claims of a decision in the order they are served."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter, sub

from frenzy.core.scheduling.engine.choices import Capacity, Tables
from frenzy.core.scheduling.engine.claims import Claim, claim_of_running, claim_of_waiting
from frenzy.core.scheduling.engine.deadlines import possible_choices, with_deadline
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy
from frenzy.core.scheduling.engine.state import SchedulingState


@dataclass(frozen=True, slots=True)
class Line:
    """Claims in the order they are served, and what every sweep over them needs.

    free: those that are not fixed. behind: for each of these the weight of all that come after it. holding: the
    places in ``free`` of jobs that hold GPUs. kept: jobs that hold what they have until their turn comes, if ever.
    restart_s: the median of what a move costs a job that runs. num_tables: of the jobs that wait. least_priority: of
    those that are not fixed. now_s: when it is decided.
    """

    claims: list[Claim]
    free: list[Claim]
    behind: list[float]
    holding: list[int]
    kept: list[Claim]
    restart_s: float
    num_tables: int
    least_priority: float
    now_s: float

    @staticmethod
    def of(claims: list[Claim], now_s: float) -> Line:
        """A line of ``claims``, which are in order."""
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
            free[-1].job.priority if free else math.inf,
            now_s,
        )

    def must_not_be_overtaken(self, claim: Claim) -> bool:
        """Whether none behind a job that finds no place may take what it waits for."""
        return must_not_be_overtaken(claim, self.now_s, self.least_priority)

    def next_holding(self, at: int) -> int:
        """The place in ``free`` of the next job after ``at`` that holds GPUs; the end if there is none."""
        found = bisect_right(self.holding, at)
        return self.holding[found] if found < len(self.holding) else len(self.free)


def must_not_be_overtaken(claim: Claim, now_s: float, least_priority: float) -> bool:
    """Whether the job is due at ``now_s``, or matters more than that of ``least_priority``, the lowest of all."""
    return claim.due_s <= now_s or claim.job.priority > least_priority


def claims_of(
    state: SchedulingState, now_s: float, policy: BackfillPolicy, capacity: Capacity, *, moves: bool = True
) -> list[Claim]:
    """A claim for every active job, in the order they are served.

    By priority, then by the time each is due. Short jobs go before long ones that came at about the same
    time, and none is overtaken for ever. moves: whether running jobs have a turn, too.
    """
    running, tables = state.running, Tables(state.rules, capacity)
    claims = [claim_of_waiting(each, tables, policy) for each in state.waiting if each.job.run_key not in running]
    if moves:
        claims += [claim_of_running(job, now_s, tables, policy) for job in running.values()]
    if any(claim.job.deadline_s is not None for claim in claims):
        slack = policy.deadline_slack
        claims = [
            claim
            if claim.job.deadline_s is None
            else with_deadline(claim, now_s, slack, possible_choices(state, claim))
            for claim in claims
        ]
    # By ``place``: sorts are stable, and need no tuples, which the collector would look through.
    claims.sort(key=attrgetter("run_key"))
    claims.sort(key=attrgetter("due_s"))
    claims.sort(key=attrgetter("job.priority"), reverse=True)
    return claims
