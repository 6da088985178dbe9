"""Learning rate and data order are functions of the step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from frenzy.core.values.job import TrainingSpec
from frenzy.trainer.loop.learning_rate import batch_sequences, dropout_seed, learning_rate, total_steps


@given(seed=some.integers(0, 2**31 - 1), num_sequences=some.integers(1, 300), epoch=some.integers(0, 3))
def test_each_epoch_visits_each_sequence_once(seed: int, num_sequences: int, epoch: int) -> None:
    order = batch_sequences(seed=seed, step=epoch + 1, global_batch_size=num_sequences, num_sequences=num_sequences)
    assert sorted(order) == list(range(num_sequences))


@given(
    seed=some.integers(0, 2**31 - 1),
    num_sequences=some.integers(1, 1000),
    global_batch_size=some.integers(1, 64),
    step=some.integers(1, 50),
)
def test_batches_are_cuts_of_one_order(seed: int, num_sequences: int, global_batch_size: int, step: int) -> None:
    batch = batch_sequences(seed=seed, step=step, global_batch_size=global_batch_size, num_sequences=num_sequences)
    first = (step - 1) * global_batch_size
    singles = [
        batch_sequences(seed=seed, step=position + 1, global_batch_size=1, num_sequences=num_sequences)[0]
        for position in range(first, first + global_batch_size)
    ]
    assert batch.tolist() == singles


def test_orders_differ_between_epochs_and_seeds() -> None:
    def order(seed: int, step: int) -> list[int]:
        return list(batch_sequences(seed=seed, step=step, global_batch_size=100, num_sequences=100))

    assert order(1, 1) != order(1, 2)
    assert order(1, 1) != order(2, 1)
    assert order(1, 1) != list(range(100))


def test_order_of_a_huge_data_set_needs_no_table() -> None:
    batch = batch_sequences(seed=3, step=10**9, global_batch_size=512, num_sequences=10**12 + 7)
    assert len(np.unique(batch)) == 512
    assert batch.max() < 10**12 + 7


def test_rate_warms_up_then_decays_by_half_a_cosine() -> None:
    training = TrainingSpec(max_steps=110, learning_rate=1.0, warmup_steps=10, lr_schedule="cosine")
    rates = [learning_rate(training, step=step, total_steps=110) for step in range(1, 111)]
    assert rates[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates[10] == 1.0
    assert rates[60] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.5)))
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.001


def rates_of(training: TrainingSpec, total: int) -> list[float]:
    return [learning_rate(training, step=step, total_steps=total) for step in range(1, total + 1)]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_a_decay_ends_at_its_least_share(schedule: str) -> None:
    training = TrainingSpec(max_steps=1000, learning_rate=1.0, lr_schedule=schedule, lr_min_share=0.25)  # type: ignore[arg-type]
    rates = rates_of(training, 1000)
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0.25, abs=0.01)
    assert min(rates) >= 0.25
    assert learning_rate(training, step=2000, total_steps=1000) == 0.25


def test_a_cosine_with_a_minimum_is_half_way_in_the_middle() -> None:
    training = TrainingSpec(max_steps=100, learning_rate=2.0, lr_schedule="cosine", lr_min_share=0.5)
    assert rates_of(training, 100)[50] == pytest.approx(1.5)


def test_wsd_warms_up_stays_and_decays_linearly_in_its_last_share() -> None:
    training = TrainingSpec(
        max_steps=20, learning_rate=1.0, lr_schedule="wsd", warmup_share=0.1, lr_decay_share=0.2, lr_min_share=0.2
    )
    assert rates_of(training, 20) == pytest.approx([0.5, *[1.0] * 16, 0.8, 0.6, 0.4])


def test_wsd_with_a_long_warm_up_decays_after_it() -> None:
    training = TrainingSpec(max_steps=10, learning_rate=1.0, lr_schedule="wsd", warmup_steps=8, lr_decay_share=0.5)
    assert rates_of(training, 10)[7:] == pytest.approx([1.0, 1.0, 0.5])


@given(total=some.integers(1, 500), share=some.floats(0, 0.99))
def test_a_share_of_warm_up_is_as_many_steps(total: int, share: float) -> None:
    by_share = TrainingSpec(max_steps=total, warmup_share=share, lr_schedule="cosine")
    by_steps = TrainingSpec(max_steps=total, warmup_steps=math.ceil(share * total), lr_schedule="cosine")
    assert rates_of(by_share, total) == rates_of(by_steps, total)


def test_constant_rate_stays() -> None:
    training = TrainingSpec(max_steps=5, learning_rate=0.5)
    assert {learning_rate(training, step=step, total_steps=5) for step in range(1, 6)} == {0.5}


def test_epochs_become_steps_that_cover_the_data() -> None:
    assert total_steps(TrainingSpec(epochs=2.0, global_batch_size=8), num_sequences=33) == 9
    assert total_steps(TrainingSpec(epochs=0.01, global_batch_size=8), num_sequences=3) == 1
    assert total_steps(TrainingSpec(max_steps=7), num_sequences=3) == 7


def test_dropout_seeds_differ_by_step_sample_and_seed() -> None:
    seeds = {
        dropout_seed(seed=seed, step=step, first_sample=sample)
        for seed in range(3)
        for step in range(20)
        for sample in range(20)
    }
    assert len(seeds) == 3 * 20 * 20
    assert all(0 <= each < 2**63 for each in seeds)
