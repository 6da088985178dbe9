"""MARP: from a training job to its resource plans, each with a rank or the reason it is refused.

``plan_candidates`` is the entry; the policy is ``closed-form`` (the project's memory and time
models) or ``paper`` (Frenzy's formulas as published). Order of the result: feasible plans by
rank, then one refused plan for each GPU type, count and reason, as an explanation.

Ranking, objective time: predicted run time, GPUs, cost, then the plan's own order (tensor
parallel degree, ZeRO stage, checkpointing, larger micro-batch). Objective cost: cost, run time,
GPUs, then the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.model_trace import calibrated
from frenzy.core.planning.asked_cards import no_such_plan
from frenzy.core.planning.estimated_plans import closed_form_candidates, traced_with_another
from frenzy.core.planning.grid import divisors
from frenzy.core.planning.paper_plans import paper_candidates, paper_micro_batches
from frenzy.core.planning.plan_remedies import Remedy, first_remedy, refusal_of
from frenzy.core.planning.remedy_changes import Situation, Solve
from frenzy.core.planning.request import PlanRequest
from frenzy.core.planning.script_plans import script_candidates
from frenzy.core.planning.single_changes import SingleChange, single_changes
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.gpu_catalogue import types_named
from frenzy.core.values.job import Checkpointing
from frenzy.core.values.resource_plan import Candidate, PlanShape, ResourcePlan
from frenzy.core.values.units import format_bytes

__all__ = ["POLICIES", "PlanRequest", "Remedy", "plan_candidates", "remedies", "smallest_remedy"]

Policy = Callable[[PlanRequest, Cluster, Calibration], tuple[Candidate, ...]]

POLICIES: Final[Mapping[str, Policy]] = {"closed-form": closed_form_candidates, "paper": paper_candidates}


def plan_candidates(
    request: PlanRequest, cluster: Cluster, calibration: Calibration, policy: str = "closed-form"
) -> tuple[Candidate, ...]:
    """All plans worth knowing of, best first; refused ones last.

    Raises PermanentError when the model is outside the memory model's support, cannot take the
    job's sequences or tokens, or the policy is unknown.
    """
    solve = _policy(policy)
    _check_positions(request)
    _check_vocabulary(request)
    return _candidates(solve, request, cluster, calibration)


def _check_positions(request: PlanRequest) -> None:
    length, positions = request.sequence_length, request.shape.max_positions
    if 0 < positions < length:
        raise PermanentError(
            Reason(
                code=ReasonCode.BAD_CONFIG_OR_DATA,
                detail=f"data.sequence_length is {length}, but the model has {positions} positions.",
                remedy=f"data.sequence_length: {length} -> {positions}, or a model with more positions.",
            )
        )


def _check_vocabulary(request: PlanRequest) -> None:
    """A script brings a tokenizer of its own."""
    model, words = request.job.model, request.shape.vocab_size
    tokens = model.tokenizer_size or request.known_tokens
    if request.job.workload is None and tokens is not None and words < tokens:
        raise PermanentError(
            Reason(
                code=ReasonCode.BAD_CONFIG_OR_DATA,
                detail=f"vocab_size is {words}, but model.tokenizer {model.tokenizer_used!r} has {tokens} tokens.",
                remedy=f"vocab_size: {words} -> {tokens}, or a tokenizer with at most {words} tokens.",
            )
        )


def micro_batches(global_batch: int, policy: str) -> tuple[int, ...]:
    """Those of which ``policy`` has plans for this batch, ascending."""
    return paper_micro_batches(global_batch) if policy == "paper" else divisors(global_batch, global_batch)


def smallest_remedy(
    request: PlanRequest,
    cluster: Cluster,
    calibration: Calibration,
    policy: str = "closed-form",
    known: tuple[Candidate, ...] | None = None,
) -> Reason:
    """Why no plan of ``request`` is feasible, with the smallest change that makes one so.

    When one is feasible after all, the reason is that of the best plan. known: the request's candidates, where
    they were listed already.
    """
    request = _on_types(request, cluster)
    candidates = plan_candidates(request, cluster, calibration, policy) if known is None else known
    if candidates and candidates[0].feasible:
        return candidates[0].reason
    remedy = _first_remedy(request, cluster, calibration, policy, candidates)
    found = refusal_of(candidates, remedy)
    unknown = [each for each in request.job.constraints.gpu_types if each not in cluster.types_by_name]
    if found.code is not ReasonCode.GPU_TYPE_NOT_ALLOWED or not unknown:
        return found
    there = f"The cluster has {', '.join(cluster.types_by_name) or 'no GPU type'}, and no {' or '.join(unknown)}."
    return replace(found, detail=f"{found.detail} {there}")


def remedies(
    request: PlanRequest,
    cluster: Cluster,
    calibration: Calibration,
    policy: str = "closed-form",
    *,
    within: bool = False,
) -> Remedy | None:
    """The change of the least effect after which a plan is feasible; None when none was found.

    within: on this very cluster.
    """
    known = _candidates(_policy(policy), request, cluster, calibration)
    return _first_remedy(request, cluster, calibration, policy, known, within=within)


def mends_plans(policy: str) -> bool:
    """Whether ``failed_plan`` answers by this policy, of a job that names its model."""
    return _policy(policy) is closed_form_candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPlan:
    """A plan that ran out of memory. after: what is asked for then: others, with room for what it took unseen.

    refusal: why it would not be run, whatever its memory; None where memory alone is the matter.
    """

    plan: ResourcePlan
    after: PlanRequest
    refusal: Reason | None = None

    @property
    def assumed(self) -> str:
        """What it is taken to have needed, where it is predicted to fit, or why it would not be run; else nothing."""
        if self.refusal is not None:
            return self.refusal.sentence
        unseen, plan = self.after.extra_bytes_per_gpu, self.plan
        return (
            f"{plan.plan_id} is predicted to need {format_bytes(plan.memory.required_bytes)} of "
            f"{format_bytes(plan.gpu_memory_bytes)}; it is taken to have needed {format_bytes(unseen)} more, which is "
            "the least with which it can have failed."
            if unseen
            else ""
        )

    @property
    def never_chosen(self) -> str:
        """That the job's own setting of checkpointing rules it out, and what to do; else nothing."""
        setting, shape = self.after.job.training.gradient_checkpointing, self.plan.shape
        if setting is not (Checkpointing.OFF if shape.activation_checkpointing else Checkpointing.ON):
            return ""
        meant = replace(shape, activation_checkpointing=not shape.activation_checkpointing)
        return (
            f"training.gradient_checkpointing is {setting}, with which the job never runs {shape.plan_id}: name "
            f"{meant.plan_id} if that one failed, else set it to auto."
        )


