"""What follows from validation losses, one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frenzy.core.values import codec
from frenzy.core.values.job import ValidationSpec
from frenzy.trainer.best_so_far import BestSoFar, is_due

ASKED = ValidationSpec(every_steps=10, patience=2)


def after(*losses: float, asked: ValidationSpec = ASKED) -> BestSoFar:
    best = BestSoFar()
    for number, loss in enumerate(losses, start=1):
        best = best.after(asked, step=10 * number, loss=loss)
    return best


def test_the_lowest_loss_is_kept_with_its_step() -> None:
    assert after(3.0, 2.0, 2.5) == BestSoFar(loss=2.0, step=20, num_since=1)
    assert after(3.0, 2.0, 2.5, 1.0) == BestSoFar(loss=1.0, step=40)


def test_an_equal_loss_and_one_lower_by_too_little_are_no_improvement() -> None:
    assert after(2.0, 2.0).num_since == 1
    assert after(2.0, 1.95, asked=replace(ASKED, min_improvement=0.1)).num_since == 1


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_never_the_lowest(loss: float) -> None:
    assert after(loss) == BestSoFar(num_since=1)
    assert after(2.0, loss) == BestSoFar(loss=2.0, step=10, num_since=1)


def test_the_training_ends_when_patience_does_and_never_without_one() -> None:
    assert not after(2.0, 3.0).ends_training(ASKED)
    assert after(2.0, 3.0, 3.0).ends_training(ASKED)
    assert not after(2.0, *[3.0] * 50).ends_training(ValidationSpec(every_steps=10))


def test_an_early_end_has_a_reason_with_and_without_a_finite_loss() -> None:
    found = after(2.0, 3.0, 3.0).why_no_further()
    assert found == "the validation loss was 2.0000 after step 10 and lower in none of 2 validations since."
    nan = float("nan")
    assert after(nan, nan).why_no_further() == "none of 2 validations gave a finite loss."


def test_validations_follow_every_so_many_steps_and_the_last() -> None:
    assert [step for step in range(1, 26) if is_due(ASKED, step=step, total_steps=25)] == [10, 20, 25]
    assert not is_due(ValidationSpec(), step=25, total_steps=25)


def test_a_validation_is_owed_only_while_the_job_asks_for_one() -> None:
    owing = replace(after(3.0), is_owed=True)
    assert owing.owes(ASKED)
    assert not owing.owes(ValidationSpec())
    assert not after(3.0).owes(ASKED)


def test_a_validation_that_is_owed_is_paid_once() -> None:
    owing = replace(after(3.0), is_owed=True)
    for loss in (2.0, 4.0):
        assert not owing.after(ASKED, step=20, loss=loss).is_owed


def test_it_goes_through_a_checkpoint_unchanged() -> None:
    for best in (BestSoFar(), after(3.0, 2.0, 2.5), BestSoFar(is_owed=True)):
        assert codec.loads(BestSoFar, codec.dumps(best)) == best
