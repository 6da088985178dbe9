"""Listing a run's plans: MARP's candidates, and after an attempt the ladder among them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from frenzy.app.services import Services
from frenzy.core.lifecycle.reschedule import MEMORY_REASONS, final_state, is_as_wide, ladder
from frenzy.core.memory.measured_runs import NOTHING_MEASURED, MeasuredRuns
from frenzy.core.memory.model_trace import trace_in
from frenzy.core.memory.residuals import Residuals
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.marp import PlanRequest, plan_candidates, remedies, smallest_remedy
from frenzy.core.planning.plan_remedies import Remedy
from frenzy.core.planning.script_plans import UNNAMED_MODEL
from frenzy.core.runs.ledger import CalibrationSample, JobState, NextAttempt, RunRecord, versions_key
from frenzy.core.runs.script_key import measured_runs, script_key
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import FrenzyError, PermanentError, Reason, ReasonCode
from frenzy.core.values.job import deadline_s
from frenzy.core.values.resource_plan import Candidate, MemorySource, PlanShape, ResourcePlan
from frenzy.ports import LedgerTx

# Steps assumed for predicted times where the number of steps is not known yet.
ASSUMED_STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoice:
    """The plans a run is queued with, or why there are none.

    ordered: they are to be taken in this order. final_state: of the run, if it is refused.
    """

    candidates: tuple[Candidate, ...]
    plans: tuple[ResourcePlan, ...]
    ordered: bool = False
    refusal: Reason | None = None
    final_state: JobState = JobState.FAILED_NO_RESOURCE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What planning reads of the ledger. residuals: what runs of other jobs taught. measured: runs of its script."""

    cluster: Cluster
    residuals: Residuals
    measured: MeasuredRuns = NOTHING_MEASURED


def plan_facts(tx: LedgerTx, services: Services, run: RunRecord) -> PlanFacts:
    """The facts for the run's plans as they are now."""
    versions = versions_key(services.predictor_versions)
    return PlanFacts(
        cluster=tx.cluster(),
        residuals=Residuals(tx.residuals(versions=versions, except_run=run.run_key)),
        measured=_measured(tx, run, versions),
    )


def _measured(tx: LedgerTx, run: RunRecord, versions: str) -> MeasuredRuns:
    """What runs of its script took with the same libraries, its own among them; of a model's, nothing: it is predicted.

    What it ran out of itself with declared memory is in its next attempt.
    """
    key = script_key(run)
    if not key:
        return NOTHING_MEASURED
    known = (each for each in tx.samples(family=key) if versions_key(each.versions) == versions)
    return measured_runs(run, tuple(each for each in known if not _is_in_next_attempt(run, each)))


def _is_in_next_attempt(run: RunRecord, sample: CalibrationSample) -> bool:
    return sample.run_key == run.run_key and sample.plan.memory.source is MemorySource.DECLARED


def first_plans(
    facts: PlanFacts,
    services: Services,
    run: RunRecord,
    *,
    micro_batch_size: int | None = None,
    extra_bytes_per_gpu: int = 0,
) -> tuple[tuple[Candidate, ...], Reason | None]:
    """All candidates of a new run, and the refusal if none is feasible. Takes no part of the ledger: it may take long.

    A model outside the memory model's support is a refusal too, not an error. micro_batch_size: only plans with it.
    extra_bytes_per_gpu: only plans with so much memory to spare.
    """
    try:
        asked = _request(facts, services, run)
        request = replace(asked, micro_batch_size=micro_batch_size, extra_bytes_per_gpu=extra_bytes_per_gpu)
        calibration = services.calibration_for(run.job)
        candidates = plan_candidates(request, facts.cluster, calibration, services.marp_policy)
    except FrenzyError as error:
        return (), error.reason
    if any(each.feasible for each in candidates):
        return candidates, None
    return candidates, smallest_remedy(request, facts.cluster, calibration, services.marp_policy, candidates)


