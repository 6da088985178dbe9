"""Why a job starts with just this plan: its rank among the job's plans, and by what the policy went."""

from __future__ import annotations

from collections.abc import Sequence

from frenzy.core.scheduling.engine.policy_settings import FifoPolicy, PaperPolicy, Policy
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.resource_plan import ResourcePlan


def why_this_plan(plans: Sequence[ResourcePlan], plan: ResourcePlan, policy: Policy, *, may_move: bool) -> Reason:
    """BEST_PLAN for the first of ``plans``, else BEST_PLAN_NOW. may_move: whether jobs were moved for one another."""
    rank = next((rank for rank, each in enumerate(plans, start=1) if each.shape == plan.shape), None)
    if rank == 1:
        return Reason(code=ReasonCode.BEST_PLAN)
    which = "none of its listed plans" if rank is None else f"number {rank} of its {len(plans)} plans"
    return Reason(code=ReasonCode.BEST_PLAN_NOW, detail=f"It is {which}, {_preference(policy, may_move=may_move)}.")


def _preference(policy: Policy, *, may_move: bool) -> str:
    if isinstance(policy, PaperPolicy):
        return "the first by GPUs and memory that fits"
    if isinstance(policy, FifoPolicy):
        return "the fastest that can start now with as many GPUs as were asked for"
    if may_move:
        return "the one that delays it and the jobs behind it least, of what was left at its turn"
    return "the best that can start now"
