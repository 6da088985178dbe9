"""Which layouts a run may move between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.lifecycle.resume import ParallelLayout, can_resume
from frenzy.core.values import codec
from frenzy.core.values.errors import ReasonCode


@st.composite
def runnable_layouts(draw: st.DrawFn) -> ParallelLayout:
    tp = draw(st.integers(1, 8))
    return ParallelLayout(tp * draw(st.integers(1, 64)), draw(st.integers(1, 3)), tp)


@given(runnable_layouts(), runnable_layouts())
def test_any_layout_the_trainer_runs_resumes_on_any_other(source: ParallelLayout, target: ParallelLayout) -> None:
    assert can_resume(source, target) is None


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (ParallelLayout(1, 0), ParallelLayout(1, 1), "The checkpoint uses ZeRO stage 0"),
        (ParallelLayout(1, 1), ParallelLayout(1, 0), "The plan uses ZeRO stage 0"),
        (ParallelLayout(1, 1), ParallelLayout(3, 1, 2), "3 workers, which tensor parallel 2 does not divide"),
    ],
)
def test_a_refusal_says_which_side_and_what_would_do(
    source: ParallelLayout, target: ParallelLayout, words: str
) -> None:
    reason = can_resume(source, target)
    assert reason is not None
    assert reason.code is ReasonCode.PREDICTED_NOT_LAUNCHABLE
    assert words in reason.sentence
    assert reason.remedy


@given(runnable_layouts())
def test_a_layout_survives_its_json(layout: ParallelLayout) -> None:
    assert codec.loads(ParallelLayout, codec.dumps(layout)) == layout


def test_data_parallel_ranks_are_what_tensor_parallel_leaves() -> None:
    assert ParallelLayout(8, 2, 2).dp == 4
