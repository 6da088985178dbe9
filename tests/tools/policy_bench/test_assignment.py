"""The integer program, against every assignment tried one by one."""

from __future__ import annotations

import ctypes
import random
from itertools import product

import pytest

from tools.policy_bench.assignment import Choice, least_cost
from tools.policy_bench.quiet import c_stdout_silenced

NUM_GPUS = {"big": 3, "low": 4}


def random_jobs(seed: int) -> list[list[Choice]]:
    rng = random.Random(seed)
    return [
        [
            Choice(rng.choice(("big", "low")), rng.choice((1, 2, 4)), rng.uniform(-2, 0.5))
            for _ in range(rng.randint(0, 4))
        ]
        for _ in range(4)
    ]


def cost(jobs: list[list[Choice]], chosen: tuple[int | None, ...]) -> float | None:
    """Of one assignment; None if it takes more GPUs than there are."""
    taken = [choices[at] for choices, at in zip(jobs, chosen, strict=True) if at is not None]
    for gpu_type, available in NUM_GPUS.items():
        if sum(each.num_gpus for each in taken if each.gpu_type == gpu_type) > available:
            return None
    return sum(each.cost for each in taken)


@pytest.mark.parametrize("seed", range(30))
def test_no_other_assignment_costs_less(seed: int) -> None:
    jobs = random_jobs(seed)
    every = product(*([None, *range(len(choices))] for choices in jobs))
    least = min(each for each in (cost(jobs, chosen) for chosen in every) if each is not None)
    assert cost(jobs, tuple(least_cost(jobs, NUM_GPUS, relative_gap=0.0))) == pytest.approx(least)


def test_a_choice_that_costs_more_than_nothing_or_does_not_exist_is_not_taken() -> None:
    assert least_cost([[Choice("big", 1, 0.2)], [Choice("gone", 1, -1.0)], []], NUM_GPUS) == [None, None, None]


def test_what_c_code_prints_stays_off_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with c_stdout_silenced():
        ctypes.CDLL(None).puts(b"a stray line")
    print("the command's own", flush=True)
    assert capfd.readouterr().out == "the command's own\n"
