"""Published measurements: what is read, what is left out and why, how predictions are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.memory.activation_coefficients import BUSIEST_LOAD, ActivationCoefficients, TokenBytes
from frenzy.core.memory.torch_kernels import Sharding, TorchRun
from frenzy.core.models.trainable import trained_part
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import LoraSpec, Precision
from frenzy.core.values.units import GIB
from frenzy.evaluation.datasets import read_dataset, release_calibrations
from frenzy.evaluation.margin import Margin
from frenzy.evaluation.predict import predict
from frenzy.evaluation.published import Grade, Outcome, PublishedRow
from frenzy.evaluation.score import Coverage, Errors, FitCells, fit_cells, score_dataset, scored_rows
from frenzy.evaluation.settings_of_runs import shape_of
from tools.accuracy.datasets.formats import ALL_FORMATS
from tools.accuracy.page import accuracy_page
from tools.accuracy.peers import PEERS, full_run
from tools.accuracy.report import DATA as FOLDER
from tools.accuracy.report import PublishedReport, fit_margin, published_report

FMS = FOLDER / "fms_a100_80gb.csv"
SHAPE = shape_of("TinyLlama-1.1B")
COEFFICIENTS = ActivationCoefficients(
    family="llama",
    precision=Precision.BF16,
    checkpointing=True,
    attention_dropout=False,
    hidden_dropout=False,
    layer=TokenBytes(hidden=2.0),
    outside=TokenBytes(hidden=6.0),
    in_loss=(TokenBytes(vocab=4.0),),
    in_backward=(TokenBytes(hidden=60.0),),
    kind=DeviceKind.CUDA,
)


def a_run(micro_batch: int = 1, *, hooked: bool = False) -> TorchRun:
    lora = LoraSpec(rank=8) if hooked else None
    return TorchRun(
        shape=SHAPE,
        trained=trained_part(SHAPE, lora),
        coefficients=COEFFICIENTS,
        micro_batch=micro_batch,
        sequence_length=2048,
        trained_bytes=4 if hooked else 2,
        sharding=Sharding.FULL if hooked else Sharding.NONE,
        num_gpus=2 if hooked else 1,
    )


def a_row(
    number: int = 1, *, ran: bool = True, off_by: float = 0.0, capacity_gib: float = 80.0, **run: int
) -> PublishedRow:
    asked = a_run(**run)
    peak = predict(asked).peak_allocated_bytes / (1 + off_by)
    return PublishedRow(
        dataset="made up",
        number=number,
        label="a run",
        grade=Grade.A,
        framework="none",
        group="g",
        outcome=Outcome.RAN if ran else Outcome.OUT_OF_MEMORY,
        capacity_bytes=round(capacity_gib * GIB),
        run=asked,
        peak_bytes=round(peak) if ran else None,
    )


@pytest.fixture(scope="module")
def report() -> PublishedReport:
    return published_report()


# the published rows themselves


def test_grade_a_rows_are_predicted_within_the_promised_errors(report: PublishedReport) -> None:
    sets = {each.name: each.errors for each in report.memory.datasets if each.grade is Grade.A}

    assert {name: errors.count for name, errors in sets.items()} == {"fms": 40, "fms-liger": 79}
    assert all((errors.median or 1.0) <= 0.01 for errors in sets.values())
    assert all((errors.worst or 1.0) <= 0.03 for errors in sets.values())


def test_data_sets_with_rows_that_are_far_off_are_explained_beside_the_data(report: PublishedReport) -> None:
    explained = {each.dataset for each in report.explanations}
    far_off = {each.name for each in report.memory.datasets if (each.errors.worst or 0.0) > 0.05}

    assert far_off <= explained <= {each.name for each in report.memory.datasets}
    assert all(each.text and each.source for each in report.explanations)


def test_no_published_run_that_failed_was_predicted_to_fit(report: PublishedReport) -> None:
    sets = [each.fits for each in report.memory.datasets if each.name.startswith("fms")]

    assert [each.fit_and_failed for each in sets] == [0, 0]
    assert sum(each.no_fit_and_failed for each in sets) >= 30


def test_the_played_allocator_holds_what_the_driver_showed(report: PublishedReport) -> None:
    assert len(report.played) == 6
    assert all(abs(each.error) < 0.08 for each in report.played)


def test_the_margin_is_what_the_fitting_half_finds(report: PublishedReport) -> None:
    assert report.hooked_share == report.memory.margin.hooked_share


def test_the_bound_on_the_busiest_expert_holds_in_the_fitting_half(report: PublishedReport) -> None:
    assert max(report.experts.implied) <= BUSIEST_LOAD < max(report.experts.implied) + 0.25
    assert len(report.experts.implied) == 14


def test_hardly_any_published_run_that_ran_was_predicted_not_to_fit(report: PublishedReport) -> None:
    scores = [each for each in report.memory.datasets if each.name in {"fms", "llm-foundry"}]

    ran = sum(each.fits.fit_and_ran + each.fits.no_fit_and_ran for each in scores)
    assert ran >= 40 + 100
    assert sum(each.fits.no_fit_and_ran for each in scores) <= 0.02 * ran


def test_every_row_of_every_data_set_is_scored_or_left_out_by_a_written_reason(report: PublishedReport) -> None:
    assert len(report.memory.datasets) == 12
    assert all(row.run is not None or row.refusal for row in report.memory.rows)
    assert all(
        score.rows
        == score.errors.count + score.fitted.count + sum(score.refused.values()) + _unmeasured(score.name, report)
        for score in report.memory.datasets
    )


def _unmeasured(name: str, report: PublishedReport) -> int:
    rows = [each for each in report.memory.rows if each.dataset == name and each.run is not None]
    return sum(each.outcome is not Outcome.RAN or (each.peak_bytes or each.reserved_bytes) is None for each in rows)


def test_this_model_is_nearer_than_every_other_estimate_on_full_training(report: PublishedReport) -> None:
    fms = report.peers["fms"]

    assert set(PEERS) < set(fms)
    for name in PEERS:
        assert (fms[name].median or 0.0) > (fms["this model"].median or 0.0)


def test_the_page_tells_every_data_set_goal_and_reason(report: PublishedReport) -> None:
    page = accuracy_page(report, dated="2026-11-21")

    for score in report.memory.datasets:
        assert f"| {score.name} |" in page
    for bar in report.bars:
        assert bar.name in page
    assert f"Rows that DeepSpeed ran on a GPU and that are predicted: **{report.deepspeed_gpu_rows}**" in page
    for name in ("Load of experts", "Release of the santacoder rows", "Margin"):
        assert f"**{name}.**" in page


def test_a_setting_that_nobody_recorded_breaks_no_table_of_the_worst_rows(report: PublishedReport) -> None:
    page = accuracy_page(report, dated="2026-11-21")

    rows = page.split("## Worst rows")[1].split("Why, and")[0].strip().splitlines()
    assert {each.count("|") for each in rows} == {8}


# reading


def test_a_file_that_is_no_data_set_is_refused_with_the_known_columns(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("a,b\n1,2\n", encoding="utf-8")

    with pytest.raises(PermanentError, match=r"mine\.csv are those of no known data set.*fms"):
        read_dataset(file, release_calibrations())


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="is not a file"):
        read_dataset(tmp_path / "none.csv", release_calibrations())


def test_a_row_that_cannot_be_read_is_told_with_its_number(tmp_path: Path) -> None:
    lines = (FOLDER / "qwen1_finetune_profile.csv").read_text(encoding="utf-8").splitlines()
    file = tmp_path / "broken.csv"
    file.write_text("\n".join([lines[0], lines[1], lines[2].replace(",1,1,", ",one,1,")]) + "\n", encoding="utf-8")

    with pytest.raises(PermanentError, match="Row 2 of .*broken.csv"):
        read_dataset(file, release_calibrations(), ALL_FORMATS)


def test_an_unknown_model_is_left_out_and_named(tmp_path: Path) -> None:
    text = FMS.read_text(encoding="utf-8").replace("mistralai/Mistral-7B-v0.1,", "somebody/Unheard-1B,")
    file = tmp_path / "fms.csv"
    file.write_text(text, encoding="utf-8")

    rows = read_dataset(file, release_calibrations())

    assert any(row.run is None and "Unheard-1B" in row.refusal for row in rows)


def test_unseen_rows_of_a_known_data_set_are_predicted(tmp_path: Path) -> None:
    """A batch nobody published: the prediction follows the tokens."""
    lines = FMS.read_text(encoding="utf-8").splitlines()
    lora = next(line for line in lines if "Mistral-7B-v0.1,1,lora,4" in line and ",none," in line)
    file = tmp_path / "unseen.csv"
    file.write_text("\n".join([lines[0], lora, lora.replace(",1,lora,4,", ",1,lora,6,")]) + "\n", encoding="utf-8")

    seen, unseen = read_dataset(file, release_calibrations())

    assert seen.run is not None
    assert unseen.run is not None
    assert predict(unseen.run).peak_allocated_bytes > 1.15 * predict(seen.run).peak_allocated_bytes


# judging


def test_errors_are_relative_and_the_signed_one_keeps_its_sign() -> None:
    found = Errors.of([-0.02, -0.01, 0.05])

    assert (found.count, found.median, found.worst, found.signed) == (3, 0.02, 0.05, -0.01)


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_the_interval_of_a_coverage_contains_its_share(outcomes: Sequence[bool]) -> None:
    found = Coverage.of(outcomes)

    assert found.low is not None
    assert found.high is not None
    assert found.low <= (found.share or 0.0) <= found.high


def test_nothing_is_covered_where_nothing_was_measured() -> None:
    assert Coverage.of([]).share is None


def test_the_four_cells_count_what_was_predicted_and_what_happened() -> None:
    rows = [a_row(1), a_row(2, capacity_gib=1.0), a_row(3, ran=False), a_row(4, ran=False, capacity_gib=1.0)]

    found = fit_cells(scored_rows(rows, Margin()))

    assert found == FitCells(fit_and_failed=1, fit_and_ran=1, no_fit_and_ran=1, no_fit_and_failed=1)


def test_a_run_that_failed_has_no_error_to_count() -> None:
    score = score_dataset([a_row(1, off_by=0.5), replace(a_row(2, ran=False), reserved_bytes=80 * GIB)], Margin())

    assert score.errors.count == 1
    assert score.errors.worst == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("reserved", "error"),
    [(0.5, 1.0), (1.0, 0.0), (1.1, 0.0), (2.0, -0.425)],
    ids=["below the peak", "the peak", "within the range", "beyond it"],
)
def test_what_was_reserved_is_compared_with_a_range_of_15_percent_at_most(reserved: float, error: float) -> None:
    row = a_row(1)
    assert row.run is not None
    peak = predict(row.run).peak_allocated_bytes
    only_reserved = replace(row, peak_bytes=None, reserved_bytes=round(peak * reserved))
    wide = Margin(peak_share=0.5)

    (found,) = scored_rows([only_reserved], wide)

    assert found.error == pytest.approx(error, abs=1e-3)
    assert found.error_of_peak == pytest.approx(1 / reserved - 1, abs=1e-3)


def test_the_margin_grows_until_every_fitted_failure_is_refused() -> None:
    hooked = a_row(2, ran=False, micro_batch=8, hooked=True)  # type: ignore[arg-type]
    assert hooked.run is not None
    tight = replace(hooked, capacity_bytes=Margin(hooked_share=0.2).required_bytes(hooked.run, predict(hooked.run)))

    found = fit_margin([tight], Margin())

    assert found.hooked_share == pytest.approx(0.25)
    assert fit_margin([replace(tight, number=3)], Margin()).hooked_share == 0.0


def test_adapters_are_nothing_that_the_other_estimates_know() -> None:
    assert full_run(a_run(hooked=True)) is None
    assert full_run(a_run()) is not None
