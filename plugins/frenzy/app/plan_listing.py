"""Listing a run's plans: MARP's candidates, and after an attempt the ladder among them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from frenzy.app.services import Services
from frenzy.core.lifecycle.reschedule import MEMORY_REASONS, final_state, is_as_wide, ladder, predicted_anew
from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.measured_runs import NOTHING_MEASURED, MeasuredRuns
from frenzy.core.memory.model_trace import trace_in
from frenzy.core.memory.residuals import Residuals
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.estimated_plans import coefficients_of
from frenzy.core.planning.marp import PlanRequest, mends_plans, plan_candidates, remedies, smallest_remedy
from frenzy.core.planning.plan_remedies import Remedy
from frenzy.core.planning.script_plans import UNNAMED_MODEL
from frenzy.core.runs.ledger import CalibrationSample, JobState, NextAttempt, RunRecord, since_registered, versions_key
from frenzy.core.runs.script_key import measured_runs, script_environment, script_key
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import FrenzyError, PermanentError, Reason, ReasonCode
from frenzy.core.values.job import deadline_s
from frenzy.core.values.resource_plan import Candidate, MemorySource, PlanShape, ResourcePlan
from frenzy.core.values.workload import TRANSFORMERS_LIBRARY
from frenzy.ports import LedgerTx

# Steps assumed for predicted times where the number of steps is not known yet.
ASSUMED_STEPS = 1000
# Of all jobs of a DAG, newest first.
_MOST_RUNS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoice:
    """The plans a run is queued with, or why there are none.

    candidates: all that were judged; none where none could be made, and those that were known stand.
    ordered: they are to be taken in this order. following: what they were asked for, as it stands with them.
    final_state: of the run, if it is refused.
    """

    candidates: tuple[Candidate, ...]
    plans: tuple[ResourcePlan, ...]
    following: NextAttempt
    ordered: bool = False
    refusal: Reason | None = None
    final_state: JobState = JobState.FAILED_NO_RESOURCE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What planning reads of the ledger. residuals: what runs of other jobs taught. measured: runs of its script.

    reported_release: of transformers, as the agent said it in its script's environment.
    """

    cluster: Cluster
    residuals: Residuals
    measured: MeasuredRuns = NOTHING_MEASURED
    reported_release: str | None = None


