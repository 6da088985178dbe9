"""What a script's runs say of its other plans: bounds from above and from below, and never more than they can."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frenzy.core.memory.measured_runs import GRADIENT_COPY, MeasuredRun, MeasuredRuns
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.resource_plan import PlanShape

VIRTUAL, CUDA = DeviceKind.VIRTUAL, DeviceKind.CUDA
PLAIN = PlanShape(gpu_type="a", num_gpus=1, tp=1, zero_stage=1, micro_batch_size=2, activation_checkpointing=False)


def known(*runs: MeasuredRun, divides: bool = False) -> MeasuredRuns:
    return MeasuredRuns(runs=runs, divides_states=divides)


def took(peak: int, shape: PlanShape = PLAIN, *, kind: DeviceKind = VIRTUAL, whole: bool = True) -> MeasuredRun:
    return MeasuredRun(kind=kind, shape=shape, peak_bytes=peak, is_whole=whole)


def ran_out(card: int, shape: PlanShape = PLAIN) -> MeasuredRun:
    return MeasuredRun(kind=VIRTUAL, shape=shape, peak_bytes=card, ran_out=True)


def peak(runs: MeasuredRuns, kind: DeviceKind = VIRTUAL, **changes: object) -> int | None:
    found = runs.learnt(kind, replace(PLAIN, **changes))  # type: ignore[arg-type]
    return None if found is None else found.peak_bytes


def test_a_plan_that_was_run_takes_the_most_that_any_of_its_runs_took() -> None:
    found = known(took(100), took(120), took(110, whole=False)).learnt(VIRTUAL, PLAIN)
    assert found is not None
    assert (found.peak_bytes, found.num_runs, found.is_own, found.is_whole) == (120, 3, True, True)


def test_a_few_steps_alone_are_no_whole_run() -> None:
    found = known(took(100, whole=False)).learnt(VIRTUAL, PLAIN)
    assert found is not None
    assert (found.is_own, found.is_whole) == (True, False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"micro_batch_size": 6}, 300),
        ({"micro_batch_size": 1}, 100),
        ({"activation_checkpointing": True}, 100),
        ({"offload_optimizer": True}, 100),
        ({"gpu_type": "b"}, 100),
        ({"num_gpus": 4}, round(100 * GRADIENT_COPY)),
        ({"tp": 2}, None),
    ],
)
def test_one_run_bounds_other_plans(changes: dict[str, object], expected: int | None) -> None:
    assert peak(known(took(100)), **changes) == expected


@pytest.mark.parametrize("name", ["activation_checkpointing", "offload_optimizer"])
def test_what_saves_memory_says_nothing_of_a_plan_without_it(name: str) -> None:
    assert peak(known(took(100, replace(PLAIN, **{name: True})))) is None  # type: ignore[arg-type]


def test_divided_states_grow_with_fewer_ranks_and_with_lower_stages_by_nobody_knows_how_much() -> None:
    runs = known(took(100, replace(PLAIN, num_gpus=4, zero_stage=2)), divides=True)
    assert peak(runs, num_gpus=2, zero_stage=2) == 200
    assert peak(runs, num_gpus=1, zero_stage=1) == 400
    assert peak(runs, num_gpus=8, zero_stage=3) == 100
    assert peak(runs, num_gpus=8, zero_stage=1) is None


def test_a_process_on_a_processor_says_nothing_of_a_real_card() -> None:
    assert peak(known(took(100)), CUDA) is None


def test_running_out_bounds_from_below_whatever_needs_as_much() -> None:
    runs = known(took(100, replace(PLAIN, micro_batch_size=1)), ran_out(500))
    assert peak(runs, micro_batch_size=2) == 505
    assert peak(runs, micro_batch_size=8) == 800
    assert peak(runs, micro_batch_size=1) == 100
    assert runs.least_bytes(VIRTUAL, replace(PLAIN, micro_batch_size=4)) == 505
    assert runs.least_bytes(VIRTUAL, replace(PLAIN, activation_checkpointing=True)) == 0


shapes = st.builds(
    PlanShape,
    gpu_type=st.sampled_from(["a", "b"]),
    num_gpus=st.sampled_from([1, 2, 4]),
    tp=st.just(1),
    zero_stage=st.sampled_from([1, 2, 3]),
    micro_batch_size=st.sampled_from([1, 2, 4]),
    activation_checkpointing=st.booleans(),
    offload_optimizer=st.booleans(),
)
some_runs = st.lists(
    st.builds(
        MeasuredRun, kind=st.just(VIRTUAL), shape=shapes, peak_bytes=st.integers(1, 10**6), ran_out=st.booleans()
    ),
    max_size=6,
)


@settings(max_examples=80, deadline=None)
@given(some_runs, shapes, st.booleans(), st.randoms())
def test_the_order_of_runs_does_not_matter_and_no_bound_is_below_what_was_seen(
    runs: list[MeasuredRun], shape: PlanShape, divides: bool, chance: object
) -> None:
    found = known(*runs, divides=divides).learnt(VIRTUAL, shape)
    assert found == known(*reversed(runs), divides=divides).learnt(VIRTUAL, shape)
    if found is not None:
        assert found.peak_bytes >= known(*runs, divides=divides).least_bytes(VIRTUAL, shape)
        assert all(found.peak_bytes >= each.peak_bytes for each in runs if each.shape == shape)
