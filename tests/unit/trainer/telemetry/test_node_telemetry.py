"""What a node's launcher writes of its ranks' steps, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from tests.contract import values

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.telemetry import StepRecord, thinned
from frenzy.ports import TelemetryCursor, telemetry_records
from frenzy.trainer.telemetry.writer import NodeTelemetry, RecordPipe

KEY = "0123456789ab"


class AtOnce(Executor):
    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given, **named))
        return done


class Node:
    """A node on a clock of its own, whose ranks do a step at the same time."""

    def __init__(self, root: str, *, most_in_a_chunk: int = 16_000) -> None:
        self.store, self.now_s, self.step = FsspecRunStore(root), 0.0, 0
        paths = RunPaths(self.store.run_dir(KEY))
        self.telemetry = NodeTelemetry(paths, 1, 0, lambda: self.now_s, AtOnce(), most_in_a_chunk)

    def steps(self, count: int, *, step_s: float, peak_of: Callable[[int], int] = lambda _: 1) -> None:
        for _ in range(count):
            self.step += 1
            self.now_s += step_s
            for rank in (0, 1):
                self.telemetry.add(record(self.step, rank, peak_of(self.step)))
            self.telemetry.turn()

    def read(self) -> list[StepRecord]:
        return list(telemetry_records(self.store, KEY, 1))


def record(step: int, rank: int = 0, peak_bytes: int = 1) -> StepRecord:
    peaks = PeakMemory(allocated_bytes=peak_bytes, reserved_bytes=peak_bytes, device_used_bytes=peak_bytes)
    return replace(values.step_record(step, rank=rank), peaks=peaks)


class CountedPuts(MemoryFileSystem):
    protocol = "puts"
    puts: Counter[str] = Counter()
    is_away = False
    num_refused = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("puts://")))

    def pipe_file(self, path: str, value: bytes, **options: Any) -> Any:
        if CountedPuts.is_away:
            CountedPuts.num_refused += 1
            raise OSError("away")
        self.puts[path.rpartition("telemetry/")[2]] += 1
        return super().pipe_file(path, value, **options)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    import fsspec

    fsspec.register_implementation(CountedPuts.protocol, CountedPuts, clobber=True)
    CountedPuts.puts.clear()
    CountedPuts.is_away, CountedPuts.num_refused = False, 0
    return Node(f"puts://{tmp_path.name}/runs")


def test_a_store_gets_one_new_object_a_minute_and_another_every_two_seconds_at_most(node: Node) -> None:
    node.steps(1_000, step_s=0.6)
    node.telemetry.close()
    latest = CountedPuts.puts.pop("latest/00000.jsonl")
    assert latest <= 600 / 2 + 1
    assert len(CountedPuts.puts) <= 600 / 60
    assert set(CountedPuts.puts.values()) == {1}, "nothing is written twice"


def test_nothing_is_written_while_no_step_is_done(node: Node) -> None:
    node.steps(1, step_s=5.0)
    before = CountedPuts.puts.copy()
    for _ in range(10):
        node.now_s += 10.0
        node.telemetry.turn()
    assert CountedPuts.puts == before


@pytest.mark.parametrize("step_s", [0.01, 0.3, 2.0, 45.0])
def test_all_steps_of_all_ranks_are_there_in_the_end(node: Node, step_s: float) -> None:
    node.steps(500, step_s=step_s)
    node.telemetry.close()
    assert [(each.rank, each.step) for each in node.read()] == [
        (rank, 1 + step) for rank in (0, 1) for step in range(500)
    ]


def test_who_looks_as_often_as_it_is_written_sees_every_step_once(node: Node) -> None:
    cursor, seen = TelemetryCursor.start(1), []
    for _ in range(100):
        node.steps(10, step_s=0.2)
        page = node.store.telemetry(KEY, 1, cursor)
        cursor = page.cursor
        seen += [each.step for each in page.records if each.rank == 1]
    assert seen == list(range(1, len(seen) + 1))
    assert node.step - len(seen) < 10


def test_who_comes_late_misses_no_peak_though_a_launcher_was_killed(node: Node) -> None:
    node.steps(1_150, step_s=0.1, peak_of=lambda step: 1_000 if step == 1_003 else 1)
    found = node.read()
    assert max(each.peaks.allocated_bytes for each in found) == 1_000
    assert found[-1].step >= node.step - 20
    assert {each.step for each in found if each.rank == 0} == {each.step for each in found if each.rank == 1}


def test_a_rank_that_died_hides_no_other(node: Node) -> None:
    node.steps(5, step_s=3.0)
    for step in range(6, 100):
        node.now_s += 3.0
        node.telemetry.add(record(step, 1))
        node.telemetry.turn()
    assert [each.step for each in node.read() if each.rank == 1] == list(range(1, 100))
    page = node.store.telemetry(KEY, 1, TelemetryCursor.start(1))
    node.telemetry.add(record(100, 1))
    node.now_s += 3.0
    node.telemetry.turn()
    assert [each.step for each in node.store.telemetry(KEY, 1, page.cursor).records] == [100]


def test_history_waits_while_the_store_is_away(node: Node) -> None:
    node.steps(50, step_s=2.0)
    CountedPuts.is_away = True
    node.steps(100, step_s=2.0)
    CountedPuts.is_away = False
    node.steps(50, step_s=2.0)
    node.telemetry.close()
    assert [each.step for each in node.read() if each.rank == 0] == list(range(1, 201))


def test_what_a_store_did_not_take_is_put_again_without_another_step(node: Node) -> None:
    CountedPuts.is_away = True
    node.steps(1, step_s=5.0)
    for _ in range(100):
        node.now_s += 1.0
        node.telemetry.turn()
    assert 3 <= CountedPuts.num_refused <= 8, "at growing intervals"
    CountedPuts.is_away = False
    node.now_s += 60.0
    node.telemetry.turn()
    assert [each.step for each in node.read()] == [1, 1]
    node.now_s += 60.0
    node.telemetry.turn()
    assert CountedPuts.puts["latest/00000.jsonl"] == 1


def test_the_newest_records_stay_few_however_quick_the_steps_are(tmp_path: Path) -> None:
    node = Node(str(tmp_path / "runs"))
    place, most = tmp_path / "runs" / KEY / "attempt-1/telemetry/latest/00000.jsonl", 0
    for _ in range(25):
        node.steps(223, step_s=0.01, peak_of=lambda step: 1_000 if step == 1_003 else 1)
        most = max(most, len(place.read_text().splitlines()))
    assert most <= 2 * 128
    assert max(each.peaks.allocated_bytes for each in node.read()) == 1_000


def test_very_quick_steps_make_no_larger_chunks(tmp_path: Path) -> None:
    node = Node(str(tmp_path / "runs"), most_in_a_chunk=100)
    node.steps(700, step_s=0.05)
    node.telemetry.close()
    (chunk,) = (tmp_path / "runs" / KEY / "attempt-1/telemetry").glob("*.jsonl")
    assert 50 <= len(chunk.read_text().splitlines()) <= 200
    assert [each.step for each in node.read()][-1] == 700


@given(
    gaps=st.lists(st.integers(1, 3), min_size=1, max_size=200),
    peaks=st.lists(st.integers(0, 9), min_size=200, max_size=200),
    exponent=st.integers(0, 6),
)
def test_groups_of_steps_keep_peaks_order_first_and_last(gaps: list[int], peaks: list[int], exponent: int) -> None:
    steps = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    records = [record(step, 0, peak) for step, peak in zip(steps, peaks, strict=False)]
    found = thinned(records, 2**exponent)
    assert [each.step for each in found] == sorted({each.step for each in found})
    assert (found[0], found[-1].step) == (records[0], steps[-1])
    assert {each.step for each in found} <= set(steps)
    highest = max(each.peaks.allocated_bytes for each in records)
    assert max(each.peaks.allocated_bytes for each in found) == highest


def test_a_pipe_carries_what_several_ranks_wrote_since_the_last_look() -> None:
    pipe = RecordPipe()
    assert pipe.read() == []
    first = [record(step, rank) for step in (1, 2) for rank in (0, 1)]
    for each in first:
        pipe.write(each)
    assert pipe.read() == first
    pipe.write(record(3))
    assert pipe.read() == [record(3)]
    pipe.close()
