"""Cases, records and sessions of measurements: what is drawn, what is kept, when it ends."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, SpecError
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.resource_plan import MemoryPrediction
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.telemetry import StepRecord
from frenzy.evaluation.score_measured import score_measured
from frenzy.trainer.measure.case import MeasureCase, refusal_of
from frenzy.trainer.measure.case_grid import GRIDS, grid_cases
from frenzy.trainer.measure.random_cases import FAMILIES, RandomCases
from frenzy.trainer.measure.record import Measurement, Outcome, append_measurement, read_measurements, replayed
from frenzy.trainer.measure.run import Bench, measure, outcome_of, peaks_of
from frenzy.trainer.measure.session import Limits, TimeIsUp, is_settled, left_over, run_session

DATA = Path(__file__).parents[3] / "data/memory"
CASE = MeasureCase(
    config={"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 300},
    sequence_length=32,
    precision=Precision.BF16,
    dp=2,
    zero_stage=2,
    micro_batch=1,
    accumulation=1,
    checkpointing=False,
)
PREDICTED = MemoryPrediction(peak_allocated_bytes=1000, required_bytes=1100, host_bytes=0, at="loss")
RAN = Measurement(case=CASE, num_parameters=1, prediction=PREDICTED, peaks=PeakMemory(allocated_bytes=1000))


def case_number(number: int) -> MeasureCase:
    return replace(CASE, sequence_length=number)


# records


@pytest.mark.parametrize("name", ["virtual_fit", "virtual_fit_tp", "virtual_score", "virtual_experts"])
def test_files_of_earlier_releases_are_read_and_every_case_of_them_ran_on_virtual_gpus(name: str) -> None:
    file = DATA / f"{name}.jsonl"
    found = read_measurements(file)
    assert len(found) == len(file.read_text().splitlines())
    assert all(each.ran and each.kind is DeviceKind.VIRTUAL and not each.imagined_ranks for each in found)


def test_line_that_a_killed_writer_left_is_passed_over_and_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "measured.jsonl"
    append_measurement(file, RAN)
    with file.open("a") as torn:
        torn.write('{"schema_version": 1, "case": {"conf')
    assert read_measurements(file) == [RAN]
    other = replace(RAN, case=case_number(64))
    append_measurement(file, other)
    assert read_measurements(file) == [RAN, other]
    assert len(file.read_text().splitlines()) == 2


def test_last_measurement_of_a_case_counts_for_each_card(tmp_path: Path) -> None:
    file = tmp_path / "measured.jsonl"
    known = replace(RAN, needed_bytes=1050)
    elsewhere = replace(RAN, card="NVIDIA A100", kind=DeviceKind.CUDA)
    for each in (RAN, elsewhere, known):
        append_measurement(file, each)
    assert read_measurements(file) == [known, elsewhere]


def test_line_of_another_form_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "measured.jsonl"
    append_measurement(file, RAN)
    with file.open("a") as out:
        out.write('{"loss": 1.0}\n')
    with pytest.raises(ContractError, match=r"measured\.jsonl, line 2"):
        read_measurements(file)


def test_case_without_today_s_fields_is_the_same_case() -> None:
    stored = codec.encode(CASE)
    before = {key: value for key, value in stored.items() if key not in ("loss", "optimizer", "quantization")}
    assert codec.decode(MeasureCase, before).key == CASE.key


def test_replay_predicts_anew_and_leaves_what_was_measured() -> None:
    (again,) = replayed([replace(RAN, prediction=None)], default_calibration())
    assert again.prediction is not None
    assert again.measured_bytes == RAN.measured_bytes


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (RAN, True),
        (replace(RAN, peaks=PeakMemory(allocated_bytes=1101)), False),
        (replace(RAN, peaks=PeakMemory(allocated_bytes=1000, reserved_bytes=1101)), False),
        (replace(RAN, needed_bytes=1100, peaks=PeakMemory(allocated_bytes=1000, reserved_bytes=1200)), True),
        (replace(RAN, needed_bytes=1101), False),
        (replace(RAN, peaks=None, outcome=Outcome.OUT_OF_MEMORY, budget_bytes=1100), False),
        (replace(RAN, peaks=None, outcome=Outcome.OUT_OF_MEMORY, budget_bytes=1099), None),
        (replace(RAN, peaks=None, outcome=Outcome.REFUSED), None),
        (replace(RAN, peaks=None, outcome=Outcome.FAILED), None),
        (replace(RAN, prediction=None), None),
    ],
)
def test_requirement_is_held_to_what_is_known_of_the_need(record: Measurement, expected: bool | None) -> None:
    assert record.is_covered is expected


# how a case ends


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ExitCode.DONE, Outcome.RAN),
        (ExitCode.CUDA_OUT_OF_MEMORY, Outcome.OUT_OF_MEMORY),
        (ExitCode.BUDGET_EXCEEDED, Outcome.OUT_OF_MEMORY),
        (ExitCode.BAD_CONFIG_OR_DATA, Outcome.REFUSED),
        (1, Outcome.FAILED),
        (137, Outcome.FAILED),
    ],
)
def test_exit_code_says_how_a_case_ended(code: int, expected: Outcome) -> None:
    assert outcome_of(AttemptResult(exit_code=int(code), last_step=0, total_steps=3)) is expected


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (replace(CASE, zero_stage=0), "stage 0"),
        (replace(CASE, precision=Precision.FP16), "fp16"),
        (replace(CASE, offload_optimizer=True), "host"),
        (replace(CASE, config={"model_type": "bert"}), "bert"),
    ],
)
def test_what_the_trainer_does_not_run_is_recorded_with_the_reason_and_not_run(case: MeasureCase, said: str) -> None:
    found = measure(case, Bench(calibration=default_calibration(), text=Path("no-such-text")))
    assert found.outcome is Outcome.REFUSED
    assert said in found.detail
    assert found.measured_bytes is None


def test_ranks_are_imagined_only_where_gpus_are_missing() -> None:
    bench = Bench(calibration=default_calibration(), text=Path(), num_gpus=2)
    assert not bench.is_alone(CASE)
    assert bench.is_alone(replace(CASE, dp=3))
    assert bench.is_alone(replace(CASE, tp=2))


def test_peaks_are_the_highest_of_all_ranks(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path))
    folder = Path(paths.telemetry_dir(1))
    folder.mkdir(parents=True)
    for rank, (allocated, reserved, used) in enumerate([(5, 8, 11), (7, 7, 10)]):
        record = StepRecord(
            rank=rank,
            step=1,
            time_s=0.0,
            loss=0.0,
            step_time_s=1.0,
            tokens_per_s=1.0,
            peaks=PeakMemory(allocated_bytes=allocated, reserved_bytes=reserved, device_used_bytes=used),
            capacity_bytes=100,
        )
        (folder / f"{rank}.jsonl").write_text(codec.dumps(record) + "\n")
    assert peaks_of(paths) == (PeakMemory(allocated_bytes=7, reserved_bytes=8, device_used_bytes=11),)
    assert peaks_of(paths)[0].outside_bytes == 3


# sessions


class Clock:
    """A clock that a measurement moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(lengths=st.lists(st.floats(0.1, 100.0), max_size=12), end_s=st.one_of(st.none(), st.floats(0.0, 400.0)))
