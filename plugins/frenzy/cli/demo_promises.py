"""What the demo promises, each judged from the evidence alone. Pure; holds for any job and cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from frenzy.cli.demo_evidence import Evidence, losses_by_attempt
from frenzy.core.models.shape import model_shape
from frenzy.core.runs.ledger import Attempt, JobState
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.views import MemoryView
from frenzy.core.values.errors import PermanentError, ReasonCode
from frenzy.core.values.job import Precision
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.units import format_bytes

ALLOWED_PREDICTION_ERROR: Final = 0.08
_OUT_OF_MEMORY: Final = frozenset({ReasonCode.CUDA_OUT_OF_MEMORY, ReasonCode.BUDGET_EXCEEDED})
_WINDOW_STEPS: Final = 5

# Loss difference, relative, that two correct runs of one job may show.
# Same layout: the same operations in the same order.
SAME_LAYOUT_TOLERANCE: Final = 1e-6
# Crossing into or out of ZeRO stage 3: tied weights are kept once on one side, twice on the other.
STAGE_BRIDGE_TOLERANCE: Final = 1e-4
# Another layout: sums over micro-batches and workers run in another order, so the last bits differ
# and training carries them on. Allowed for each step of the run, and at most; the noise seen over
# 40 steps of a four-layer GPT-2 was 2e-7 in fp32.
REORDERED_PER_STEP: Final[Mapping[Precision, float]] = {
    Precision.FP32: 1e-6,
    Precision.BF16: 2e-4,
    Precision.FP16: 2e-4,
    Precision.AUTOCAST_BF16: 2e-4,
}
REORDERED_MOST: Final[Mapping[Precision, float]] = {
    Precision.FP32: 1e-3,
    Precision.BF16: 3e-2,
    Precision.FP16: 3e-2,
    Precision.AUTOCAST_BF16: 3e-2,
}
_OTHER_HEADS: Final = ("summary", "classifier")
# With dropout each worker draws its own masks: only means over an attempt's steps can agree.
DROPOUT_MEAN_TOLERANCE: Final = 5e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One promise, whether it was kept, and what shows it."""

    name: str
    kept: bool
    evidence: str


def judge(evidence: Evidence) -> tuple[Promise, ...]:
    """Every promise, in the order of the walk."""
    checks: tuple[Callable[[Evidence], Promise], ...] = (
        run_succeeded,
        loss_fell,
        moved_in_time,
        workers_changed,
        batch_kept,
        training_resumed,
        memory_was_predicted,
        loss_equals_control,
        model_loads,
        asset_was_announced,
        evaluation_followed,
    )
    return tuple(check(evidence) for check in checks)


def run_succeeded(evidence: Evidence) -> Promise:
    run = evidence.view.run
    kept = evidence.dag_state == "success" and run.state is JobState.SUCCEEDED
    last = evidence.view.attempts[-1].last_step if evidence.view.attempts else 0
    kept = kept and (run.total_steps is None or last >= run.total_steps)
    words = f"DAG run {evidence.dag_state}, job {run.state}, step {last} of {run.total_steps}"
    return Promise(name="The run reached its last step", kept=kept, evidence=words)


def loss_fell(evidence: Evidence) -> Promise:
    steps = sorted(
        {step: loss for each in losses_by_attempt(evidence.memory).values() for step, loss in each.items()}.items()
    )
    if len(steps) < 2 * _WINDOW_STEPS:
        return Promise(name="The loss fell", kept=False, evidence=f"only {len(steps)} steps reported a loss")
    first = _mean(loss for _, loss in steps[:_WINDOW_STEPS])
    last = _mean(loss for _, loss in steps[-_WINDOW_STEPS:])
    words = (
        f"{first:.3f} over steps {steps[0][0]}-{steps[_WINDOW_STEPS - 1][0]}, {last:.3f} over the last {_WINDOW_STEPS}"
    )
    return Promise(name="The loss fell", kept=last < first, evidence=words)


def moved_in_time(evidence: Evidence) -> Promise:
    """With the forecast on: moved before any out-of-memory. With it off: ran out, and went on."""
    attempts = evidence.view.attempts
    codes = [each.outcome.code if each.outcome is not None else None for each in attempts]
    ran_out = [index for index, code in enumerate(codes) if code in _OUT_OF_MEMORY]
    if not evidence.view.run.job.on_memory_pressure.forecast:
        kept = bool(ran_out) and ran_out[0] < len(attempts) - 1
        words = f"out of memory in attempt {attempts[ran_out[0]].attempt}, then went on" if kept else "never ran out"
        return Promise(name="It ran out of memory and recovered (the forecast is off)", kept=kept, evidence=words)
    moved = [index for index, each in enumerate(attempts) if _forecast_of(each)]
    kept = bool(moved) and (not ran_out or moved[0] < ran_out[0])
    words = _move_words(attempts[moved[0]]) if moved else f"no forecast move; attempts ended with {_listed(codes)}"
    return Promise(name="A forecast moved it before memory ran out", kept=kept, evidence=words)


