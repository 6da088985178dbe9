"""Why each waiting job waits, and why one starts with its plan: read from the record of the decision itself.

Sentences are made once for all jobs that ask the same. Remedies name no numbers here: ``remedies`` tries them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from frenzy.core.capacity.free_capacity import FreeOfType, Need, place, place_in
from frenzy.core.capacity.queue_use import held_by_queue, rights
from frenzy.core.scheduling.engine.job_plans import RankedPlan
from frenzy.core.scheduling.engine.left_over import Kept, Missed, Promise, Sweep
from frenzy.core.scheduling.engine.policy_settings import FifoPolicy, PaperPolicy, Policy
from frenzy.core.scheduling.engine.service_order import lost_sentence
from frenzy.core.scheduling.engine.state import Entry, SchedulingState
from frenzy.core.scheduling.engine.wording import MAX_NAMED, about, any_of, asked, host_needs, in_all, listed
from frenzy.core.values.cluster import Cluster, NodeState
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import Objective
from frenzy.core.values.queue_rules import Limit
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Action, QueuedJob, SchedulingFacts
from frenzy.core.values.units import are, format_bytes


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done, and the record from which every reason is read.

    after: the state to which it leads. served: those that wait then, in the order they are served. sweep: in which each
    of them found nothing at its turn.
    """

    facts: SchedulingFacts
    actions: tuple[Action, ...]
    after: SchedulingState
    now_s: float
    served: Sequence[Entry]
    sweep: Sweep

    @property
    def policy(self) -> Policy:
        return self.after.policy


def why_this_plan(decision: Decision, job: QueuedJob, plan: ResourcePlan) -> Reason:
    """Why ``job`` starts with ``plan``: BEST_PLAN for its first, else BEST_PLAN_NOW, and by what the policy went."""
    rank = next((rank for rank, each in enumerate(job.plans, start=1) if each.shape == plan.shape), None)
    if rank == 1:
        return Reason(code=ReasonCode.BEST_PLAN)
    which = "none of its listed plans" if rank is None else f"number {rank} of its {len(job.plans)} plans"
    return Reason(code=ReasonCode.BEST_PLAN_NOW, detail=f"It is {which}, {_preference(decision, job)}.")


def _preference(decision: Decision, job: QueuedJob) -> str:
    if job.ordered:
        return "the first of them that it could have at its turn"
    if isinstance(decision.policy, PaperPolicy):
        return "the first by GPUs and memory that fits"
    if isinstance(decision.policy, FifoPolicy):
        return "the fastest that can start now with as many GPUs as were asked for"
    if decision.sweep.moves and job.objective is Objective.COST:
        return "the cheapest that it could have at its turn"
    if decision.sweep.moves:
        return "the one that delays it and the jobs behind it least, of what was left at its turn"
    return "the best that can start now"


