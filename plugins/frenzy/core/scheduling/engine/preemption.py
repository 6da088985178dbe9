"""Why a running job gives way: in one sentence, whose sake it is for, or what it holds too much of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from frenzy.core.scheduling.engine.entries import Entry
from frenzy.core.scheduling.engine.policy_settings import queue_rules
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.scheduling.engine.service_order import ServiceOrder
from frenzy.core.scheduling.engine.state import SchedulingState
from frenzy.core.scheduling.engine.wording import listed
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.scheduling_facts import Preempt, Resize, Start
from frenzy.core.values.units import counted


def preemption(
    state: SchedulingState, line: ServiceOrder, entry: Entry, taken: Sequence[tuple[Entry, Start | Resize]]
) -> Preempt:
    """``entry``'s job stops, with why: who takes its GPUs or what it leaves of a quota, or for whom they are kept.

    taken: what other jobs take in the same decision.
    """
    nodes = {each.node for each in state.running[entry.run_key].placement.allocations}
    beneficiary = _beneficiary(state, entry, nodes, taken)
    why = (
        _without_beneficiary(state, line, entry, nodes)
        if beneficiary is None
        else f"Its GPUs are needed by {_for(beneficiary, entry)}"
    )
    return Preempt(
        run_key=entry.run_key,
        reason=Reason(code=ReasonCode.PREEMPTED, detail=f"{why}; it goes on from its checkpoint."),
    )


def _beneficiary(
    state: SchedulingState, entry: Entry, nodes: set[str], taken: Sequence[tuple[Entry, Start | Resize]]
) -> Entry | None:
    """Who takes GPUs of its nodes; elsewhere, one before it in line that comes under the same quota."""
    rules = queue_rules(state.rules.policy)
    for beneficiary, action in taken:
        if any(each.node in nodes for each in action.placement.allocations):
            return beneficiary
    own = {*rules.limits_of(entry.job.queue, entry.job.team)}
    limited = (
        beneficiary for beneficiary, _ in taken if own & {*rules.limits_of(beneficiary.job.queue, beneficiary.job.team)}
    )
    return next((beneficiary for beneficiary in limited if beneficiary.place < entry.place), None)


def _for(beneficiary: Entry, entry: Entry) -> str:
    name = beneficiary.job.job_name
    if beneficiary.job.priority > entry.job.priority:
        return f"{name}, whose priority is higher"
    if beneficiary.job.queue != entry.job.queue:
        return f"{name} of queue {beneficiary.job.queue}"
    return f"{name}, which is due earlier" if beneficiary.place < entry.place else name


def _without_beneficiary(state: SchedulingState, line: ServiceOrder, entry: Entry, nodes: Iterable[str]) -> str:
    """A quota or a node that has become smaller than what it holds, or the job for which its GPUs are kept."""
    assert entry.current is not None, "only a job that runs gives way"
    gpu_type, num_gpus = entry.current.gpu_type, entry.current.num_gpus
    others = (job for key, job in state.running.items() if key != entry.run_key)
    limit = QuotaUse.of(state.rules.policy, others).exceeded(entry.job, gpu_type, num_gpus)
    if limit is not None:
        holder = f"{limit.holder.capitalize()} {limit.name}"
        most = counted(limit.num_gpus, "GPU") if limit.gpu_type is None else f"{limit.num_gpus} {limit.gpu_type}"
        return f"{holder} may hold {most}, fewer than its jobs hold"
    free = state.room.by_type[gpu_type].free if gpu_type in state.room.by_type else {}
    small = sorted(name for name in nodes if name in free and free[name].num_gpus < 0)
    if small:
        have = "has" if len(small) == 1 else "have"
        return f"{listed(small, last='and')} {have} fewer GPUs for jobs than they hold"
    for first in line.entries:
        if first.current is not None or first.place > entry.place or not line.must_not_be_overtaken(first):
            continue
        if any(each.gpu_type == gpu_type and state.fits_empty(each.need) for each in first.others.plans):
            return f"Its GPUs are kept for {_for(first, entry)}"
    return "Its GPUs are needed by jobs that are served before it"