def workers_changed(evidence: Evidence) -> Promise:
    attempts = evidence.view.attempts
    pairs = list(zip(attempts, attempts[1:], strict=False))
    ids = [each.plan.plan_id for each in attempts]
    kept = any(before.plan.num_gpus != after.plan.num_gpus for before, after in pairs) and all(
        before.plan.shape != after.plan.shape for before, after in pairs
    )
    words = " -> ".join(f"{plan} ({each.plan.num_gpus} workers)" for plan, each in zip(ids, attempts, strict=True))
    return Promise(name="It went on with another plan on another number of workers", kept=kept, evidence=words)


def batch_kept(evidence: Evidence) -> Promise:
    wanted = evidence.view.run.job.training.global_batch_size
    planned = [each.plan.global_batch_size for each in evidence.view.attempts]
    kept = bool(planned) and set(planned) == {wanted} and set(evidence.launched_batches) == {wanted}
    cuts = ", ".join(
        f"{each.plan.dp} x {each.plan.micro_batch_size} x {each.plan.accumulation_steps}"
        for each in evidence.view.attempts
    )
    return Promise(
        name=f"The global batch stayed {wanted}", kept=kept, evidence=f"workers x micro-batch x steps: {cuts}"
    )


def training_resumed(evidence: Evidence) -> Promise:
    later = evidence.view.attempts[1:]
    resumed = [each.result.resumed_from_step if each.result is not None else None for each in later]
    kept = bool(later) and all(step is not None and step > 0 for step in resumed)
    words = ", ".join(f"attempt {each.attempt} from step {step}" for each, step in zip(later, resumed, strict=True))
    return Promise(name="Each later attempt resumed from a checkpoint", kept=kept, evidence=words or "one attempt only")


def memory_was_predicted(evidence: Evidence) -> Promise:
    """In each attempt that made steps: over those before growth nobody predicted set in."""
    errors: list[tuple[Attempt, float]] = []
    for each in evidence.view.attempts:
        if each.explained_peak_bytes:
            predicted = each.plan.memory.peak_allocated_bytes
            errors.append((each, (predicted - each.explained_peak_bytes) / each.explained_peak_bytes))
    measured = {each.attempt for each, _ in errors}
    blind = [each.attempt for each in evidence.view.attempts if each.last_step and each.attempt not in measured]
    kept = bool(errors) and not blind and all(abs(error) <= ALLOWED_PREDICTION_ERROR for _, error in errors)
    words = "; ".join(
        f"attempt {each.attempt}: {format_bytes(each.plan.memory.peak_allocated_bytes)} predicted, "
        f"{format_bytes(each.explained_peak_bytes or 0)} measured ({100 * error:+.1f} %)"
        for each, error in errors
    )
    name = f"Predicted and measured peak differ by at most {100 * ALLOWED_PREDICTION_ERROR:.0f} %"
    return Promise(name=name, kept=kept, evidence=words or "nothing was measured")


class Trained(Protocol):
    """What of a run its losses are judged by; ``control_losses``: by step, of the same job never interrupted."""

    @property
    def view(self) -> RunView: ...

    @property
    def memory(self) -> MemoryView: ...

    @property
    def control_losses(self) -> Mapping[int, float]: ...

    @property
    def control_result(self) -> AttemptResult | None: ...


def loss_equals_control(evidence: Trained) -> Promise:
    """Every step that both made, against the tolerance of what lies between their layouts."""
    name = "The loss equals that of an uninterrupted control run"
    result = evidence.control_result
    if result is None or result.exit_code != 0:
        words = "the control run left no result" if result is None else f"the control run failed: {result.detail}"
        return Promise(name=name, kept=False, evidence=words)
    parts = [_compared(evidence, each) for each in evidence.view.attempts]
    compared = [part for part in parts if part is not None]
    steps = {step for each in losses_by_attempt(evidence.memory).values() for step in each}
    missing = sorted(steps - set(evidence.control_losses))
    kept = bool(compared) and not missing and all(part.kept for part in compared)
    words = "; ".join(part.evidence for part in compared)
    return Promise(
        name=name, kept=kept, evidence=words + (f"; not in the control run: {missing[:5]}" if missing else "")
    )


