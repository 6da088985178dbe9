"""The session: parts in order of value, each in its share of time, nothing twice, over when the time is."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from frenzy.core.values.errors import FrenzyError
from tools.gpu_proof.attempts import Bench, TimeIsUp
from tools.gpu_proof.figure_lines import SECONDS, Figure, Found, append_figures, read_figures

_DAY: Final = "%Y-%m-%d"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to try. run: in a folder of its own, which is gone afterwards."""

    name: str
    run: Callable[[Bench, Path], Iterable[Found]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Cases that belong together. share: of the whole time; case_s: what one may take, at most.

    title: what it finds out, for the page.
    """

    name: str
    title: str
    share: float
    case_s: float
    cases: Callable[[Bench], Iterator[Case]]


class Session:
    """Runs cases until ``end_s`` of the clock, and writes down what they find."""

    def __init__(self, bench: Bench, lines: Path, *, total_s: float, end_s: float) -> None:
        self._bench, self._lines, self._total_s, self._end_s = bench, lines, total_s, end_s
        known = [each for each in read_figures(lines) if each.machine == bench.machine.name]
        self._took_s = {(each.part, each.case): each.value or 0.0 for each in known if each.name == SECONDS}

    def run(self, parts: Iterable[Part]) -> bool:
        """Whether nothing is left to do. First each part in its share, then what is left in the same order."""
        every = list(parts)
        for boxed in (True, False):
            for part in every:
                self._run_part(part, boxed=boxed)
        return all(self._is_done(part, case) for part in every for case in part.cases(self._bench))

    def _run_part(self, part: Part, *, boxed: bool) -> None:
        for case in part.cases(self._bench):
            if self._is_done(part, case):
                continue
            spent_s = sum(took_s for (name, _), took_s in self._took_s.items() if name == part.name)
            if boxed and spent_s >= part.share * self._total_s:
                return
            if not self._run_case(part, case):
                return

    def _is_done(self, part: Part, case: Case) -> bool:
        return (part.name, case.name) in self._took_s

    def _run_case(self, part: Part, case: Case) -> bool:
        """False when the session's time ended it: it is then not recorded, and the next session tries again."""
        started_s, case_s = self._bench.clock_s(), part.case_s * self._bench.scale.patience
        deadline_s = min(self._end_s, started_s + case_s)
        if deadline_s <= started_s:
            return False
        folder = self._bench.folder / f"{part.name}-{case.name}".replace(" ", "-")
        try:
            found = list(case.run(self._bench.until(deadline_s), folder))
        except TimeIsUp:
            if deadline_s == self._end_s:
                return False
            found = [Found(name="ended", value=None, detail=f"not within {case_s:.0f} s")]
        except FrenzyError as error:
            found = [Found(name="refused", value=None, detail=error.reason.sentence)]
        except Exception as error:  # a case that fails must not cost the others, on a machine that is lent for minutes
            traceback.print_exc()
            found = [Found(name="failed", value=None, detail=f"{type(error).__name__}: {error}"[:500])]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        took_s = self._bench.clock_s() - started_s
        self._record(part, case, [*found, Found(name=SECONDS, value=round(took_s, 1), unit="s")])
        self._took_s[part.name, case.name] = took_s
        return True

    def _record(self, part: Part, case: Case, found: list[Found]) -> None:
        date = f"{datetime.now(tz=UTC):{_DAY}}"
        figures = [_stamped(each, part, case, self._bench.machine.name, date) for each in found]
        append_figures(self._lines, figures)
        for each in figures:
            print(line_of(each), flush=True)


def _stamped(found: Found, part: Part, case: Case, machine: str, date: str) -> Figure:
    return Figure(
        part=part.name,
        case=case.name,
        name=found.name,
        value=found.value,
        unit=found.unit,
        prediction=found.prediction,
        machine=machine,
        date=date,
        detail=found.detail,
    )


def line_of(figure: Figure) -> str:
    """One figure for the eye."""
    value = "-" if figure.value is None else f"{figure.value:.4g} {figure.unit}".rstrip()
    predicted = "" if figure.prediction is None else f" (predicted {figure.prediction:.4g})"
    detail = f"  {figure.detail}" if figure.detail else ""
    return f"{figure.part} / {figure.case} / {figure.name}: {value}{predicted}{detail}"
