"""The time model against published speeds: honest split, values that a refit confirms, errors, ranking."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from frenzy.core.values import utilisation as held
from tools.accuracy import software
from tools.accuracy.throughput import DatasetSpeed, predicted_step_s, score_throughput
from tools.accuracy.throughput_fit import fitted_values
from tools.accuracy.throughput_rows import PublishedRun, all_runs, published_runs

DATA = Path(__file__).parents[2] / "data" / "memory"


@pytest.fixture(scope="module")
def runs() -> tuple[PublishedRun, ...]:
    return tuple(all_runs(published_runs(DATA)))


@pytest.fixture(scope="module")
def speeds() -> dict[str, DatasetSpeed]:
    return {each.dataset: each for each in score_throughput(DATA).datasets}


def test_every_row_is_a_run_or_left_out_for_a_reason() -> None:
    for each in published_runs(DATA):
        with next(DATA.rglob(f"{each.dataset}.csv")).open(encoding="utf-8") as file:
            num_rows = sum(1 for line in file if line.strip()) - 1
        assert len(each.runs) + sum(number for _, number in each.left_out) == num_rows


def test_copies_of_a_row_fall_on_one_side_and_both_sides_are_large(runs: tuple[PublishedRun, ...]) -> None:
    sides: dict[str, set[bool]] = {}
    for run in runs:
        sides.setdefault(run.identity, set()).add(run.is_fitted)
    assert all(len(each) == 1 for each in sides.values())
    share = sum(run.is_fitted for run in runs) / len(runs)
    assert 0.4 < share < 0.6


def test_a_refit_to_the_fitted_part_confirms_the_values_that_are_held(runs: tuple[PublishedRun, ...]) -> None:
    values = fitted_values([run for run in runs if run.is_fitted])
    owners = (*held.ARCHITECTURES, *_SOFTWARE)
    kept = {
        "repeated_launches": held.REPEATED_LAUNCHES,
    }
    kept |= {f"{each} {owner.name}": getattr(owner, each) for owner in owners for each in owner.__dataclass_fields__}
    for name, value in values.items():
        assert kept[name] == pytest.approx(value, rel=0.01, abs=0.005), name


_SOFTWARE = (
    software.FSDP,
    software.NANOTRON,
    software.TRANSFORMERS,
    software.FUSED,
    software.DEEPSPEED,
    held.TRAINER,
)


@pytest.mark.parametrize(
    ("dataset", "most"),
    [
        ("llmfoundry_mpt_fits_configs", 0.04),
        ("nanotron_ultrascale_5d_bench", 0.08),
        ("fms_a100_80gb", 0.10),
        ("fms_a100_80gb_liger", 0.10),
        ("training_speed", 0.10),
        ("trainer_h100", 0.10),
    ],
)
def test_the_scored_half_is_predicted_about_as_well_as_the_fitted_one(
    speeds: dict[str, DatasetSpeed], dataset: str, most: float
) -> None:
    scored = speeds[dataset].scored
    assert scored is not None
    assert scored.median < most
    assert scored.p90 < 0.25


def test_the_first_choice_mostly_ran_within_five_percent_of_the_best(speeds: dict[str, DatasetSpeed]) -> None:
    ranking = speeds["nanotron_ultrascale_5d_bench"].ranking
    assert ranking is not None
    assert ranking.num_questions >= 10
    assert ranking.median_regret < 0.05 < ranking.chance_regret
    all_rankings = [each.ranking for each in speeds.values() if each.ranking]
    assert sum(each.num_near for each in all_rankings) >= 0.9 * sum(each.num_questions for each in all_rankings)


def test_the_first_choice_of_our_own_plans_is_the_best_measured(runs: tuple[PublishedRun, ...]) -> None:
    own = [run for run in runs if run.software is held.TRAINER and not run.work.num_packed]
    predicted = {run: float(step_s) for run, step_s in zip(own, predicted_step_s(own), strict=True)}
    by_question = {run.question: [each for each in own if each.question == run.question] for run in own}
    for group in by_question.values():
        assert min(group, key=predicted.__getitem__).step_s == min(run.step_s for run in group)


def test_rows_of_our_own_trainer_are_the_steps_that_the_proof_measured() -> None:
    lines = [json.loads(line) for line in (DATA.parent / "gpu" / "h100.jsonl").read_text("utf-8").splitlines()]
    measured = [
        line["value"] for line in lines if line["name"] == "step" and line["part"] in {"plans", "long sequence"}
    ]
    with (DATA / "speed" / "trainer_h100.csv").open(encoding="utf-8") as file:
        assert sorted(float(row["speed"]) for row in csv.DictReader(file)) == sorted(measured)


def test_a_missing_table_is_left_out(tmp_path: Path) -> None:
    assert score_throughput(tmp_path).datasets == ()
