"""Plans for GPU types that a captured queue was not planned for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.memory.model_trace import trace_in
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.marp import PlanRequest, plan_candidates
from frenzy.core.runs.views import PlanningFacts, QueueSnapshot
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import FrenzyError
from frenzy.core.values.job import Objective, deadline_s
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, RunningJob

Plans = tuple[ResourcePlan, ...]


def with_plans_for(snapshot: QueueSnapshot, gpu_types: frozenset[str]) -> tuple[QueueSnapshot, list[str]]:
    """``snapshot`` in which jobs that wait or may be moved can also run on ``gpu_types`` of its cluster, and notes.

    New plans are made with the shipped coefficients. Their times are brought to the scale of the plans the
    job has, by a plan that is in both; jobs that cannot be planned keep what they have, and a note says so.
    """
    unplanned: list[tuple[str, Plans]] = []
    unfit: list[str] = []

    def planned(job: QueuedJob | RunningJob, plans: Plans) -> Plans:
        found = _new_plans(snapshot, job, plans, gpu_types)
        if found is None:
            unplanned.append((job.job_name, plans))
            return plans
        if not any(plan.gpu_type in gpu_types for plan in (*plans, *found)):
            unfit.append(job.job_name)
        ordered = isinstance(job, QueuedJob) and job.ordered
        return (*plans, *found) if ordered else _best_first((*plans, *found), job.objective)

    facts = snapshot.facts
    queued = tuple(replace(job, plans=planned(job, job.plans)) for job in facts.queued)
    running = tuple(replace(job, plans=planned(job, job.plans)) if job.plans else job for job in facts.running)
    changed = replace(snapshot, facts=replace(facts, queued=queued, running=running))
    types = ", ".join(sorted(gpu_types))
    notes = [f"No plan of these jobs uses {types} (constraints, memory): {', '.join(unfit)}."] if unfit else []
    return changed, [*notes, *_not_tried(unplanned, gpu_types)]


def _not_tried(unplanned: Sequence[tuple[str, Plans]], gpu_types: frozenset[str]) -> list[str]:
    """What the answer leaves out for jobs, by name and plans, for which no new plans can be made."""
    notes: list[str] = []
    for gpu_type in sorted(gpu_types):
        told = [(name, any(plan.gpu_type == gpu_type for plan in plans)) for name, plans in unplanned]
        able = ", ".join(name for name, has_plan in told if has_plan)
        unable = ", ".join(name for name, has_plan in told if not has_plan)
        if able:
            notes.append(f"These jobs keep the plans on {gpu_type} that they have; others are not tried: {able}.")
        if unable:
            notes.append(f"These jobs have no plan on {gpu_type}, and none can be made from the snapshot: {unable}.")
    return notes


def _new_plans(
    snapshot: QueueSnapshot, job: QueuedJob | RunningJob, known: Plans, gpu_types: frozenset[str]
) -> Plans | None:
    """Plans on ``gpu_types`` that the job does not have yet; None if it cannot be planned."""
    planning = snapshot.planning.get(job.run_key)
    if planning is None:
        return None
    # As in the product, what has begun goes on after its deadline.
    has_begun = isinstance(job, RunningJob) or job.work_done > 0
    before_s = None if has_begun else deadline_s(planning.job)
    left_s = None if before_s is None else before_s - snapshot.taken_s
    try:
        made = all_plans(planning, snapshot.facts.cluster, snapshot.marp_policy, seconds_to_deadline=left_s)
    except FrenzyError:
        return None
    before = {plan.plan_id: plan for plan in known}
    scales = [before[plan.plan_id].predicted_run_s / plan.predicted_run_s for plan in made if plan.plan_id in before]
    if known and not scales:
        return None
    scale = scales[0] if scales else 1.0
    return tuple(_scaled(plan, scale) for plan in made if plan.gpu_type in gpu_types and plan.plan_id not in before)


def all_plans(
    planning: PlanningFacts, cluster: Cluster, marp_policy: str, *, seconds_to_deadline: float | None = None
) -> Plans:
    """Every plan that MARP finds feasible on ``cluster``, in its order; those too slow for a deadline are none.

    Raises FrenzyError for a model it does not know.
    """
    request = PlanRequest(
        job=planning.job,
        shape=model_shape(planning.model_config),
        total_steps=planning.total_steps,
        excluded_shapes=planning.excluded_shapes,
        extra_bytes_per_gpu=planning.extra_bytes_per_gpu,
        seconds_to_deadline=seconds_to_deadline,
        trace=trace_in(planning.model_config),
    )
    candidates = plan_candidates(request, cluster, default_calibration(), marp_policy)
    return tuple(each.plan for each in candidates if each.feasible)


def _scaled(plan: ResourcePlan, scale: float) -> ResourcePlan:
    cost = plan.predicted_cost
    return replace(
        plan, predicted_run_s=plan.predicted_run_s * scale, predicted_cost=None if cost is None else cost * scale
    )


def _best_first(plans: Plans, objective: Objective) -> Plans:
    """As MARP ranks them; plans that are equally good keep their order."""
    if objective is Objective.COST:
        return tuple(sorted(plans, key=lambda plan: (plan.cost_order, plan.predicted_run_s)))
    return tuple(sorted(plans, key=lambda plan: (plan.predicted_run_s, plan.num_gpus, plan.cost_order)))