class Judge:
    """Finds the one reason for which each waiting job waits in the record of the decision."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self._state, self._sweep = decision.after, decision.sweep
        self._shared: dict[object, Reason] = {}
        self._rules = decision.policy.numbers.queues

    def reason(self, entry: Entry) -> Reason:
        """Why ``entry`` waits."""
        job, missed = entry.job, self._sweep.missed.get(entry.run_key)
        if missed is None:  # it had no turn
            detail = f"Workers of the last attempt of {job.job_name} still hold their GPUs."
            return Reason(code=ReasonCode.WAITING_FOR_OLD_WORKERS, detail=detail)
        own = self._sweep.own_promises.get(job.run_key)
        if own is not None and own.instead_of is not None:
            return self._better_plan(own, own.instead_of)
        key = entry.others.ask, id(missed), (job.queue, job.team) if self._rules else None
        reason = self._shared.get(key)
        if reason is None:
            reason = self._shared[key] = self._judge(entry, missed)
        lost = lost_sentence(self._state, entry, self._decision.now_s)
        return reason if lost is None else replace(reason, detail=f"{reason.sentence} {lost}")

    def when(self, run_key: str, expected_start_s: float) -> str:
        """When the job is expected to start, and once whose end, if that was foreseen."""
        when, own = about(expected_start_s - self._decision.now_s), self._sweep.own_promises.get(run_key)
        if own is None or not own.after:
            return when
        return f"{when}, when {listed(own.after, last='and')} {'ends' if len(own.after) == 1 else 'end'}"

    def plan(self, entry: Entry, ranked: RankedPlan) -> str:
        """What became of one plan of a waiting job that had its turn, as a sentence."""
        need, name, missed = ranked.need, ranked.plan.plan_id, self._sweep.missed[entry.run_key]
        if not self._state.capacity.fits_empty(need):
            return f"{name} does not fit the nodes in service, even when they are empty."
        over = _exceeded(missed, entry, ranked)
        if over is not None:
            return f"{name} is over the quota of {over[0].title}."
        kept = self._in_the_way(missed, need)
        if kept is not None and kept.entry.run_key == entry.run_key:
            return f"{name} could start now; the job waits for a better plan."
        if kept is not None:
            return f"{name} would fit what was left at its turn, were it not kept for {kept.entry.job.job_name}."
        return f"{name} needs {asked(need)}; {self._found(missed, [need])}."

    def _judge(self, entry: Entry, missed: Missed) -> Reason:
        state = self._state
        possible = [ranked for ranked in entry.others.listed if state.capacity.fits_empty(ranked.need)]
        if not possible:
            return impossible(state, [ranked.need for ranked in entry.others.listed])
        found = [(each, _exceeded(missed, entry, each)) for each in possible]
        allowed = [each for each, limit in found if limit is None]
        over = [(each.plan, *limit) for each, limit in found if limit is not None]
        forbidden = [each for each in over if each[0].num_gpus <= missed.left.get(each[0].gpu_type, 0)]
        if forbidden or not allowed:
            return _over_quota(*min(forbidden or over, key=lambda each: each[0].num_gpus + each[2] - each[1].num_gpus))
        for need in (each.need for each in allowed):
            kept = self._in_the_way(missed, need)
            if kept is not None:
                return self._kept_for(kept, need, missed)
        return self._lack(entry, allowed, missed)

    def _in_the_way(self, missed: Missed, need: Need) -> Kept | None:
        """The job for whose sake ``need`` found too few GPUs, if it is for that."""
        kept = missed.kept.get(need.gpu_type)
        if kept is None:
            return None
        if not self._sweep.moves:
            return None if place_in(self._state.room, need) is None else kept
        left = missed.left.get(need.gpu_type, 0)
        return kept if left < need.num_gpus <= left + kept.num_gpus else None

    def _lack(self, entry: Entry, plans: Sequence[RankedPlan], missed: Missed) -> Reason:
        """That too little is there for it, of whatever kind."""
        needs = [each.need for each in plans]
        gpus = Reason(
            code=ReasonCode.WAITING_FOR_GPUS,
            detail=f"Needs {any_of(needs)}; {self._found(missed, needs)}.",
            remedy=f"more idle {listed([need.gpu_type for need in needs])}",
        )
        return self._host_short(needs) or self._memory_short(plans, gpus) or self._share_held(entry.job.queue) or gpus

    def _found(self, missed: Missed, needs: Sequence[Need]) -> str:
        """What there was of the types of ``needs``; where jobs may be moved, who has the rest."""
        types = list(dict.fromkeys(need.gpu_type for need in needs))
        left = missed.left if self._sweep.moves else {each: self._state.room.idle_gpus(each) for each in types}
        shown = [f"{max(0, left.get(each, 0))} of {in_all(self._state.cluster, each)}" for each in types]
        found = listed(shown, last="and", noun="more type")
        if not self._sweep.moves:
            return f"idle: {found}"
        held = [f"{each} is held by {self._holders[each]}" for each in types[:MAX_NAMED] if each in self._holders]
        return "; ".join([f"left at its turn: {found}", *held])

    @cached_property
    def _holders(self) -> dict[str, str]:
        """The jobs that hold GPUs of each type."""
        names: dict[str, list[str]] = {}
        for job in self._state.running.values():
            names.setdefault(job.plan.gpu_type, []).append(job.job_name)
        return {gpu_type: listed(sorted(each), last="and") for gpu_type, each in names.items()}

    def _better_plan(self, own: Promise, now: RankedPlan) -> Reason:
        plan, entry = own.ranked.plan, own.entry
        earlier_s = self._decision.now_s + entry.run_s(now) - own.end_s
        gain = (
            f"ends {about(earlier_s)} earlier than" if earlier_s > 0 else _saving(plan, now.plan, by_cost=entry.by_cost)
        )
        return Reason(
            code=ReasonCode.WAITING_FOR_BETTER_PLAN,
            detail=f"{plan.plan_id}, expected soon, {gain} {now.plan.plan_id}, which could start now.",
            remedy=f"idle {plan.gpu_type}",
        )

    def _kept_for(self, kept: Kept, need: Need, missed: Missed) -> Reason:
        name = kept.entry.job.job_name
        if self._sweep.moves:
            left = max(0, missed.left.get(need.gpu_type, 0)) + kept.num_gpus
            detail = (
                f"{left} {need.gpu_type} {are(left)} left, but {kept.num_gpus} {are(kept.num_gpus)} kept for {name}, "
                "which is due or matters more."
            )
        else:
            known, wait_s = kept.start_s < math.inf, kept.start_s - self._decision.now_s
            when = f" and expected to start in {about(wait_s)}" if known else ""
            idle = self._state.room.idle_gpus(need.gpu_type)
            detail = f"{idle} {need.gpu_type} {are(idle)} idle, but {name} is first in line for them{when}."
        return Reason(code=ReasonCode.WAITING_BEHIND_HEAD, detail=detail, remedy=f"{name} started or cancelled")

    def _host_short(self, needs: Sequence[Need]) -> Reason | None:
        for need in needs:
            room = self._state.room.by_type[need.gpu_type]
            if place(room, need.of_gpus_only) is not None and place(room, need) is None:
                return Reason(
                    code=ReasonCode.WAITING_FOR_HOST_RESOURCES,
                    detail=f"{room.idle_gpus} {need.gpu_type} {are(room.idle_gpus)} idle, "
                    f"but a node must also have {host_needs(need)} free.",
                    remedy=f"more host memory or CPUs free on nodes with idle {need.gpu_type}",
                )
        return None

    @cached_property
    def _shares(self) -> tuple[dict[str, float], dict[str, float]]:
        """Effective GPUs that each queue holds, and those that it has a right to."""
        running, capacity = self._state.running.values(), self._state.capacity
        names = [job.queue for job in running] + [each.job.queue for each in self._state.waiting]
        return held_by_queue(running, capacity), rights(names, self._rules, capacity)

    def _share_held(self, queue: str) -> Reason | None:
        """That jobs of ``queue`` wait because it holds its share while others do not; None if that is not so."""
        if not self._rules.queues:
            return None
        held, shares = self._shares
        own, share = held.get(queue, 0.0), shares[queue]
        if own < share or not any(held.get(name) for name in shares if name != queue):
            return None
        return Reason(
            code=ReasonCode.WAITING_FOR_SHARE,
            detail=(
                f"Queue {queue} holds {own:.3g} of the {sum(shares.values()):.3g} GPUs (counted by speed), its share "
                f"is {share:.3g}; too few are idle to borrow."
            ),
            remedy=f"a job of queue {queue} ended, GPUs left idle by another queue, or a greater weight",
        )

    def _memory_short(self, plans: Sequence[RankedPlan], gpus: Reason) -> Reason | None:
        state = self._state
        sizes = {each.name: each.memory_bytes for each in state.cluster.gpu_types}
        largest = max((sizes[name] for name, room in state.room.by_type.items() if room.idle_gpus), default=0)
        required = min(ranked.plan.memory.required_bytes for ranked in plans)
        if not 0 < largest < required:
            return None
        detail = f"Idle GPUs have {format_bytes(largest)} at most; the job needs {format_bytes(required)} on each."
        return replace(gpus, code=ReasonCode.WAITING_FOR_GPU_MEMORY, detail=detail)


def _exceeded(missed: Missed, entry: Entry, ranked: RankedPlan) -> tuple[Limit, int] | None:
    """The quota that forbade ``ranked`` at the job's turn, with the GPUs that counted against it."""
    limit = missed.quotas.exceeded(entry.job, ranked.gpu_type, ranked.num_gpus)
    return None if limit is None else (limit, missed.quotas.held(limit))


