"""Who should hold what: one sweep over all active jobs with a price for every GPU.

To finish jobs soon on average, the next job in line should take a plan whose gain is worth the delay
it causes: a GPU-second it uses delays every job behind it by one part in the remaining capacity. So a
plan with n (effective) GPUs that takes t seconds costs

    t * (1 + price * n),   price = urgency * (weight of the jobs behind) / (own weight * capacity left)

and the cheapest is taken. For jobs that speed up with GPUs to the power p this gives the nearly
optimal shares of heSRPT (Berg, Vesilo, Harchol-Balter 2020), without solving anything: for n GPUs the
minimum is at n = p/(1-p) / price. With nobody behind the price is nothing, and the job runs as fast as
it can. A job that runs keeps its plan unless another is better by ``hysteresis``, restart included, and with it the
restarts that are likely to follow before its end. A plan for which another job would have to move costs ``disturbance``
restarts more: minutes saved by a short job are not worth those that a large one loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from frenzy.core.scheduling.engine.choices import Capacity, Choice
from frenzy.core.scheduling.engine.claims import Claim
from frenzy.core.scheduling.engine.fair_share import ShareTurns, Turn
from frenzy.core.scheduling.engine.line import Line
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.scheduling.engine.room import Need
from frenzy.core.scheduling.engine.sweep import Forbidden, Missed, Sweep


def targets(  # noqa: PLR0913
    line: Line,
    idle: Mapping[str, int],
    policy: BackfillPolicy,
    capacity: Capacity,
    forbidden: Forbidden,
    fits_empty: Callable[[Need], bool],
) -> tuple[list[tuple[Claim, Choice | None]], Mapping[str, Missed]]:
    """What each job should hold, in the order they are served, None for one that should stop; and what each waiting
    job that took nothing found at its turn, by run key.

    Fixed jobs, which keep what they have, and jobs that go on waiting are left out.
    forbidden: what is not to be chosen. idle: GPUs of each type that nobody holds. fits_empty: whether a need would
    fit if nothing ran.
    """
    sweep = Sweep(
        policy,
        policy.disturbance * line.restart_s,
        forbidden,
        dict(capacity.num_gpus),
        dict(idle),
        capacity.effective,
        QuotaUse(policy.queues) if policy.queues else None,
        fits_empty,
    )
    for claim in line.kept:
        assert claim.current is not None
        sweep.take(claim, claim.current)
    held: dict[str, float] = {}
    for claim in line.kept:
        assert claim.current is not None
        held[claim.job.queue] = held.get(claim.job.queue, 0.0) + claim.current.gpus
    return serve(sweep, line, held, capacity), sweep.missed


def serve(sweep: Sweep, line: Line, held: Mapping[str, float], capacity: Capacity) -> list[tuple[Claim, Choice | None]]:
    """What each job in ``line`` takes that takes or gives up anything. held: effective GPUs that each queue holds
    already.
    """
    turns = ShareTurns.of(line, held, sweep.policy.queues, capacity)
    served = _served(sweep, line) if turns is None else _served_by_share(sweep, line, turns)
    return [(claim, _settled(sweep, claim, chosen)) for claim, chosen in served]


def _served(sweep: Sweep, line: Line) -> list[tuple[Claim, Choice | None]]:
    """One after the other takes what is cheapest for it."""
    served: list[tuple[Claim, Choice | None]] = []
    at, free = 0, line.free
    while at < len(free):
        claim, behind = free[at], max(0.0, line.behind[at])
        if claim.current is None and sweep.is_full(claim.others):
            following = line.next_holding(at) if sweep.num_full >= line.num_tables else at + 1
            sweep.passed(free[at:following])
            sweep.keep_for(claim, line, _price(sweep, claim, behind))
            at = following
            continue
        chosen = _serve(sweep, claim, behind)
        if chosen is not None or claim.current is not None:
            served.append((claim, chosen))
        else:
            sweep.passed([claim])
            sweep.keep_for(claim, line, _price(sweep, claim, behind))
        at += 1
    return served


def _served_by_share(sweep: Sweep, line: Line, turns: ShareTurns) -> list[tuple[Claim, Choice | None]]:
    """As ``_served``, queue by queue; those that find nothing within their queue's right borrow at the end."""
    served: list[tuple[Claim, Choice | None]] = []
    later: list[Claim] = []
    for turn in turns:
        claim, sweep.allowance = turn.claim, turn.allowance
        if claim.current is None and (not turn.allowance or sweep.is_full(claim.others)):
            _put_off(sweep, line, turn, later)
            continue
        chosen = _serve(sweep, claim, turn.behind, right=turn.right)
        turns.took(claim, chosen)
        if chosen is not None:
            served.append((claim, chosen))
            continue
        _put_off(sweep, line, turn, later)
        if claim.current is not None:
            # It has not given it up yet: it may still borrow.
            sweep.idle[claim.current.gpu_type] -= claim.num_held
    sweep.allowance = math.inf
    borrowed = _borrowed(sweep, line, turns.again(later))
    known = {claim.run_key for claim, _ in borrowed} | sweep.missed.keys()
    sweep.passed(each for each in later if each.current is None and each.run_key not in known)
    return served + borrowed


