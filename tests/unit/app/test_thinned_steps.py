"""Which of a long run's steps are shown."""

from __future__ import annotations

from dataclasses import replace

from tests.contract import values

from frenzy.app.queries import _thinned
from frenzy.core.values.telemetry import StepPeak, fold_steps


def steps(count: int, *, validated_every: int | None = None) -> tuple[StepPeak, ...]:
    (one,) = fold_steps((values.step_record(1),))
    return tuple(
        replace(one, step=step, validation_loss=1.0 if validated_every and step % validated_every == 0 else None)
        for step in range(1, count + 1)
    )


def test_a_short_run_is_shown_whole() -> None:
    assert _thinned(steps(600)) == steps(600)


def test_a_long_run_is_thinned_and_its_validations_stay() -> None:
    found = _thinned(steps(5000, validated_every=999))
    assert (found[0].step, found[-1].step) == (1, 5000)
    assert [each.step for each in found if each.validation_loss is not None] == [999, 1998, 2997, 3996, 4995]
    assert len(found) <= 605
    assert len(_thinned(steps(5000, validated_every=1))) <= 1200
