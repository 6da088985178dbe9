"""The session of the proof: nothing twice, each part in its time, a failed case costs no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.values.errors import ContractError, PermanentError, Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind
from tools.gpu_proof.attempts import Bench, TimeIsUp
from tools.gpu_proof.figure_lines import SECONDS, Figure, Found, append_figures, read_figures
from tools.gpu_proof.proof import Case, Part, Session
from tools.gpu_proof.scale import SMALL
from tools.gpu_proof.this_machine import this_machine

Work = Callable[[Bench], Iterable[Found]]
FOUND = (Found(name="speed", value=1.0, unit="m/s", prediction=1.1),)


class Clock:
    """Goes on only when a case says so."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(tmp_path: Path, clock: Clock) -> Bench:
    return Bench(
        machine=this_machine(DeviceKind.VIRTUAL),
        scale=replace(SMALL, patience=1.0),
        calibration=default_calibration(),
        folder=tmp_path / "work",
        output=tmp_path,
        text=tmp_path / "text.txt",
        clock_s=clock,
    )


class Parts:
    """Parts whose cases take ``case_s`` of the clock, and a list of what was run."""

    def __init__(self, clock: Clock, case_s: float = 10.0) -> None:
        self.clock, self.case_s, self.ran = clock, case_s, list[str]()

    def part(self, name: str, count: int, *, share: float = 1.0, work: Work | None = None) -> Part:
        def cases(bench: Bench) -> Iterator[Case]:
            for number in range(count):
                yield Case(name=str(number), run=lambda at, folder, name=f"{name}{number}": self._run(name, at, work))

        return Part(name=name, title=name, share=share, case_s=25.0, cases=cases)

    def _run(self, name: str, bench: Bench, work: Work | None) -> Iterable[Found]:
        self.ran.append(name)
        self.clock.now_s += self.case_s
        if self.clock.now_s > bench.deadline_s:
            raise TimeIsUp
        return FOUND if work is None else work(bench)


def session(bench: Bench, *, total_s: float = 1000.0, end_s: float = 1000.0) -> Session:
    return Session(bench, bench.output / "figures.jsonl", total_s=total_s, end_s=end_s)


def lines(bench: Bench) -> list[Figure]:
    return read_figures(bench.output / "figures.jsonl")


def test_each_case_leaves_its_figures_and_its_time(bench: Bench, clock: Clock) -> None:
    assert session(bench).run([Parts(clock).part("a", 1)])
    speed, took = lines(bench)
    assert (speed.part, speed.case, speed.name, speed.value, speed.unit) == ("a", "0", "speed", 1.0, "m/s")
    assert speed.error == pytest.approx(0.1)
    assert speed.machine == bench.machine.name
    assert (took.name, took.value) == (SECONDS, 10.0)


def test_what_is_there_is_not_tried_again(bench: Bench, clock: Clock) -> None:
    first, second = Parts(clock), Parts(clock)
    assert not session(bench, end_s=15.0).run([first.part("a", 3)])
    assert session(bench, end_s=1000.0).run([second.part("a", 3)])
    assert (first.ran, second.ran) == (["a0", "a1"], ["a1", "a2"])
    assert [each.case for each in lines(bench) if each.name == SECONDS] == ["0", "1", "2"]


def test_what_another_machine_found_is_tried_here(bench: Bench, clock: Clock) -> None:
    other = replace(bench, machine=replace(bench.machine, name="another"))
    assert session(other).run([Parts(clock).part("a", 1)])
    here = Parts(clock)
    assert session(bench).run([here.part("a", 1)])
    assert here.ran == ["a0"]


def test_each_part_has_its_share_before_any_has_more(bench: Bench, clock: Clock) -> None:
    parts = Parts(clock)
    session(bench, total_s=40.0).run([parts.part("a", 4, share=0.5), parts.part("b", 2, share=0.5)])
    assert parts.ran == ["a0", "a1", "b0", "b1", "a2", "a3"]


def test_share_counts_what_earlier_sessions_took(bench: Bench, clock: Clock) -> None:
    session(bench, total_s=40.0, end_s=20.0).run([Parts(clock).part("a", 4, share=0.5)])
    parts = Parts(clock)
    session(bench, total_s=40.0).run([parts.part("a", 4, share=0.5), parts.part("b", 1, share=0.5)])
    assert parts.ran == ["b0", "a2", "a3"]


def test_case_beyond_its_own_time_is_recorded_and_the_next_one_runs(bench: Bench, clock: Clock) -> None:
    parts = Parts(clock, case_s=30.0)
    assert session(bench).run([parts.part("a", 2)])
    assert [each.detail for each in lines(bench) if each.name == "ended"] == ["not within 25 s"] * 2


@pytest.mark.parametrize(
    ("error", "name", "detail"),
    [
        (PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail="No.")), "refused", "No."),
        (ValueError("no such thing"), "failed", "ValueError: no such thing"),
    ],
)
def test_case_that_fails_says_why_and_costs_no_other(
    bench: Bench, clock: Clock, error: Exception, name: str, detail: str
) -> None:
    def fail(bench: Bench) -> Iterable[Found]:
        raise error

    parts = Parts(clock)
    assert session(bench).run([parts.part("a", 1, work=fail), parts.part("b", 1)])
    failed = next(each for each in lines(bench) if each.part == "a")
    assert (failed.name, failed.value, failed.detail) == (name, None, detail)
    assert parts.ran == ["a0", "b0"]


def test_folder_of_a_case_is_gone_afterwards(bench: Bench) -> None:
    def fill(at: Bench, folder: Path) -> Iterable[Found]:
        folder.mkdir(parents=True)
        (folder / "weights").write_text("large")
        return FOUND

    part = Part(name="a", title="a", share=1.0, case_s=1.0, cases=lambda at: iter([Case(name="0", run=fill)]))
    assert session(bench).run([part])
    assert list(bench.folder.iterdir()) == []


def test_line_that_a_killed_writer_left_is_passed_over_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    figure = Figure(
        part="a", case="b", name="c", value=1.0, unit="s", prediction=None, machine="here", date="2026-11-23"
    )
    append_figures(file, [figure])
    with file.open("a") as out:
        out.write('{"part": "a", "ca')
    assert read_figures(file) == [figure]
    append_figures(file, [figure])
    assert read_figures(file) == [figure, figure]


def test_line_of_another_form_is_refused_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    file.write_text('{"case": 1}\n')
    with pytest.raises(ContractError, match=r"figures\.jsonl, line 1"):
        read_figures(file)
