"""The peaks of every account are one value, and the documents that hold them are as they always were."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import TypeAdapter
from tests.contract import values

from frenzy.core.runs.ledger import Attempt, CalibrationSample
from frenzy.core.runs.protocol import ProgressReport
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.telemetry import StepPeak, StepRecord
from frenzy.core.values.units import MIB
from frenzy.trainer.measure.record import Measurement

KINDS: Final = (Attempt, CalibrationSample, Measurement, ProgressReport, StepPeak, StepRecord)
# As release 0.1 wrote them, when each kind held the peaks in fields of its own.
STORED: Final = [
    (next(kind for kind in KINDS if kind.__name__ == line["kind"]), line["document"])
    for line in map(
        json.loads, (Path(__file__).parents[3] / "data/documents_with_peaks.jsonl").read_text().splitlines()
    )
]
PEAKS: Final = PeakMemory(allocated_bytes=300 * MIB, reserved_bytes=320 * MIB, device_used_bytes=330 * MIB)


@pytest.mark.parametrize(("kind", "document"), STORED)
def test_what_is_stored_is_read_and_written_back_alike(kind: type[Any], document: dict[str, Any]) -> None:
    value = codec.loads(kind, json.dumps(document))
    again = json.loads(codec.dumps(value))
    whole = document if kind is not Measurement else again  # its case has learned new fields since
    assert whole.items() <= again.items()
    assert {name for name in again if name not in document and again[name]} <= {"kind", "card", "outcome", "versions"}
    assert codec.loads(kind, codec.dumps(value)) == value


def test_what_a_ledger_compares_word_for_word_has_not_changed() -> None:
    stored = [json.dumps(document) for kind, document in STORED if kind is Attempt]
    assert [codec.dumps(codec.loads(Attempt, each)) for each in stored] == stored


@pytest.mark.parametrize(("kind", "document"), STORED)
def test_stored_peaks_are_one_value(kind: type[Any], document: dict[str, Any]) -> None:
    found = codec.decode(kind, document).peaks
    if found is None:
        assert all(
            document.get(key) is None for key in ("measured_peak_bytes", "reserved_bytes", "reserved_peak_bytes")
        )
    elif kind is Measurement:
        assert found == PeakMemory(allocated_bytes=document["measured_bytes"])
    else:
        assert found == (replace(PEAKS, allocated_bytes=0) if kind is CalibrationSample else PEAKS)


def test_peaks_of_several_are_the_highest_of_each() -> None:
    higher = PeakMemory(allocated_bytes=1, reserved_bytes=2, device_used_bytes=340 * MIB)
    assert PEAKS | higher == replace(PEAKS, device_used_bytes=340 * MIB) == higher | PEAKS
    assert (PEAKS.held_bytes, PEAKS.outside_bytes, (PeakMemory() | PEAKS).outside_bytes) == (
        320 * MIB,
        10 * MIB,
        10 * MIB,
    )


def test_a_document_that_lacks_a_peak_or_nests_them_is_refused() -> None:
    document = codec.encode(values.step_record(1))
    for name in ("allocated_peak_bytes", "reserved_peak_bytes", "device_used_bytes"):
        with pytest.raises(ContractError, match=f"lacks the key '{name}'"):
            codec.decode(StepRecord, {key: item for key, item in document.items() if key != name})
    with pytest.raises(ContractError, match="unknown key 'peaks'"):
        codec.decode(StepRecord, document | {"peaks": codec.encode(PEAKS)})
    with pytest.raises(ContractError, match="not a int"):
        codec.decode(StepRecord, document | {"reserved_peak_bytes": None})


def test_a_report_may_leave_peaks_out_and_is_described_as_it_is_written() -> None:
    assert codec.decode(ProgressReport, {"last_step": 1}).peaks is None
    assert codec.decode(ProgressReport, {"last_step": 1, "measured_peak_bytes": 5}).peaks == PeakMemory(
        allocated_bytes=5
    )
    adapter: TypeAdapter[Any] = TypeAdapter(ProgressReport)
    described = adapter.json_schema()["properties"]
    assert list(described) == list(codec.encode(ProgressReport(last_step=1, releases={"torch": "2.13.0"})))
    assert described["measured_peak_bytes"]["anyOf"][0] == {"maximum": 2**60, "minimum": 0, "type": "integer"}
    with pytest.raises(ValueError, match="measured_peak_bytes"):
        adapter.validate_python({"last_step": 1, "measured_peak_bytes": -1})