def test_session_starts_no_case_that_would_end_late_if_it_took_as_long_as_the_longest(
    lengths: list[float], end_s: float | None
) -> None:
    clock = Clock()
    cases = [case_number(number + 8) for number in range(len(lengths))]
    starts: list[tuple[float, float]] = []

    def measured(case: MeasureCase) -> Measurement:
        length = lengths[case.sequence_length - 8]
        starts.append((clock.now_s, max((lengths[: case.sequence_length - 8]), default=0.0)))
        clock.now_s += length
        return replace(RAN, case=case)

    found = list(run_session(cases, measured, Limits(clock_s=clock, end_s=end_s)))
    assert [each.case for each in found] == cases[: len(found)]
    if end_s is None:
        assert len(found) == len(cases)
    else:
        assert all(start + longest < end_s for start, longest in starts)


def test_case_that_is_given_up_ends_the_session_and_is_not_recorded() -> None:
    def measured(case: MeasureCase) -> Measurement:
        if case.sequence_length == 9:
            raise TimeIsUp
        return replace(RAN, case=case)

    found = list(run_session([case_number(n) for n in (8, 9, 10)], measured, Limits(clock_s=Clock())))
    assert [each.case.sequence_length for each in found] == [8]


def test_measured_cases_are_left_out_unless_their_least_memory_is_still_wanted() -> None:
    failed = replace(RAN, outcome=Outcome.OUT_OF_MEMORY, peaks=None)
    assert is_settled(RAN, bisect=False)
    assert not is_settled(RAN, bisect=True)
    assert is_settled(replace(RAN, needed_bytes=5), bisect=True)
    assert is_settled(failed, bisect=True)
    cases = [case_number(8), case_number(9), case_number(8)]
    assert left_over(cases, {case_number(9).key}) == [case_number(8)]