def tuned_request(facts: PlanFacts, services: Services, run: RunRecord, extra_bytes_per_gpu: int) -> Remedy | None:
    """The least change of the run's job after which a plan fits the cluster as it is, with so much memory to spare.

    None where none is needed, or none was found. Takes no part of the ledger.
    """
    try:
        request = replace(_request(facts, services, run), extra_bytes_per_gpu=extra_bytes_per_gpu)
        calibration = services.calibration_for(run.job)
        known = plan_candidates(request, facts.cluster, calibration, services.marp_policy)
    except FrenzyError:
        return None
    if any(each.feasible for each in known):
        return None
    return remedies(request, facts.cluster, calibration, services.marp_policy, within=True)


def next_plans(tx: LedgerTx, services: Services, run: RunRecord, following: NextAttempt) -> PlanChoice:
    """The plans for ``following``: all feasible ones, or the ladder's rung after memory ran short.

    What an earlier release planned this one may refuse: that is a refusal, too, and no error of whoever reports.
    """
    facts = plan_facts(tx, services, run)
    try:
        request, calibration = _request(facts, services, run, following), services.calibration_for(run.job)
        candidates = plan_candidates(request, facts.cluster, calibration, services.marp_policy)
    except PermanentError as error:
        return PlanChoice(candidates=run.candidates, plans=(), refusal=error.reason)
    rung = ladder(candidates, following)
    if rung.plans:
        climbed = following.previous is not None and following.reason.code in MEMORY_REASONS
        aimed = following.preferred is not None and is_as_wide(rung.plans[0], following.preferred)
        return PlanChoice(candidates=candidates, plans=rung.plans, ordered=climbed or aimed)
    refusal = _no_plan(following)
    return PlanChoice(candidates=candidates, plans=(), refusal=refusal, final_state=_refused_state(following))


def _request(facts: PlanFacts, services: Services, run: RunRecord, following: NextAttempt | None = None) -> PlanRequest:
    """What MARP is asked. What the run's own attempts taught is in ``following``."""
    done = following.checkpoint_step or 0 if following is not None else 0
    # What has begun goes on after its deadline: nobody is helped if a run fails for having been moved.
    deadline = deadline_s(run.job) if following is None or following.previous is None else None
    return PlanRequest(
        job=run.job,
        shape=model_shape(run.model_config or {}) if run.job.names_a_model else UNNAMED_MODEL,
        total_steps=max(1, (run.total_steps or ASSUMED_STEPS) - done),
        excluded_shapes=following.excluded_shapes if following is not None else (),
        extra_bytes_per_gpu=following.extra_bytes_per_gpu if following is not None else 0,
        seconds_to_deadline=None if deadline is None else deadline - services.clock.now_s(),
        residuals=facts.residuals,
        measured_runs=facts.measured,
        resumes_as=_written_by(run, following),
        trace=trace_in(run.model_config),
        known_tokens=run.data_facts.vocab_size,
    )


def _written_by(run: RunRecord, following: NextAttempt | None) -> PlanShape | None:
    """The plan that wrote the checkpoint, if the run's script goes on in its shape only."""
    only_in_its_shape = run.job.can_move and not run.job.can_change_width
    if not only_in_its_shape or following is None or following.checkpoint_step is None:
        return None
    if following.reason.code is ReasonCode.REHEARSED:
        return None  # its few steps are taken anew
    return None if following.previous is None else following.previous.shape


def _no_plan(following: NextAttempt) -> Reason:
    if following.previous is None:
        return Reason(code=ReasonCode.NEVER_FITS)
    if following.reason.code not in MEMORY_REASONS:
        return Reason(
            code=ReasonCode.NO_OTHER_PLAN,
            detail=f"After {following.previous.plan_id} ({following.reason.code}) no plan fits the cluster any more.",
            remedy="Bring back the GPUs that it ran on, or add others, and clear the run's tasks.",
        )
    return Reason(
        code=ReasonCode.NO_OTHER_PLAN,
        detail=(
            f"After {following.previous.plan_id} ({following.reason.code}) no plan is left with more room for memory "
            "that grows beyond the prediction."
        ),
        remedy="Add GPUs with more memory, shorten data.sequence_length, or remove what grows in your callbacks.",
    )


def _refused_state(following: NextAttempt) -> JobState:
    return JobState.FAILED_NO_RESOURCE if following.previous is None else final_state(following.reason)
