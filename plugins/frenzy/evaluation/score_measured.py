"""How predictions and the project's own measurements agree: errors by family and stage, and coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from frenzy.evaluation.score import Coverage, Errors
from frenzy.trainer.measure.record import Measurement, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScore:
    """The errors of one family, stage or option; ``name`` says which."""

    name: str
    errors: Errors


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredScore:
    """What a file of measurements says.

    outcomes: number of cases by how they ended. unpredicted: cases that ran and that the closed form
    does not cover. covered: cases whose requirement was enough; bisected: of them, those whose least
    memory is known.
    """

    outcomes: dict[str, int]
    unpredicted: int
    errors: Errors
    by_family: tuple[GroupScore, ...]
    by_stage: tuple[GroupScore, ...]
    by_option: tuple[GroupScore, ...]
    covered: Coverage
    bisected: Coverage


def score_measured(measurements: Sequence[Measurement]) -> MeasuredScore:
    """The score of ``measurements``, each of which counts once in each table but the one by option."""
    predicted = [each for each in measurements if each.error is not None]
    options = [(name, each) for each in predicted for name in _options(each)]
    return MeasuredScore(
        outcomes=dict(sorted(Counter(str(each.outcome) for each in measurements).items())),
        unpredicted=sum(each.prediction is None and each.outcome is Outcome.RAN for each in measurements),
        errors=_errors(predicted),
        by_family=_groups((each.case.family, each) for each in predicted),
        by_stage=_groups((f"ZeRO {each.case.zero_stage}", each) for each in predicted),
        by_option=_groups(options),
        covered=_coverage(measurements, lambda each: True),
        bisected=_coverage(measurements, lambda each: each.needed_bytes is not None),
    )


def _options(each: Measurement) -> tuple[str, ...]:
    """What the case has beside the usual; ``plain`` for nothing."""
    case = each.case
    adapters = None if case.lora_rank is None else "QLoRA" if case.quantization == "nf4" else "LoRA"
    found = (
        adapters,
        "8-bit Adam" if case.optimizer == "adamw-8bit" else None,
        "SGD" if case.optimizer == "sgd" else None,
        "fused loss" if case.loss == "fused" else None,
        "eager attention" if case.attention == "eager" else None,
        "tensor parallel" if case.tp > 1 else None,
        "offload" if case.offload_optimizer else None,
    )
    return tuple(name for name in found if name is not None) or ("plain",)


def _errors(measurements: Iterable[Measurement]) -> Errors:
    return Errors.of([each.error for each in measurements if each.error is not None])


def _groups(named: Iterable[tuple[str, Measurement]]) -> tuple[GroupScore, ...]:
    by_name: dict[str, list[Measurement]] = {}
    for name, each in named:
        by_name.setdefault(name, []).append(each)
    return tuple(GroupScore(name=name, errors=_errors(by_name[name])) for name in sorted(by_name))


def _coverage(measurements: Iterable[Measurement], counts: Callable[[Measurement], bool]) -> Coverage:
    return Coverage.of([each.is_covered for each in measurements if counts(each) and each.is_covered is not None])
