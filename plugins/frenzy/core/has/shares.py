"""Who should hold what: one sweep over all active jobs with a price for every GPU.

To finish jobs soon on average, the next job in line should take a plan whose gain is worth the delay
it causes: a GPU-second it uses delays every job behind it by one part in the remaining capacity. So a
plan with n (effective) GPUs that takes t seconds costs

    t * (1 + price * n),   price = urgency * (weight of the jobs behind) / (own weight * capacity left)

and the cheapest is taken. For jobs that speed up with GPUs to the power p this gives the nearly
optimal shares of heSRPT (Berg, Vesilo, Harchol-Balter 2020), without solving anything: for n GPUs the
minimum is at n = p/(1-p) / price. With nobody behind the price is nothing, and the job runs as fast as
it can. A job that runs keeps its plan unless another is better by ``hysteresis``, restart included. A plan
for which another job would have to move costs ``disturbance`` restarts more: minutes saved by a short job
are not worth those that a large one loses.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from frenzy.core.has.claims import Capacity, Choice, Claim, by_cost
from frenzy.core.has.policy import HasPolicy

Forbidden = frozenset[tuple[str, str]]


@dataclass(slots=True)
class Sweep:
    """Capacity in the course of one sweep.

    left: GPUs nobody earlier in line claims; idle: of these, held by nobody. disturbance_s: what it is
    worth not to make another job move.
    """

    policy: HasPolicy
    disturbance_s: float
    left: dict[str, int]
    idle: dict[str, int]
    effective: float
    by_team: dict[str, int]


def targets(
    claims: list[Claim], idle: Mapping[str, int], policy: HasPolicy, capacity: Capacity, forbidden: Forbidden
) -> dict[str, Choice | None]:
    """What each job should hold, by run key; None for one that should wait.

    forbidden: (run key, plan id) that could not be placed. idle: GPUs of each type that nobody holds.
    """
    sweep = Sweep(
        policy, policy.disturbance * _restart_s(claims), dict(capacity.num_gpus), dict(idle), capacity.effective, {}
    )
    found: dict[str, Choice | None] = {}
    for claim in claims:
        if claim.current is not None and (claim.is_fixed or not claim.has_moves):
            found[claim.run_key] = claim.current
            _keep(sweep, claim, claim.current, 1)
    free = [claim for claim in claims if not claim.is_fixed]
    behind = sum(claim.weight for claim in free)
    for claim in free:
        behind -= claim.weight
        found[claim.run_key] = _serve(sweep, claim, max(0.0, behind), forbidden)
    for claim in free:
        if found[claim.run_key] is claim.current and claim.is_displaced:
            continue
        found[claim.run_key] = _grow(sweep, claim, found[claim.run_key], forbidden)
    return found


def _restart_s(claims: list[Claim]) -> float:
    """What a move of a running job costs it, the median of those that may be moved."""
    costs = [claim.restart_s for claim in claims if claim.current is not None and not claim.is_fixed]
    return statistics.median_low(costs) if costs else 0.0


def _keep(sweep: Sweep, claim: Claim, choice: Choice, sign: int) -> None:
    """Take what ``claim`` has (sign 1), or give it back (-1); GPUs of nodes that take no new work are no capacity."""
    if claim.is_displaced and choice is claim.current:
        return
    sweep.left[choice.plan.gpu_type] = sweep.left.get(choice.plan.gpu_type, 0) - sign * choice.plan.num_gpus
    sweep.effective -= sign * choice.gpus
    sweep.by_team[claim.job.team] = sweep.by_team.get(claim.job.team, 0) + sign * choice.plan.num_gpus


def _serve(sweep: Sweep, claim: Claim, behind: float, forbidden: Forbidden) -> Choice | None:
    """The cheapest choice of ``claim`` in what is left; it is taken."""
    current = claim.current
    if current is not None and not claim.has_moves:
        _keep(sweep, claim, current, -1)
    price = sweep.policy.urgency * behind / (claim.weight * max(sweep.effective, 1e-9))
    best = _cheapest(sweep, claim, price, forbidden)
    if best is None and current is not None and (claim.is_displaced or not claim.has_moves):
        best = current
    if current is not None and not claim.is_displaced:
        sweep.idle[current.plan.gpu_type] = sweep.idle.get(current.plan.gpu_type, 0) + current.plan.num_gpus
    if best is not None:
        _keep(sweep, claim, best, 1)
        sweep.idle[best.plan.gpu_type] = sweep.idle.get(best.plan.gpu_type, 0) - best.plan.num_gpus
    return best


def _cheapest(sweep: Sweep, claim: Claim, price: float, forbidden: Forbidden) -> Choice | None:
    """Of the open choices; the first one for a job whose order of plans is not one of speed."""
    best, least = None, math.inf
    for choice in claim.choices:
        if not _is_open(sweep, claim, choice, forbidden):
            continue
        if claim.in_order:
            return choice
        cost = _cost(sweep, claim, choice, price)
        if cost < least:
            best, least = choice, cost
    return best


def _is_open(sweep: Sweep, claim: Claim, choice: Choice, forbidden: Forbidden) -> bool:
    plan, current = choice.plan, claim.current
    if plan.num_gpus > sweep.left.get(plan.gpu_type, 0) or not _in_quota(sweep, claim, plan.num_gpus):
        return False
    if choice is current:
        return True
    if forbidden and (claim.run_key, plan.plan_id) in forbidden:
        return False
    if current is None or claim.has_moves:
        return True
    # Nobody's turn is taken, and what is left at least shrinks by so much that the move pays for its own sake.
    return (
        _is_idle(sweep, claim, choice)
        and (choice.run_s + claim.restart_s) * sweep.policy.gain_without_budget <= current.run_s
    )


def _cost(sweep: Sweep, claim: Claim, choice: Choice, price: float) -> float:
    if by_cost(claim.job):
        kept = sweep.policy.hysteresis if choice is claim.current else 1.0
        return kept * choice.plan.predicted_cost
    if choice is claim.current:
        return choice.run_s * sweep.policy.hysteresis * (1.0 + price * choice.gpus)
    disturbs_s = 0.0 if _is_idle(sweep, claim, choice) else sweep.disturbance_s
    return (choice.run_s + claim.restart_s) * (1.0 + price * choice.gpus) + disturbs_s


def _is_idle(sweep: Sweep, claim: Claim, choice: Choice) -> bool:
    """Whether no other job has to move for ``choice``."""
    plan, current = choice.plan, claim.current
    own = current.plan.num_gpus if current is not None and current.plan.gpu_type == plan.gpu_type else 0
    return plan.num_gpus <= sweep.idle.get(plan.gpu_type, 0) + own


def _grow(sweep: Sweep, claim: Claim, chosen: Choice | None, forbidden: Forbidden) -> Choice | None:
    """A faster choice in what the sweep left over."""
    if chosen is None or by_cost(claim.job) or claim.in_order:
        return chosen
    if not claim.has_moves:
        threshold = chosen.run_s
    elif chosen is claim.current:
        threshold = chosen.run_s * sweep.policy.hysteresis
    else:
        threshold = chosen.run_s + claim.restart_s
    best = chosen
    _keep(sweep, claim, chosen, -1)
    for choice in claim.choices:
        takes_s = choice.run_s + (0.0 if choice is claim.current else claim.restart_s)
        if takes_s < threshold and _is_open(sweep, claim, choice, forbidden):
            best, threshold = choice, takes_s
    _keep(sweep, claim, best, 1)
    return best


def _in_quota(sweep: Sweep, claim: Claim, num_gpus: int) -> bool:
    quota = sweep.policy.quota_of(claim.job.team)
    return quota is None or sweep.by_team.get(claim.job.team, 0) + num_gpus <= quota
