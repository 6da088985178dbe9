"""Learning from runs: what shifts a prediction, what raises its bound, and what does neither."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.memory.residuals import COVERAGE, NOTHING_LEARNED, Correction, Residual, ResidualGroup, Residuals
from frenzy.core.planning.grid import grid_of
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.units import GIB, MIB

GROUP = ResidualGroup(kind=DeviceKind.CUDA, family="llama", gpu_type="a100-80", zero_stage=2, checkpointing=False)
SIBLING = replace(GROUP, checkpointing=True)
OTHER_FAMILY = replace(GROUP, family="gpt2")


def ran(ratio: float, group: ResidualGroup = GROUP, predicted: int = 10 * GIB) -> Residual:
    return Residual(group=group, predicted_bytes=predicted, measured_bytes=round(predicted * ratio))


def out_of_memory(card: float, group: ResidualGroup = GROUP, predicted: int = 10 * GIB) -> Residual:
    return replace(ran(card, group, predicted), censored=True)


def correction(*residuals: Residual, group: ResidualGroup = GROUP) -> Correction:
    return Residuals(residuals).correction(group)


def test_nothing_learned_changes_nothing() -> None:
    assert NOTHING_LEARNED.correction(GROUP) == Correction()


def test_unbiased_runs_leave_the_prediction_as_it_is() -> None:
    learned = correction(*(ran(ratio) for ratio in (0.99, 1.0, 1.01, 0.98, 1.02)))
    assert learned.expected == pytest.approx(1.0, abs=0.001)
    assert learned.bound <= 1.05


def test_five_runs_that_use_7_percent_more_shift_it_by_about_as_much() -> None:
    learned = correction(*(ran(ratio) for ratio in (1.07, 1.071, 1.069, 1.07, 1.07)))
    assert learned.expected == pytest.approx(1.07, abs=0.01)


def test_small_virtual_jobs_do_not_mislead_large_ones() -> None:
    virtual = replace(GROUP, kind=DeviceKind.VIRTUAL)
    within_resolution = [ran(ratio, virtual, predicted=8 * MIB) for ratio in (0.76, 0.8, 1.2, 0.78, 0.79)]
    assert correction(*within_resolution, group=virtual).expected == 1.0
    large = [ran(1.07, virtual, predicted=GIB) for _ in range(5)]
    assert correction(*large, group=virtual).expected == pytest.approx(1.07, abs=0.01)


def test_one_run_alone_shifts_nothing() -> None:
    assert correction(ran(1.3)).expected == 1.0


@pytest.mark.parametrize("num_good", [1, 4, 5, 17, 60])
def test_one_outlier_among_good_runs_shifts_nothing(num_good: int) -> None:
    learned = correction(*(ran(1.0) for _ in range(num_good)), ran(1.6))
    assert learned.expected == pytest.approx(1.0, abs=0.001)
    assert learned.bound <= 1.05


def test_a_group_differs_from_its_parent_when_its_own_runs_say_so() -> None:
    residuals = [ran(1.0, SIBLING) for _ in range(40)] + [ran(1.1) for _ in range(5)]
    assert correction(*residuals).expected == pytest.approx(1.1, abs=0.015)
    assert correction(*residuals, group=SIBLING).expected == pytest.approx(1.0, abs=0.001)


def test_a_group_without_runs_takes_its_parents() -> None:
    residuals = [ran(1.1) for _ in range(6)]
    known = correction(*residuals).expected
    assert correction(*residuals, group=SIBLING).expected == known
    assert correction(*residuals, group=replace(GROUP, gpu_type="h100")).expected == known


def test_virtual_gpus_teach_nothing_about_real_ones() -> None:
    residuals = [ran(1.2, replace(GROUP, kind=DeviceKind.VIRTUAL)) for _ in range(8)]
    assert correction(*residuals) == Correction()


@given(card=st.floats(1.02, 3.0), ratios=st.lists(st.floats(0.9, 1.05), max_size=17))
def test_an_out_of_memory_raises_the_bound_above_the_card(card: float, ratios: list[float]) -> None:
    learned = correction(*(ran(each) for each in ratios), out_of_memory(card))
    assert learned.bound * 10 * GIB > round(card * 10 * GIB)
    assert learned.coverage is None


def test_an_out_of_memory_is_kept_to_its_own_group() -> None:
    residuals = (out_of_memory(2.0), *(ran(1.0, SIBLING) for _ in range(5)))
    for group in (SIBLING, OTHER_FAMILY):
        assert correction(*residuals, group=group).bound <= 1.05


def test_an_out_of_memory_fades_once_many_other_runs_fitted() -> None:
    residuals = [ran(1.0 + index / 1000) for index in range(60)]
    learned = correction(*residuals, out_of_memory(1.5))
    assert learned.bound < 1.1
    assert learned.coverage is not None and learned.coverage >= COVERAGE


@given(seed=st.integers(0, 10_000))
def test_the_bound_covers_the_next_run_as_often_as_it_says(seed: int) -> None:
    """Of 40 exchangeable runs at most two lie above the bound that the others set."""
    ratios = [1 + ((seed * 7919 + index * 104729) % 1000) / 10_000 for index in range(40)]
    above = 0
    for index, ratio in enumerate(ratios):
        learned = correction(*(ran(each) for each in (*ratios[:index], *ratios[index + 1 :])))
        assert learned.coverage is not None
        above += ratio > learned.bound + 1e-6
    assert above <= 40 * (1 - COVERAGE) + 1e-9


@given(
    st.lists(
        st.tuples(st.floats(0.5, 2.0), st.booleans(), st.sampled_from([GROUP, SIBLING, OTHER_FAMILY])), max_size=30
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_runs_does_not_matter(rows: list[tuple[float, bool, ResidualGroup]], random: Random) -> None:
    residuals = [replace(ran(ratio, group), censored=censored) for ratio, censored, group in rows]
    shuffled = random.sample(residuals, len(residuals))
    for group in (GROUP, SIBLING, OTHER_FAMILY):
        assert correction(*residuals, group=group) == correction(*shuffled, group=group)


def test_plans_of_a_grid_get_the_factors_of_their_group() -> None:
    grid = grid_of([(2, 1, 2, 1, 1, False), (2, 1, 2, 1, 1, True), (2, 1, 2, 1, 1, False)])
    learned = Residuals((*(ran(1.1) for _ in range(5)), *(ran(1.0, SIBLING) for _ in range(40))))
    factors = learned.factors(DeviceKind.CUDA, "llama", "a100-80", grid)
    assert factors is not None
    expected, bound = factors
    assert expected.tolist() == [learned.correction(each).expected for each in (GROUP, SIBLING, GROUP)]
    assert bound.tolist() == [learned.correction(each).bound for each in (GROUP, SIBLING, GROUP)]


def test_there_are_no_factors_where_no_run_of_the_kind_is_known() -> None:
    grid = grid_of([(2, 1, 2, 1, 1, False)])
    assert Residuals((ran(1.1),)).factors(DeviceKind.VIRTUAL, "llama", "a100-80", grid) is None


def took(ratio: float, group: ResidualGroup = GROUP) -> Residual:
    return replace(ran(1.0, group), step_ratio=ratio)


def pace(*residuals: Residual, group: ResidualGroup = GROUP) -> float:
    return Residuals(residuals).pace(group.kind, group.family, group.gpu_type)


def test_runs_that_took_longer_slow_their_family_on_their_type_and_no_other() -> None:
    slow = [took(ratio) for ratio in (1.3, 1.31, 1.29, 1.3, 1.3)]
    assert pace(*slow) == pytest.approx(1.3, abs=0.04)
    assert pace(*slow, group=SIBLING) == pace(*slow)
    assert pace(*slow, group=replace(GROUP, gpu_type="h100")) == 1.0
    assert pace(*slow, group=replace(GROUP, kind=DeviceKind.VIRTUAL)) == 1.0


def test_another_family_on_the_type_begins_where_the_type_stands() -> None:
    slow = [took(ratio) for ratio in (1.3, 1.31, 1.29, 1.3, 1.3)]
    assert pace(*slow, group=OTHER_FAMILY) == pytest.approx(1.3, abs=0.04)
    quick = [took(0.9, OTHER_FAMILY) for _ in range(5)]
    assert pace(*slow, *quick, group=OTHER_FAMILY) < 1.0 < pace(*slow, *quick)


def test_one_run_s_steps_and_runs_without_steps_move_no_pace() -> None:
    assert pace(took(2.0)) == 1.0
    assert pace(*(ran(1.1) for _ in range(5))) == 1.0


@given(st.lists(st.floats(0.2, 5.0), max_size=12), st.randoms(use_true_random=False))
def test_the_pace_lies_among_the_runs_whatever_their_order(ratios: list[float], random: Random) -> None:
    runs = [took(ratio) for ratio in ratios]
    found = pace(*runs)
    assert min([1.0, *ratios]) - 1e-9 <= found <= max([1.0, *ratios]) + 1e-9
    random.shuffle(runs)
    assert pace(*runs) == found