def model_loads(evidence: Evidence) -> Promise:
    model = evidence.model
    weights = [name for name in model.files if name.endswith(".safetensors")]
    kept = model.problem is None and bool(weights) and "config.json" in model.files and model.num_parameters > 0
    words = model.problem or f"{model.family} with {model.num_parameters:,} parameters from {model.folder}"
    return Promise(name="The model is safetensors and loads with from_pretrained", kept=kept, evidence=words)


def asset_was_announced(evidence: Evidence) -> Promise:
    run_key = evidence.view.run.run_key
    named = [each for each in evidence.asset_events if (each.get("extra") or {}).get("run_key") == run_key]
    words = ", ".join(str(each.get("uri") or each.get("name")) for each in named)
    return Promise(
        name="The model's Asset event was emitted", kept=bool(named), evidence=words or "no event of this run"
    )


def evaluation_followed(evidence: Evidence) -> Promise:
    name = "The evaluation ran after the training's real end"
    if not evidence.view.run.job.evaluation.enabled:
        return Promise(name="The evaluation is off in the job's specification", kept=True, evidence="nothing to check")
    found = evidence.evaluation or {}
    perplexity, sample = found.get("perplexity"), found.get("sample")
    ended_s = max((each.ended_s or math.inf for each in evidence.view.attempts), default=math.inf)
    started = [
        each.start_s
        for each in evidence.tasks
        if each.task_id.rpartition(".")[2].startswith("evaluate") and each.start_s
    ]
    kept = isinstance(perplexity, float) and math.isfinite(perplexity) and perplexity >= 1.0 and bool(sample)
    kept = kept and bool(started) and min(started) >= ended_s
    shown = (
        f"perplexity {perplexity:.2f}, sample {str(sample)[:60]!r}" if isinstance(perplexity, float) else "no result"
    )
    return Promise(name=name, kept=kept, evidence=shown)


def _forecast_of(attempt: Attempt) -> bool:
    reasons = (attempt.stop_reason, attempt.outcome)
    return any(each is not None and each.code is ReasonCode.MEMORY_PRESSURE_FORECAST for each in reasons)


def _move_words(attempt: Attempt) -> str:
    reason = attempt.stop_reason or attempt.outcome
    sentence = reason.sentence if reason is not None else ""
    return f"attempt {attempt.attempt} at step {attempt.last_step}: {sentence}"


def _compared(evidence: Trained, attempt: Attempt) -> Promise | None:
    """One attempt's losses against the control run's."""
    losses = losses_by_attempt(evidence.memory).get(attempt.attempt, {})
    common = sorted(set(losses) & set(evidence.control_losses))
    if not common:
        return None
    place = f"attempt {attempt.attempt}, steps {common[0]}-{common[-1]}"
    allowed = _tolerance(evidence, attempt, last_step=common[-1])
    if allowed > SAME_LAYOUT_TOLERANCE and _has_dropout(evidence):
        pair = _mean(losses[step] for step in common), _mean(evidence.control_losses[step] for step in common)
        words = (
            f"{place}: means {pair[0]:.4f} and {pair[1]:.4f} (dropout masks differ by layout, so means are compared)"
        )
        return Promise(name="", kept=_relative(*pair) <= DROPOUT_MEAN_TOLERANCE, evidence=words)
    worst, step = max((_relative(losses[step], evidence.control_losses[step]), step) for step in common)
    words = f"{place}: {worst:.1e} (step {step}), allowed {allowed:.0e}"
    return Promise(name="", kept=worst <= allowed, evidence=words)


def _has_dropout(evidence: Trained) -> bool:
    """Whether the model draws masks in training; a family the memory model does not know may."""
    run = evidence.view.run
    if run.job.training.lora is not None and run.job.training.lora.dropout > 0:
        return True
    try:
        return model_shape(run.model_config or {}).has_dropout
    except PermanentError:
        return True


def _tolerance(evidence: Trained, attempt: Attempt, *, last_step: int) -> float:
    """What may lie between this attempt and the control run, which has the first attempt's layout."""
    history = [each.plan for each in evidence.view.attempts if each.attempt <= attempt.attempt]
    layouts = {
        (each.dp, each.tp, each.zero_stage, each.micro_batch_size, each.activation_checkpointing) for each in history
    }
    if len(layouts) <= 1:
        return SAME_LAYOUT_TOLERANCE
    crossed = len({each.zero_stage == 3 for each in history}) > 1
    precision = evidence.view.run.job.training.precision
    reordered = min(REORDERED_MOST[precision], REORDERED_PER_STEP[precision] * last_step)
    return reordered + (STAGE_BRIDGE_TOLERANCE if crossed else 0.0)


def _relative(value: float, reference: float) -> float:
    return abs(value - reference) / max(abs(reference), 1e-12)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _listed(codes: Iterable[ReasonCode | None]) -> str:
    return ", ".join(code or "no outcome" for code in codes) or "nothing"
