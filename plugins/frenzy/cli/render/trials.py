"""The runs of a sweep as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from frenzy.cli.render.tables import Grid, grid, state_text
from frenzy.core.runs.comparison import Trial
from frenzy.core.values.units import counted


def trials_table(trials: Sequence[Trial]) -> Grid:
    """Best first: what differs, loss and perplexity."""
    paths = list(trials[0].settings) if trials else []
    fields = [path.rpartition(".")[2] for path in paths]
    headings = ("rank", "job", *fields, "loss", "perplexity", "steps", "run", "state")
    numbers = " ".join(("rank loss perplexity steps", *fields))
    return grid(f"{counted(len(trials), 'run')}, best first", headings, map(_row, trials), right=numbers)


def _row(each: Trial) -> tuple[str | Text, ...]:
    return (
        "-" if each.rank is None else str(each.rank),
        each.job,
        *map(setting_text, each.settings.values()),
        _number(each.loss),
        _number(each.perplexity),
        str(each.steps),
        each.run_key,
        state_text(each.state),
    )


def setting_text(value: Any) -> str:
    """A value of a specification in a cell."""
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
