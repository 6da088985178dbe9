"""The plans of a job on a cluster: those that fit, the best one's memory, and why the others are refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from frenzy.cli.render.console import err, out
from frenzy.cli.render.error_text import show_reason
from frenzy.cli.render.plan_tables import candidates_table, compact_candidates_table, memory_breakdown
from frenzy.cli.render.tables import Grid, grid
from frenzy.core.planning.remedy_changes import nearest
from frenzy.core.planning.selection import fitting
from frenzy.core.values.units import counted

if TYPE_CHECKING:
    from frenzy.core.values.resource_plan import Candidate
    from frenzy.offline import OfflinePlan


def show_plan(name: str, planned: OfflinePlan, *, top: int | None) -> None:
    """The ``top`` plans that fit, the best one's memory by term, and what was refused and why; None: all plans."""
    console = out()
    fits = [each for each in planned.candidates if each.feasible]
    refused = [each for each in planned.candidates if not each.feasible]
    steps = f"{'about ' if planned.is_estimate else ''}{counted(planned.total_steps, 'step')}"
    others = "" if top is None else ", without those that others beat"
    title = f"{name} on {planned.cluster_file}: {fitting(len(fits))}{others} ({planned.policy}, {steps})"
    if fits:
        _show_plans(title, fits, top)
        console.print("batch: data-parallel replicas x samples of a micro-batch x micro-batches of a step", style="dim")
        console.print()
        console.print(memory_breakdown(fits[0].plan))
    if refused and (top is None or not fits):
        console.print()
        _show_plans(f"{len(refused)} refused", refused, top)
    if refused and (top is None or fits):
        console.print()
        console.print(refusals_table(refused))
    if planned.refusal is not None:
        console.print()
        show_reason(err(), planned.refusal)


def _show_plans(title: str, plans: Sequence[Candidate], top: int | None) -> None:
    if top is None:
        out().print(compact_candidates_table(title, plans))
        return
    out().print(candidates_table(title, plans[:top]))
    if len(plans) > top:
        out().print(f"... and {len(plans) - top} more; --all lists them.", style="dim")


def refusals_table(refused: Sequence[Candidate]) -> Grid:
    """How many plans have each reason, on which GPU types, and the one that came nearest to running."""
    groups = [tuple(group) for _, group in groupby(sorted(refused, key=_kind), key=_kind)]
    rows = [
        (str(len(each)), each[0].reason.code, ", ".join(dict.fromkeys(one.plan.gpu_type for one in each)), _words(each))
        for each in sorted(groups, key=len, reverse=True)
    ]
    return grid(f"{len(refused)} refused", ("plans", "reason", "on", "nearest"), rows, right="plans")


def _words(group: Sequence[Candidate]) -> Text:
    reason = nearest(group).reason
    return Text.assemble(reason.sentence, (f" -> {reason.remedy}" if reason.remedy else "", "cyan"))


def _kind(each: Candidate) -> tuple[str, str]:
    """The code, and what is said of a plan by name."""
    of_plan, _, words = each.reason.sentence.partition(": ")
    return each.reason.code, words if of_plan == each.plan.plan_id else ""