def _put_off(sweep: Sweep, line: Line, turn: Turn, later: list[Claim]) -> None:
    """It may borrow at the end. What a due job lacks is kept first, or others take it within their rights for ever."""
    later.append(turn.claim)
    if turn.is_due and turn.claim.current is None and sweep.keeps_before_borrowing():
        sweep.keep_for(turn.claim, line, _price(sweep, turn.claim, turn.behind, turn.right))


def _borrowed(sweep: Sweep, line: Line, turns: ShareTurns) -> list[tuple[Claim, Choice | None]]:
    served: list[tuple[Claim, Choice | None]] = []
    for turn in turns:
        claim = turn.claim
        if claim.current is None and sweep.is_full(claim.others):
            sweep.passed([claim])
            sweep.keep_for(claim, line, _price(sweep, claim, turn.behind))
            if sweep.num_full >= line.num_tables:
                turns.none_left()
            continue
        chosen = _serve(sweep, claim, turn.behind)
        turns.took(claim, chosen)
        if chosen is not None or claim.current is not None:
            served.append((claim, chosen))
        else:
            sweep.passed([claim])
            sweep.keep_for(claim, line, _price(sweep, claim, turn.behind))
    return served


def _price(sweep: Sweep, claim: Claim, behind: float, right: float | None = None) -> float:
    """What an effective GPU costs for each second: see the module's text."""
    effective = sweep.effective if right is None else right
    return sweep.policy.urgency * behind / (claim.weight * max(effective, 1e-9))


def _settled(sweep: Sweep, claim: Claim, chosen: Choice | None) -> Choice | None:
    """``chosen``, or what is faster of that which all left over."""
    if chosen is None or (chosen is claim.current and claim.is_displaced):
        return chosen
    return _grown(sweep, claim, chosen)


def _serve(sweep: Sweep, claim: Claim, behind: float, *, right: float | None = None) -> Choice | None:
    """The cheapest choice of ``claim`` in what is left; it is taken.

    Its price depends on behind, the weight of the jobs behind it, and on the effective GPUs that are left; where it
    has its turn by right, on ``right``, what its queue has left.
    """
    current = claim.current
    if current is not None and (claim.is_displaced or not claim.has_moves):
        sweep.give_back(claim, current)
    if sweep.is_over(claim):
        return None
    price = _price(sweep, claim, behind, right)
    best = _cheapest(sweep, claim, price, claim.by_s)
    if best is None and claim.by_s < math.inf:
        best = _nearest(sweep, claim)
    if best is not None and sweep.waits_for_better(claim, best, price):
        return None
    if best is None and current is not None and (claim.is_displaced or not claim.has_moves):
        best = current
    if current is not None and best is not current:
        sweep.idle[current.gpu_type] = sweep.idle.get(current.gpu_type, 0) + claim.num_held
    if best is not None:
        sweep.take(claim, best)
        if best is not current:
            sweep.idle[best.gpu_type] = sweep.idle.get(best.gpu_type, 0) - best.num_gpus
    return best


def _cheapest(sweep: Sweep, claim: Claim, price: float, by_s: float) -> Choice | None:
    """Of the open choices that end within ``by_s`` seconds.

    The first one for a job whose order of plans is not one of speed.
    """
    best, least, again_s = None, math.inf, 0.0
    current, table = claim.current, claim.others
    if current is not None and claim.run_s(current) <= by_s and _may_stay(sweep, claim, current):
        best, least, again_s = current, _cost_to_stay(sweep, claim, current, price), claim.moves_again_s
    left, left_s, restart_s, by_cost = sweep.left, claim.left, claim.restart_s, claim.by_cost
    never_cheaper = math.inf if by_cost or not table.is_by_speed else least
    for choice in table.choices:
        if choice.num_gpus > left.get(choice.gpu_type, 0):
            continue
        takes_s = left_s * choice.unit_s + restart_s
        if takes_s >= never_cheaper:
            break
        if takes_s > by_s:
            continue
        paid_s = takes_s + again_s
        cost = choice.money(paid_s) if by_cost else paid_s * (1.0 + price * choice.gpus)
        # What it costs to disturb others only makes it dearer, and is looked up last.
        if (cost >= least and not claim.in_order) or not _is_open(sweep, claim, choice):
            continue
        if claim.in_order:
            return choice
        if not by_cost and not _is_idle(sweep, claim, choice):
            cost += sweep.disturbance_s
        if cost < least:
            best, least = choice, cost
            never_cheaper = math.inf if by_cost or not table.is_by_speed else least
    return best