def failed_plan(
    failed: PlanShape, request: PlanRequest, cluster: Cluster, calibration: Calibration, policy: str = "closed-form"
) -> FailedPlan:
    """The plan of ``request`` that ran out of memory.

    One that is predicted to fit took at least what its peak leaves free of the card, as after an attempt. Raises
    PermanentError where the job has no such plan, or its plans are not predicted by the closed form.
    """
    if not mends_plans(policy) or not request.job.names_a_model:
        detail = "What would mend one plan is told of plans that the closed form predicts."
        raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy="Name the cards alone."))
    known = plan_candidates(_looking_at(failed, request), cluster, calibration, policy)
    if not known:
        raise no_such_plan(failed, request, cluster)
    plan = known[0].plan
    unseen = plan.gpu_memory_bytes - plan.memory.peak_allocated_bytes if known[0].feasible else 0
    reason = known[0].reason
    refusal = reason if reason.code is ReasonCode.PREDICTED_NOT_LAUNCHABLE else None
    return FailedPlan(plan=plan, after=replace(request, extra_bytes_per_gpu=unseen), refusal=refusal)


def mending_changes(
    request: PlanRequest, cluster: Cluster, calibration: Calibration, policy: str = "closed-form"
) -> tuple[SingleChange, ...]:
    """Every single change after which ``request`` fits ``cluster``, which it does not as it is; least effect first."""
    known = _candidates(_policy(policy), request, cluster, calibration)
    return single_changes(Situation(request, cluster, ()), known, _solving(policy, calibration))


def changes_of_plan(failed: FailedPlan, cluster: Cluster, calibration: Calibration) -> tuple[SingleChange, ...]:
    """Every single change after which this very plan fits; least effect first."""
    return mending_changes(_looking_at(failed.plan.shape, failed.after), cluster, calibration)


def _looking_at(shape: PlanShape, request: PlanRequest) -> PlanRequest:
    """At one plan alone, whatever the built-in trainer's job says of checkpointing."""
    job = request.job
    if job.workload is None:
        job = replace(job, training=replace(job.training, gradient_checkpointing=Checkpointing.AUTO))
    return replace(request, job=job, only_shapes=(shape,), excluded_shapes=(), every_plan=True)


def _first_remedy(
    request: PlanRequest,
    cluster: Cluster,
    calibration: Calibration,
    policy: str,
    known: tuple[Candidate, ...],
    *,
    within: bool = False,
) -> Remedy | None:
    request = _on_types(request, cluster)
    return first_remedy(request, cluster, known, _solving(policy, calibration), within=within)


def _solving(policy: str, calibration: Calibration) -> Solve:
    solve = _policy(policy)
    return lambda request, cluster: _candidates(solve, request, cluster, calibration)


def _candidates(
    solve: Policy, request: PlanRequest, cluster: Cluster, calibration: Calibration
) -> tuple[Candidate, ...]:
    """By the policy; a script's plans are the same by every policy. A traced model brings its own coefficients."""
    calibration, request = calibrated(calibration, request.trace), _on_types(request, cluster)
    script = request.job.workload
    if script is None:
        return solve(request, cluster, calibration)
    release = request.script_release
    if request.trace is not None and release is not None and request.trace.is_newer_than(release):
        raise traced_with_another(request.trace, release)
    own = closed_form_candidates if request.job.names_a_model else script_candidates
    return own(request, cluster, calibration)


def _on_types(request: PlanRequest, cluster: Cluster) -> PlanRequest:
    """``request`` with the cluster's own names of the types that its job allows; what it does not have stays."""
    constraints = request.job.constraints
    named = ((each, types_named(each, cluster.gpu_types, request.sold_as)) for each in constraints.gpu_types)
    own = tuple(dict.fromkeys(name for asked, found in named for name in ([each.name for each in found] or [asked])))
    if own == constraints.gpu_types:
        return request
    return replace(request, job=replace(request.job, constraints=replace(constraints, gpu_types=own)))


def _policy(name: str) -> Policy:
    if name not in POLICIES:
        detail = f"MARP policy {name!r} is not known; allowed: {', '.join(POLICIES)}."
        raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail))
    return POLICIES[name]