# what is run


def test_random_cases_are_the_same_for_a_seed_and_each_can_be_launched() -> None:
    drawn = RandomCases(families=FAMILIES, seed=3)
    cases = list(itertools.islice(drawn.draw(), 60))
    assert cases == list(itertools.islice(drawn.draw(), 60))
    assert all(refusal_of(each, DeviceKind.VIRTUAL) is None for each in cases)


def test_random_cases_meet_every_option_that_a_cpu_trains() -> None:
    cases = list(itertools.islice(RandomCases(families=FAMILIES, seed=5).draw(), 150))
    assert {each.family for each in cases} == set(FAMILIES)
    assert {each.optimizer for each in cases} == {"adamw", "adamw-8bit", "sgd"}
    assert {each.loss for each in cases} == {"torch", "fused"}
    assert {each.attention for each in cases} == {"sdpa", "eager"}
    assert {each.quantization for each in cases if each.lora_rank} == {"none", "nf4"}
    assert {each.tp for each in cases} == {1, 2}


def test_options_leave_models_and_batches_as_they_are_without() -> None:
    plain, optional = (
        list(itertools.islice(RandomCases(families=["llama"], seed=7, options=on).draw(), 20)) for on in (False, True)
    )
    assert [each.config for each in plain] == [each.config for each in optional]
    assert [each.micro_batch for each in plain] == [each.micro_batch for each in optional]
    assert all(each.lora_rank is None and each.loss == "torch" for each in plain)


@pytest.mark.parametrize("name", sorted(GRIDS))
def test_grids_hold_each_combination_once_in_an_order_of_the_seed(name: str) -> None:
    cases = grid_cases(GRIDS[name], name=name, seed=1)
    assert len({each.key for each in cases}) == len(cases)
    assert {each.zero_stage for each in cases} == {0, 1, 2, 3}
    again = grid_cases(GRIDS[name], name=name, seed=2)
    assert again != cases
    assert {each.key for each in again} == {each.key for each in cases}


def test_entries_that_a_grid_leaves_out_have_the_trainer_s_defaults() -> None:
    (case,) = grid_cases({"models": [CASE.config], "adapters": ["qlora-dq-4"]}, name="own", seed=0)
    assert (case.lora_rank, case.quantization, case.double_quantization) == (4, "nf4", True)
    assert (case.dp, case.tp, case.optimizer, case.precision) == (1, 1, "adamw", Precision.BF16)


@pytest.mark.parametrize(
    ("entry", "value", "path"),
    [
        ("models", [], "own.models"),
        ("models", [{"n_embd": 4}], "own.models[0]"),
        ("zero_stage", [1, 4], "own.zero_stage[1]"),
        ("precision", ["fp8"], "own.precision[0]"),
        ("micro_batch", [0], "own.micro_batch[0]"),
        ("checkpointing", ["yes"], "own.checkpointing[0]"),
        ("adapters", ["lora-0"], "own.adapters[0]"),
        ("adapters", ["lora"], "own.adapters[0]"),
        ("adapters", ["none-8"], "own.adapters[0]"),
        ("loss", "fused", "own.loss"),
        ("colour", ["red"], "own.colour"),
    ],
)
def test_refused_entries_of_a_grid_are_named(entry: str, value: object, path: str) -> None:
    with pytest.raises(SpecError) as refused:
        grid_cases({"models": [CASE.config], entry: value}, name="own", seed=0)
    assert [each.path for each in refused.value.violations] == [path]
    assert refused.value.violations[0].allowed


# the score


def test_score_counts_each_case_by_family_stage_and_its_options() -> None:
    high = replace(
        RAN, peaks=PeakMemory(allocated_bytes=900), case=replace(CASE, loss="fused", lora_rank=4, zero_stage=3)
    )
    unknown = replace(RAN, prediction=None, case=case_number(9))
    refused = replace(RAN, peaks=None, outcome=Outcome.REFUSED, prediction=None, case=case_number(10))
    score = score_measured([RAN, high, unknown, refused])
    assert score.outcomes == {"ran": 3, "refused": 1}
    assert (score.unpredicted, score.errors.count) == (1, 2)
    assert [(each.name, each.errors.count) for each in score.by_stage] == [("ZeRO 2", 1), ("ZeRO 3", 1)]
    assert [each.name for each in score.by_option] == ["LoRA", "fused loss", "plain"]
    assert score.errors.worst == pytest.approx(1000 / 900 - 1)
    assert (score.covered.covered, score.covered.count) == (2, 2)
    assert json.dumps(codec.encode(score))