def _over_quota(plan: ResourcePlan, limit: Limit, held: int) -> Reason:
    """That ``limit``, against which ``held`` GPUs count, leaves no room for ``plan``."""
    return Reason(
        code=ReasonCode.WAITING_FOR_QUOTA,
        detail=f"{limit.may_hold} and holds {held}; one of the job's plans needs {plan.num_gpus} {plan.gpu_type}.",
        remedy=f"a larger quota of {limit.title}, or GPUs given back by it",
    )


def _saving(plan: ResourcePlan, other: ResourcePlan, *, by_cost: bool) -> str:
    """What ``plan`` has that ``other`` has not, although it ends no earlier."""
    if by_cost and plan.predicted_cost is not None and other.predicted_cost is None:
        return "has a price, unlike"
    if plan.predicted_cost is None or not other.predicted_cost:
        return "leaves more to others than"
    return f"costs {1 - plan.predicted_cost / other.predicted_cost:.0%} less than"


def impossible(state: SchedulingState, needs: Sequence[Need]) -> Reason:
    """The reason for a job none of whose ``needs`` fits the ready nodes when they are empty."""
    if not needs:
        return Reason(
            code=ReasonCode.NEVER_FITS,
            detail="None of the job's plans is feasible on this cluster.",
            remedy="the table of plans says what refused each of them",
        )
    whole = state.capacity.whole.by_type
    cases = [_cases(state.cluster, need, whole[need.gpu_type]) for need in needs if need.gpu_type in whole]
    for room, need, code, detail, remedy in chain.from_iterable(zip(*cases, strict=True)):
        if place(room, need) is not None:
            return Reason(code=code, detail=detail, remedy=remedy)
    return _too_few_gpus(state.cluster, needs)


