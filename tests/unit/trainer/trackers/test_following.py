"""What a tracker is handed: every step once, whatever fails."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.values import codec
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.telemetry import StepRecord
from frenzy.trainer.trackers.following import ENDED, Following, follow
from frenzy.trainer.trackers.tracker import Ending, Point

NEW = TrackedRun(kind="wandb", tracker_run="run-1")


def record(step: int, loss: float | None = 1.0) -> StepRecord:
    peaks = PeakMemory(allocated_bytes=5, reserved_bytes=5, device_used_bytes=5)
    return StepRecord(
        rank=0, step=step, time_s=0.0, loss=loss, step_time_s=0.5, tokens_per_s=10.0, peaks=peaks, capacity_bytes=9
    )


@dataclass
class Played:
    """A tracker that keeps what it gets, unless it is to fail."""

    failures: list[Exception] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)

    def open(self, known: TrackedRun, *, first_step: int) -> TrackedRun:
        self.opened.append(first_step)
        return replace(known, place="https://there/run-1")

    def log(self, points: Sequence[Point]) -> None:
        if self.failures:
            raise self.failures.pop()
        self.points.extend(points)

    def close(self, ending: Ending) -> None:
        self.endings.append(ending)


@dataclass
class Watch:
    """Time that passes when it is told to."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def notes() -> list[TrackedRun]:
    return []


@pytest.fixture
def watch() -> Watch:
    return Watch()


def followed(tracker: Played, notes: list[TrackedRun], watch: Watch, known: TrackedRun = NEW) -> Following:
    return Following(tracker, known, notes.append, num_gpus=2, clock=watch)


def test_nothing_is_opened_before_the_first_step(notes: list[TrackedRun], watch: Watch) -> None:
    tracker = Played()
    following = followed(tracker, notes, watch)
    following.turn()
    following.end(Ending.FAILED)
    assert (tracker.opened, tracker.endings, notes) == ([], [], [])


def test_steps_become_points_and_the_newest_is_noted(notes: list[TrackedRun], watch: Watch) -> None:
    tracker = Played()
    following = followed(tracker, notes, watch)
    for each in (record(1), record(2, loss=None)):
        following.add(each)
    following.turn()
    following.end(Ending.DONE)
    assert [each.step for each in tracker.points] == [1, 2]
    assert tracker.points[0].values["train/tokens_per_s"] == 20.0
    assert "train/loss" not in tracker.points[1].values
    assert notes[-1] == replace(NEW, place="https://there/run-1", last_step=2)
    assert tracker.endings == [Ending.DONE]


def test_steps_that_an_earlier_attempt_told_are_not_told_again(notes: list[TrackedRun], watch: Watch) -> None:
    tracker = Played()
    following = followed(tracker, notes, watch, replace(NEW, place="https://there/run-1", last_step=3))
    for step in (2, 3, 4):
        following.add(record(step))
    following.end(Ending.GOES_ON)
    assert [each.step for each in tracker.points] == [4]


def test_a_failure_is_told_once_and_made_good_later(
    notes: list[TrackedRun], watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Played(failures=[ConnectionError("no route\x1b[2J"), ConnectionError("no route\x1b[2J")])
    following = followed(tracker, notes, watch)
    following.add(record(1))
    following.turn()
    assert notes[-1].problem == "ConnectionError: no route[2J"
    watch.now_s = 1000.0
    following.turn()
    assert tracker.points == []
    watch.now_s = 2000.0
    following.turn()
    assert [each.step for each in tracker.points] == [1]
    assert notes[-1].problem == ""
    assert [each.message for each in caplog.records] == [
        "wandb gets no more of this run: ConnectionError: no route[2J",
    ]


def test_a_key_that_cannot_be_sent_stands_in_no_problem(
    notes: list[TrackedRun], watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = ValueError("return character(s) in header value: 'Bearer abc-123\\n'")
    following = Following(Played(failures=[refused]), NEW, notes.append, num_gpus=1, hidden=["abc-123"], clock=watch)
    following.add(record(1))
    following.turn()
    assert "abc-123" not in caplog.text
    assert notes[-1].problem == "ValueError: return character(s) in header value: 'Bearer ***\\n'"


def test_files_that_cannot_be_kept_now_are_kept_at_the_end_and_open_nothing_anew(
    notes: list[TrackedRun], watch: Watch
) -> None:
    kept: list[float] = []

    def keep_files() -> None:
        kept.append(watch.now_s)
        if watch.now_s < 200.0:
            raise OSError("away")

    tracker = Played()
    following = Following(tracker, NEW, notes.append, num_gpus=1, keep_files=keep_files, clock=watch)
    following.add(record(1))
    for watch.now_s in (0.0, 100.0, 200.0):
        following.turn()
    following.end(Ending.DONE)
    assert (tracker.opened, tracker.endings, kept) == ([1], [Ending.DONE], [100.0, 200.0, 200.0])


def test_a_library_that_is_missing_is_named_with_what_installs_it(notes: list[TrackedRun], watch: Watch) -> None:
    tracker = Played(failures=[ModuleNotFoundError("No module named 'wandb'")])
    following = followed(tracker, notes, watch)
    following.add(record(1))
    following.turn()
    assert notes[-1].problem == (
        "No module named 'wandb'; it has to be installed where the workers run: pip install 'frenzy-airflow[trackers]'"
    )


def test_between_two_turns_no_tracker_is_asked(notes: list[TrackedRun], watch: Watch) -> None:
    tracker = Played()
    following = followed(tracker, notes, watch)
    for step in (1, 2):
        following.add(record(step))
        following.turn()
    assert [each.step for each in tracker.points] == [1]


def test_a_store_that_takes_no_note_keeps_no_point_back(watch: Watch) -> None:
    def keep(known: TrackedRun) -> None:
        raise OSError("away")

    tracker = Played()
    following = Following(tracker, NEW, keep, num_gpus=1, clock=watch)
    following.add(record(1))
    following.end(Ending.DONE)
    assert [each.step for each in tracker.points] == [1]


@pytest.mark.parametrize(("last_line", "ending"), [(f"{ENDED}done\n", Ending.DONE), ("", Ending.FAILED)])
def test_the_pipe_is_read_to_its_last_line_or_its_end(
    notes: list[TrackedRun], watch: Watch, last_line: str, ending: Ending
) -> None:
    reader, writer = os.pipe()
    os.write(writer, f"{codec.dumps(record(1))}\nnothing that can be read\n{last_line}".encode())
    os.close(writer)
    tracker = Played()
    follow(reader, followed(tracker, notes, watch))
    os.close(reader)
    assert [each.step for each in tracker.points] == [1]
    assert tracker.endings == [ending]
