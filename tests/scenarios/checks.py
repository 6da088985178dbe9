"""What a run of the demo shows, each judged from the evidence alone. Pure; holds for any job and cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from tests.scenarios.evidence import Evidence, losses_by_attempt

from frenzy.cli import demo_checks
from frenzy.cli.demo_checks import Check
from frenzy.core.models.shape import model_shape
from frenzy.core.runs.ledger import Attempt
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.views import MemoryView
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.job import Precision
from frenzy.core.values.launch import AttemptResult

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


def judge(evidence: Evidence) -> tuple[Check, ...]:
    """Every check of ``frenzy demo``, and those that need more than the ledger."""
    checks: tuple[Callable[[Evidence], Check], ...] = (
        loss_fell,
        batch_launched,
        loss_equals_control,
        model_loads,
        asset_was_announced,
        evaluation_followed,
    )
    return (*demo_checks.judge(evidence.dag_state, evidence.view), *(check(evidence) for check in checks))


def loss_fell(evidence: Evidence) -> Check:
    steps = sorted(
        {step: loss for each in losses_by_attempt(evidence.memory).values() for step, loss in each.items()}.items()
    )
    if len(steps) < 2 * _WINDOW_STEPS:
        return Check(name="The loss fell", passed=False, evidence=f"only {len(steps)} steps reported a loss")
    first = _mean(loss for _, loss in steps[:_WINDOW_STEPS])
    last = _mean(loss for _, loss in steps[-_WINDOW_STEPS:])
    words = (
        f"{first:.3f} over steps {steps[0][0]}-{steps[_WINDOW_STEPS - 1][0]}, {last:.3f} over the last {_WINDOW_STEPS}"
    )
    return Check(name="The loss fell", passed=last < first, evidence=words)


def batch_launched(evidence: Evidence) -> Check:
    """As DeepSpeed was told, in each attempt."""
    wanted = evidence.view.run.job.training.global_batch_size
    found = evidence.launched_batches
    return Check(
        name="DeepSpeed trained with that batch",
        passed=bool(found) and set(found) == {wanted},
        evidence=", ".join(str(each) for each in found),
    )


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


def loss_equals_control(evidence: Trained) -> Check:
    """Every step that both made, against the tolerance of what lies between their layouts."""
    name = "The loss equals that of an uninterrupted control run"
    result = evidence.control_result
    if result is None or result.exit_code != 0:
        words = "the control run left no result" if result is None else f"the control run failed: {result.detail}"
        return Check(name=name, passed=False, evidence=words)
    parts = [_compared(evidence, each) for each in evidence.view.attempts]
    compared = [part for part in parts if part is not None]
    steps = {step for each in losses_by_attempt(evidence.memory).values() for step in each}
    missing = sorted(steps - set(evidence.control_losses))
    passed = bool(compared) and not missing and all(part.passed for part in compared)
    words = "; ".join(part.evidence for part in compared)
    return Check(
        name=name, passed=passed, evidence=words + (f"; not in the control run: {missing[:5]}" if missing else "")
    )


def model_loads(evidence: Evidence) -> Check:
    model = evidence.model
    weights = [name for name in model.files if name.endswith(".safetensors")]
    passed = model.problem is None and bool(weights) and "config.json" in model.files and model.num_parameters > 0
    words = model.problem or f"{model.family} with {model.num_parameters:,} parameters from {model.folder}"
    return Check(name="The model is safetensors and loads with from_pretrained", passed=passed, evidence=words)


def asset_was_announced(evidence: Evidence) -> Check:
    run_key = evidence.view.run.run_key
    named = [each for each in evidence.asset_events if (each.get("extra") or {}).get("run_key") == run_key]
    words = ", ".join(str(each.get("uri") or each.get("name")) for each in named)
    return Check(
        name="The model's Asset event was emitted", passed=bool(named), evidence=words or "no event of this run"
    )


def evaluation_followed(evidence: Evidence) -> Check:
    name = "The evaluation ran after the training's real end"
    if not evidence.view.run.job.evaluation.enabled:
        return Check(name="The evaluation is off in the job's specification", passed=True, evidence="nothing to check")
    found = evidence.evaluation or {}
    perplexity, sample = found.get("perplexity"), found.get("sample")
    ended_s = max((each.ended_s or math.inf for each in evidence.view.attempts), default=math.inf)
    started = [
        each.start_s
        for each in evidence.tasks
        if each.task_id.rpartition(".")[2].startswith("evaluate") and each.start_s
    ]
    passed = isinstance(perplexity, float) and math.isfinite(perplexity) and perplexity >= 1.0 and bool(sample)
    passed = passed and bool(started) and min(started) >= ended_s
    shown = (
        f"perplexity {perplexity:.2f}, sample {str(sample)[:60]!r}" if isinstance(perplexity, float) else "no result"
    )
    return Check(name=name, passed=passed, evidence=shown)


def _compared(evidence: Trained, attempt: Attempt) -> Check | None:
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
        return Check(name="", passed=_relative(*pair) <= DROPOUT_MEAN_TOLERANCE, evidence=words)
    worst, step = max((_relative(losses[step], evidence.control_losses[step]), step) for step in common)
    words = f"{place}: {worst:.1e} (step {step}), allowed {allowed:.0e}"
    return Check(name="", passed=worst <= allowed, evidence=words)


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
