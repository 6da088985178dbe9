"""docs/gpu-figures.md: what the proof prints, from the lines that were kept in tests/data/gpu."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.gpu_proof.figure_lines import SECONDS, Figure, read_figures
from tools.gpu_proof.proof import Part

LINES: Final = "tests/data/gpu"
PAGE: Final = "docs/gpu-figures.md"
_VIRTUAL: Final = "virtual"
_HEAD: Final = """\
# Figures from a real GPU

<!-- Written by `python scripts/gpu_proof.py --docs` from tests/data/gpu; edit the code, not this page. -->

One command proves the product on one card, in half an hour: with MARP's plans, the trainer's own launcher, and what was
predicted beside what was found. Predictions are those of the day of the run.

"""
_NONE_YET: Final = """\
**No figures from a card are there yet.** No machine with one was at hand; the table below is from virtual GPUs, in
small, on a machine that was busy with other work. It shows what the command prints, and says nothing about a card.

"""
_HOW: Final = """\
## Run it

Where there is a network, `make env` is all it needs. For a machine without one that has Python 3.12 and torch:

```bash
make gpu-pack                                   # here: build/gpu-pack, at most 50 MiB of wheels
python3 -m pip install --no-index --no-deps --target site build/gpu-pack/*.whl    # there
PYTHONPATH=site python3 scripts/gpu_proof.py --minutes 9 --output proof
```

Airflow is not needed. Exit status 0 says that all is done, 3 that the time ended it: run it again with the same
`--output`, and what is there is skipped. Each part has its share of 30 minutes; what is left over goes to the parts
that have not ended, in the same order. It puts at most 40 GiB on the disk (`--scratch`), and removes them. To keep the
figures: copy `figures.jsonl` into `tests/data/gpu` under the card's name and `measured.jsonl` into `tests/data/memory`,
then `python scripts/gpu_proof.py --docs`.

All weights of 8B with 8-bit states need a card of more than 80 GB, or more than 128 GiB of host memory: where there is
neither, the line is MARP's refusal. On a fresh machine lay the earlier `figures.jsonl` into `--output` first.

Without a card the same parts run in small, on a virtual GPU; `--small` does so on a card.

"""


@dataclass(frozen=True, slots=True)
class Goal:
    """What the figures of a card must show. found: None where nothing was measured."""

    what: str
    goal: str
    found: str | None
    is_met: bool | None


def write_page(checkout: Path, parts: Sequence[Part]) -> None:
    (checkout / PAGE).write_text(figures_page(kept_figures(checkout), parts), encoding="utf-8")


def kept_figures(checkout: Path) -> list[Figure]:
    return [figure for file in sorted((checkout / LINES).glob("*.jsonl")) for figure in read_figures(file)]


def figures_page(figures: Sequence[Figure], parts: Sequence[Part]) -> str:
    order = [each.name for each in parts]
    figures = sorted(figures, key=lambda each: order.index(each.part) if each.part in order else len(order))
    machines = sorted({each.machine for each in figures}, key=lambda name: (_is_virtual(name), name))
    of_cards = [each for each in figures if not _is_virtual(each.machine)]
    sections = [_HEAD, "" if of_cards else _NONE_YET, _HOW, _parts_section(parts), _goals_section(goals(of_cards))]
    sections += [_machine_section(name, [each for each in figures if each.machine == name]) for name in machines]
    return "".join(sections).rstrip("\n") + "\n"


def goals(figures: Sequence[Figure]) -> tuple[Goal, ...]:
    """Over the figures of cards, together."""
    mfu = [each.value for each in figures if each.name == "MFU" and each.value is not None]
    errors = [abs(each.error) for each in figures if each.name.startswith("peak of") and each.error is not None]
    ahead = [each.value or 0.0 for each in figures if each.name == "forecast ahead"]
    named = [each.value or 0.0 for each in figures if each.name == "named rightly"]
    return (
        _goal("MFU of the fastest run", "at least 45 %", max(mfu, default=None), lambda best: best >= 45, "{:.1f} %"),
        _goal("worst error of a peak", "at most 3 %", _percent(errors), lambda worst: worst <= 3, "{:.1f} %"),
        _goal("forecast before out of memory", "1 step", min(ahead, default=None), lambda least: least >= 1, "{:.0f}"),
        _goal("failures named rightly", "all", min(named, default=None), lambda least: least == 1, "{:.0f}"),
    )


def _percent(errors: Sequence[float]) -> float | None:
    return 100 * max(errors) if errors else None


def _goal(what: str, goal: str, found: float | None, is_met: Callable[[float], bool], form: str) -> Goal:
    if found is None:
        return Goal(what, goal, None, None)
    return Goal(what, goal, form.format(found), is_met(found))


def _is_virtual(machine: str) -> bool:
    return machine.startswith(_VIRTUAL)


def _parts_section(parts: Sequence[Part]) -> str:
    rows = ((each.name, each.title, f"{each.share:.0%}", f"{each.case_s:.0f} s") for each in parts)
    return "## What is tried\n\n" + _table(("part", "what", "share", "a case, at most"), rows)


def _goals_section(found: Sequence[Goal]) -> str:
    words = {True: "met", False: "missed", None: "not measured"}
    rows = ((each.what, each.goal, each.found or "", words[each.is_met]) for each in found)
    return "## Goals on a card\n\n" + _table(("what", "goal", "found", ""), rows)


def _machine_section(name: str, figures: Sequence[Figure]) -> str:
    dates = sorted({each.date for each in figures})
    shown = [each for each in figures if each.name != SECONDS]
    rows = (
        (f"{each.part}: {each.case}", each.name, _value(each), _predicted(each), _error(each), each.detail)
        for each in shown
    )
    seconds = sum(each.value or 0.0 for each in figures if each.name == SECONDS)
    title = (
        f"## {name[0].upper()}{name[1:]}\n\n{' to '.join(dict.fromkeys((dates[0], dates[-1])))}; {seconds:.0f} s.\n\n"
    )
    return title + _table(("case", "what", "found", "predicted", "error", ""), rows)


def _value(figure: Figure) -> str:
    if figure.value is None:
        return "-"
    if figure.unit == "yes = 1":
        return "yes" if figure.value else "no"
    return f"{figure.value:.4g} {figure.unit}".rstrip()


def _predicted(figure: Figure) -> str:
    return "" if figure.prediction is None else f"{figure.prediction:.4g}"


def _error(figure: Figure) -> str:
    return "" if figure.error is None else f"{100 * figure.error:+.1f} %"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(each.replace('|', ' ') for each in line)} |\n" for line in lines) + "\n"