def _nearest(sweep: Sweep, claim: Claim) -> Choice | None:
    """The fastest open choice, for a job that can meet its deadline with none of those that are left."""
    current = claim.current
    if current is None or not _may_stay(sweep, claim, current):
        return _faster(sweep, claim, math.inf)
    return _faster(sweep, claim, claim.run_s(current) * sweep.policy.hysteresis) or current


def _may_stay(sweep: Sweep, claim: Claim, current: Choice) -> bool:
    return (
        not claim.is_displaced
        and current.num_gpus <= sweep.left.get(current.gpu_type, 0)
        and sweep.may_have(claim, current)
    )


def _cost_to_stay(sweep: Sweep, claim: Claim, current: Choice, price: float) -> float:
    if claim.by_cost:
        return sweep.policy.hysteresis * current.money(claim.run_s(current))
    return claim.run_s(current) * sweep.policy.hysteresis * (1.0 + price * current.gpus)


def _is_open(sweep: Sweep, claim: Claim, choice: Choice) -> bool:
    """Whether a choice that is not the current one may be taken, where GPUs enough are left."""
    if not sweep.may_have(claim, choice):
        return False
    current = claim.current
    if sweep.forbidden and forbidden_key(claim, choice) in sweep.forbidden:
        return False
    if current is None:
        return sweep.has_place(claim, choice)
    if claim.has_moves:
        # One that is served first for its memory makes nobody move by that.
        return not claim.job.pressed or _is_idle(sweep, claim, choice)
    # Nobody's turn is taken, and what is left at least shrinks by so much that the move pays for its own sake.
    return _is_idle(sweep, claim, choice) and (
        (claim.run_s(choice) + claim.restart_s + claim.moves_again_s) * sweep.policy.gain_without_budget
        <= claim.run_s(current)
    )


def forbidden_key(claim: Claim, choice: Choice) -> tuple[str, object]:
    """What not to try again once ``choice`` could not be placed: for a job that waits, whoever asks for the same."""
    return ("", choice.need) if claim.current is None else (claim.run_key, choice.plan.plan_id)


def _is_idle(sweep: Sweep, claim: Claim, choice: Choice) -> bool:
    """Whether no other job has to move for ``choice``."""
    current = claim.current
    own = claim.num_held if current is not None and current.gpu_type == choice.gpu_type else 0
    return choice.num_gpus <= sweep.idle.get(choice.gpu_type, 0) + own


def _grown(sweep: Sweep, claim: Claim, chosen: Choice) -> Choice:
    """A faster choice in what the sweep left over, or ``chosen``."""
    if claim.by_cost or claim.in_order:
        return chosen
    if not claim.has_moves:
        threshold = claim.run_s(chosen)
    elif chosen is claim.current:
        threshold = claim.run_s(chosen) * sweep.policy.hysteresis - claim.moves_again_s
    else:
        threshold = claim.run_s(chosen) + claim.restart_s
    if not _could_be_faster(claim, threshold):
        return chosen
    sweep.give_back(claim, chosen)
    best = _faster(sweep, claim, threshold) or chosen
    sweep.take(claim, best)
    return best


def _could_be_faster(claim: Claim, threshold: float) -> bool:
    """Whether any choice, open or not, takes less than ``threshold`` seconds; True where that takes a search."""
    table = claim.others
    if not table.is_by_speed or (claim.current is not None and claim.run_s(claim.current) < threshold):
        return True
    return bool(table.choices) and claim.run_s(table.choices[0]) + claim.restart_s < threshold


def _faster(sweep: Sweep, claim: Claim, threshold: float) -> Choice | None:
    """The fastest open choice that takes less than ``threshold`` seconds."""
    best, current, table = None, claim.current, claim.others
    if current is not None and claim.run_s(current) < threshold and _may_stay(sweep, claim, current):
        best, threshold = current, claim.run_s(current)
    left, left_s, restart_s = sweep.left, claim.left, claim.restart_s
    for choice in table.choices:
        takes_s = left_s * choice.unit_s + restart_s
        if takes_s >= threshold:
            if table.is_by_speed:
                break
            continue
        if choice.num_gpus <= left.get(choice.gpu_type, 0) and _is_open(sweep, claim, choice):
            best, threshold = choice, takes_s
    return best