def _cases(cluster: Cluster, need: Need, room: FreeOfType) -> list[tuple[FreeOfType, Need, ReasonCode, str, str]]:
    """What would fit where once something changed, with the reason that names it; the first that fits is true."""
    gpu_type, needs, excluded = need.gpu_type, f"Needs {asked(need)}", listed(need.excluded_nodes, last="and")
    nodes = sorted([each for each in cluster.nodes if each.gpu_type == gpu_type], key=lambda each: each.name)
    away = [each for each in nodes if each.state is not NodeState.READY]
    states = listed([f"{each.name} ({each.state})" for each in away], last="and")
    gone = f"{needs}, but nodes with that type are out of service: {states}."
    back = f"{listed([each.name for each in away])} back in service"
    # Work outside Frenzy ends some time.
    gpus = {each.name: room.free[each.name]._replace(num_gpus=each.num_gpus) for each in nodes if each.num_taken}
    taken = f"{needs}; the cluster has {in_all(cluster, gpu_type)}."
    barred = f"{needs}, which only nodes have that it must not use again: {excluded}."
    small = f"{needs} with {host_needs(need)} on a node, more than nodes of that type have."
    anywhere = need._replace(excluded_nodes=())
    return [
        (room, need, ReasonCode.WAITING_FOR_NODES, gone, back),
        (room.with_free(gpus), need, ReasonCode.WAITING_FOR_GPUS, taken, f"more idle {gpu_type}"),
        (room, anywhere, ReasonCode.NEVER_FITS, barred, f"another node with {gpu_type}"),
        (room, anywhere.of_gpus_only, ReasonCode.NEVER_FITS, small, f"larger nodes of {gpu_type}"),
    ]


def _too_few_gpus(cluster: Cluster, needs: Sequence[Need]) -> Reason:
    totals = cluster.num_gpus_by_type
    have = [in_all(cluster, gpu_type) for gpu_type in dict.fromkeys(need.gpu_type for need in needs)]
    lacks = {need: need.num_gpus - totals.get(need.gpu_type, 0) for need in needs}
    nearest = min(needs, key=lambda each: (lacks[each] <= 0, lacks[each]))
    return Reason(
        code=ReasonCode.NEVER_FITS,
        detail=f"Needs {any_of(needs)}; the cluster has {listed(have, last='and', noun='more type')}.",
        remedy=f"more {nearest.gpu_type} in the cluster",
    )