def plan_facts(tx: LedgerTx, services: Services, run: RunRecord) -> PlanFacts:
    """The facts for the run's plans as they are now."""
    versions = versions_key(services.predictor_versions)
    return PlanFacts(
        cluster=tx.cluster(),
        residuals=Residuals(tx.residuals(versions=versions, except_run=run.run_key)),
        measured=_measured(tx, run, versions),
        reported_release=_reported_release(tx, run),
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


def _reported_release(tx: LedgerTx, run: RunRecord) -> str | None:
    """The release of transformers that was reported last, by this run or one before it of the same job.

    None where no model is named: nothing is predicted then. Nor where image, command, folder or packages were others:
    these say what is installed.
    """
    if run.job.workload is None or not run.job.names_a_model:
        return None
    own = _last_reported(tx, run)
    if own is not None:
        return own
    before = tx.runs(dag_ids=(run.identity.dag_id,), limit=_MOST_RUNS)
    alike = (
        each
        for each in before
        if each.run_key != run.run_key and script_environment(each.job) == script_environment(run.job)
    )
    return next((found for each in alike if (found := _last_reported(tx, each)) is not None), None)


def _last_reported(tx: LedgerTx, run: RunRecord) -> str | None:
    attempts = reversed(since_registered(run, tx.attempts(run.run_key)))
    return next(
        (each.releases[TRANSFORMERS_LIBRARY] for each in attempts if TRANSFORMERS_LIBRARY in each.releases), None
    )


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
        listing = _listing(facts, services, request)
    except FrenzyError as error:
        return (), error.reason
    known = listing.candidates
    if any(each.feasible for each in known):
        return known, None
    refusal = smallest_remedy(listing.request, facts.cluster, listing.calibration, services.marp_policy, known)
    beside = coefficients_of(listing.request, listing.calibration)
    return known, replace(refusal, detail=f"{refusal.detail} {beside}".rstrip())


def tuned_request(facts: PlanFacts, services: Services, run: RunRecord, extra_bytes_per_gpu: int) -> Remedy | None:
    """The least change of the run's job after which a plan fits the cluster as it is, with so much memory to spare.

    None where none is needed, or none was found. Takes no part of the ledger.
    """
    try:
        request = replace(_request(facts, services, run), extra_bytes_per_gpu=extra_bytes_per_gpu)
        listing = _listing(facts, services, request)
    except FrenzyError:
        return None
    if any(each.feasible for each in listing.candidates):
        return None
    return remedies(listing.request, facts.cluster, listing.calibration, services.marp_policy, within=True)


def next_plans(tx: LedgerTx, services: Services, run: RunRecord, following: NextAttempt) -> PlanChoice:
    """The plans for ``following``: all feasible ones, or the ladder's rung after memory ran short.

    What an earlier release planned this one may refuse: that is a refusal, too, and no error of whoever reports. A run
    that was taken is not refused for what its agent reports: where no plan is left with that, it counts for nothing.
    """
    facts = plan_facts(tx, services, run)
    choice = _choice(facts, services, run, following)
    if choice.plans or facts.reported_release is None:
        return choice
    return _choice(replace(facts, reported_release=None), services, run, following)


def _choice(facts: PlanFacts, services: Services, run: RunRecord, following: NextAttempt) -> PlanChoice:
    try:
        following = _restated(facts, services, run, following)
        candidates = _made(facts, services, _request(facts, services, run, following)).candidates
    except PermanentError as error:
        return PlanChoice(candidates=(), plans=(), following=following, refusal=error.reason)
    rung = ladder(candidates, following)
    if rung.plans:
        climbed = following.previous is not None and following.reason.code in MEMORY_REASONS
        aimed = following.preferred is not None and is_as_wide(rung.plans[0], following.preferred)
        return PlanChoice(candidates=candidates, plans=rung.plans, following=following, ordered=climbed or aimed)
    return PlanChoice(
        candidates=candidates,
        plans=(),
        following=following,
        refusal=_no_plan(following, services.marp_policy),
        final_state=_refused_state(following),
    )


def refusal_of_release(facts: PlanFacts, services: Services, run: RunRecord, release: str) -> Reason | None:
    """Why nothing can be predicted of a script with that ``release`` of transformers; None where it can be."""
    try:
        _made(facts, services, replace(_request(facts, services, run), reported_release=release))
    except FrenzyError as error:
        return error.reason
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """What was asked at last, with which coefficients, and the answer."""

    request: PlanRequest
    calibration: Calibration
    candidates: tuple[Candidate, ...]


def _listing(facts: PlanFacts, services: Services, request: PlanRequest) -> _Listing:
    """By the reported release; as if nothing were reported where nothing is known of that.

    Raises PermanentError for a model that cannot be planned.
    """
    if request.reported_release is not None:
        with suppress(PermanentError):
            return _made(facts, services, request)
    return _made(facts, services, replace(request, reported_release=None))


def _made(facts: PlanFacts, services: Services, request: PlanRequest) -> _Listing:
    calibration = services.calibration_for(request.script_release)
    candidates = plan_candidates(request, facts.cluster, calibration, services.marp_policy)
    return _Listing(request=request, calibration=calibration, candidates=candidates)


def _is_as_written(services: Services, request: PlanRequest) -> bool:
    """Whether the coefficients are those that would be taken if nothing were reported."""
    written = replace(request, reported_release=None).script_release
    return services.calibration_for(request.script_release) is services.calibration_for(written)


def _restated(facts: PlanFacts, services: Services, run: RunRecord, following: NextAttempt) -> NextAttempt:
    """``following`` with what the reported release predicts of the plan before, which was made with other coefficients.

    What was seen beyond the prediction then is less. As it was where that plan cannot be predicted any more.
    """
    before, request = following.previous, _request(facts, services, run)
    if before is None or _is_as_written(services, request):
        return following
    asked = replace(request, micro_batch_size=before.micro_batch_size, every_plan=True)
    listing = _made(facts, services, asked)
    same = next((each.plan for each in listing.candidates if each.plan.shape == before.shape), None)
    coefficients = coefficients_of(request, listing.calibration)
    return following if same is None else predicted_anew(following, same.memory, coefficients)


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
        reported_release=facts.reported_release,
        sold_as=services.sold_as,
    )


def _written_by(run: RunRecord, following: NextAttempt | None) -> PlanShape | None:
    """The plan that wrote the checkpoint, if the run's script goes on in its shape only."""
    only_in_its_shape = run.job.can_move and not run.job.can_change_width
    if not only_in_its_shape or following is None or following.checkpoint_step is None:
        return None
    if following.reason.code is ReasonCode.REHEARSED:
        return None  # its few steps are taken anew
    return None if following.previous is None else following.previous.shape


def _no_plan(following: NextAttempt, policy: str) -> Reason:
    if following.previous is None:
        return Reason(code=ReasonCode.NEVER_FITS)
    if following.reason.code not in MEMORY_REASONS:
        return Reason(
            code=ReasonCode.NO_OTHER_PLAN,
            detail=f"After {following.previous.plan_id} ({following.reason.code}) no plan fits the cluster any more.",
            remedy="Bring back the GPUs that it ran on, or add others, and clear the run's tasks.",
        )
    failed = following.previous
    mending = (
        f" frenzy plan FILE --fit {failed.plan_id} lists what alone would mend it; it does not know of the others that "
        "were tried."
        if failed.is_timed and mends_plans(policy)
        else ""
    )
    return Reason(
        code=ReasonCode.NO_OTHER_PLAN,
        detail=(
            f"After {failed.plan_id} ({following.reason.code}) no plan is left with more room for memory that grows "
            "beyond the prediction."
        ),
        remedy=(
            f"Add GPUs with more memory, shorten data.sequence_length, or remove what grows in your callbacks.{mending}"
        ),
    )


def _refused_state(following: NextAttempt) -> JobState:
    return JobState.FAILED_NO_RESOURCE if following.previous is None else final_state(following.reason)
