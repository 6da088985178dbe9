"""Traces: what counts as a job, in which order, and what is said of a file that cannot be read."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frenzy.core.values.errors import SpecError
from frenzy.sim.traces import TRACES, load_trace, read_trace


def written(folder: Path, text: str, name: str = "mine.csv") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_short_philly_trace_has_160_arrivals_within_eight_hours(number: int) -> None:
    trace = load_trace(f"philly-160-{number}")
    assert (len(trace.arrivals), trace.left_out) == (160, {})
    assert 7 < trace.arrivals[-1].submit_s / 3600 < 8
    assert all(each.application and each.duration_s is None for each in trace.arrivals)


def test_the_long_philly_trace_counts_its_dates_from_the_first_and_keeps_its_virtual_clusters() -> None:
    trace = load_trace("philly-82k")
    assert (len(trace.arrivals), trace.left_out) == (82_247, {})
    assert trace.arrivals[0].submit_s == 0
    assert trace.arrivals[-1].submit_s / 86400 == pytest.approx(108.9, abs=0.1)
    assert len({each.team for each in trace.arrivals}) == 15
    assert sum(each.num_gpus * (each.duration_s or 0) for each in trace.arrivals) / 3600 == pytest.approx(
        978_078.5, 1e-5
    )


def test_pods_without_gpu_are_left_out_and_others_run_from_their_scheduling_to_their_deletion() -> None:
    trace = load_trace("openb-8152")
    assert len(trace.arrivals) + sum(trace.left_out.values()) == 8152
    assert trace.left_out == {"asks for no GPU": 1088, "no duration": 1}
    assert Counter(each.num_gpus for each in trace.arrivals)[8] == 44
    assert {"V100M16", "V100M32"} in [set(each.gpu_types) for each in trace.arrivals]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(set(TRACES) - {"philly-82k"})))
def test_arrivals_are_in_order_of_time_and_ask_for_gpus(name: str) -> None:
    arrivals = load_trace(name).arrivals
    assert [each.submit_s for each in arrivals] == sorted(each.submit_s for each in arrivals)
    assert all(each.submit_s >= 0 and each.num_gpus >= 1 for each in arrivals)


def test_columns_are_recognised_by_name_in_any_order_and_case(tmp_path: Path) -> None:
    file = written(tmp_path, "GPUs,Other,Submit_S,End_Time,Start_Time,user\n2,x,10,70,20,ann\n1,y,5,9,,bob\n")
    first, second = read_trace(file).arrivals
    assert (first.submit_s, first.duration_s, first.team) == (5, 4, "bob")
    assert (second.submit_s, second.duration_s, second.num_gpus) == (10, 50, 2)


def test_gpu_seconds_stand_in_for_a_duration(tmp_path: Path) -> None:
    (arrival,) = read_trace(written(tmp_path, "time,gpus,gpu_time\n0,4,100\n")).arrivals
    assert arrival.duration_s == 25


def test_rows_that_are_no_jobs_are_counted_by_reason(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "time,gpus,duration\n,1,5\n0,0,5\n1,1,0\n2,1,\n3,1,5\n"))
    assert [each.submit_s for each in trace.arrivals] == [3]
    assert trace.left_out == {"no time of arrival": 1, "asks for no GPU": 1, "no duration": 2}


def test_a_compressed_file_is_read_and_called_as_without_its_endings(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv.gz"
    file.write_bytes(gzip.compress(b"time,gpus\n0,1\n"))
    assert (read_trace(file).name, len(load_trace(str(file)).arrivals)) == ("mine", 1)


@pytest.mark.parametrize(
    ("text", "path", "value", "allowed"),
    [
        ("time,gpus\n0,1\nsoon,1\n", "line 3, column time", "'soon'", "a number of at least 0"),
        ("time,gpus\n0,1.5\n", "line 2, column gpus", "'1.5'", "a whole number"),
        ("time,gpus\n-1,1\n", "line 2, column time", "'-1'", "a number of at least 0"),
        ("time,gpus\n0,inf\n", "line 2, column gpus", "'inf'", "a number of at least 0"),
        ("timestamp,gpus\n2017-13-01,1\n", "line 2, column timestamp", "'2017-13-01'", "seconds, or a date"),
        ("time,gpus\n5,1\n2017-10-01 00:00:00,1\n", "line 2, column time", "'5'", "all arrivals in seconds, or all"),
        ("time,gpus\n0\n", "line 2", "1 columns", "2, as many as the header has"),
        ("time,size\n0,1\n", "line 1", "no column for gpus", "gpus, num_gpus, num_gpu, num_replicas"),
    ],
)
def test_what_cannot_be_read_is_told_by_file_line_and_column(
    tmp_path: Path, text: str, path: str, value: str, allowed: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(SpecError) as refused:
        read_trace(file)
    (violation,) = refused.value.violations
    assert violation.path == f"{file}, {path}"
    assert violation.value == value
    assert allowed in violation.allowed


def test_an_unknown_trace_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match="one of philly-160-1, .*philly-160-2"):
        load_trace("philly")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_bytes(b"time,gpus\n\xff\xfe,1\n")
    with pytest.raises(SpecError, match="readable CSV file"):
        read_trace(file)
    (tmp_path / "mine.csv.gz").write_bytes(b"not compressed")
    with pytest.raises(SpecError, match="readable CSV file"):
        read_trace(tmp_path / "mine.csv.gz")
