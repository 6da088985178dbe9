"""Plans as terminal tables: all of a list, and one plan's memory by term."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from frenzy.cli.render.tables import Grid, grid, reason_text, size
from frenzy.core.values.resource_plan import Candidate, MemoryPrediction, ResourcePlan
from frenzy.core.values.units import format_duration


def candidates_table(title: str, candidates: Iterable[Candidate]) -> Grid:
    """MARP's plans: predicted peak and what weighs most in it, what the card must have, what it has, the reason."""
    headings = ("rank", "plan", "batch", "peak", "largest_term", "required", "card", "time", "cost", "reason")
    return grid(title, headings, map(_candidate_row, candidates), right="rank peak required card time cost")


def _candidate_row(each: Candidate) -> tuple[str | Text, ...]:
    plan = each.plan
    return (
        "-" if each.rank is None else str(each.rank),
        Text(plan.plan_id, style="green" if each.rank == 1 else "" if each.feasible else "dim"),
        f"{plan.dp} x {plan.micro_batch_size} x {plan.accumulation_steps}",
        size(plan.memory.peak_allocated_bytes),
        tightest_text(plan),
        size(plan.memory.required_bytes),
        size(plan.gpu_memory_bytes),
        format_duration(plan.predicted_run_s) if plan.is_timed else "-",
        "-" if plan.predicted_cost is None or not plan.is_timed else f"{plan.predicted_cost:.4f}",
        reason_text(each.reason),
    )


def compact_candidates_table(title: str, candidates: Iterable[Candidate]) -> Grid:
    """The same with a line for each plan: of the reason its code alone, and not what weighs most in the peak."""
    headings = ("rank", "plan", "batch", "peak", "required", "card", "time", "cost", "reason")
    rows = ((*row[:4], *row[5:-1], each.reason.code) for each in candidates for row in (_candidate_row(each),))
    return grid(title, headings, rows, right="rank peak required card time cost")


def tightest_text(plan: ResourcePlan) -> str:
    """The term that weighs most in the peak, with its share; a node's host memory where the plan offloads to it."""
    memory = plan.memory
    if not memory.terms:
        return "-"
    text = f"{memory.terms[0].name} {_share(memory.terms[0].num_bytes, memory)}"
    return f"{text}, host {size(memory.host_bytes)}" if plan.offload_optimizer else text


def memory_breakdown(plan: ResourcePlan) -> Grid:
    """The predicted peak of one GPU by term, with each term's equation; below, a node's host memory."""
    memory = plan.memory
    rows = [(term.name, size(term.num_bytes), _share(term.num_bytes, memory), term.equation) for term in memory.terms]
    host = (
        (f"host: {each.name}", size(each.num_bytes), "a rank" if each.of_each_rank else "a node", each.equation)
        for each in memory.host_terms
    )
    title = f"{plan.plan_id}: {size(memory.peak_allocated_bytes)} at {memory.at}, host {size(memory.host_bytes)} a node"
    return grid(title, ("term", "bytes", "share", "equation"), (*rows, *host), right="bytes share")


def _share(num_bytes: int, memory: MemoryPrediction) -> str:
    return f"{100 * num_bytes / max(1, memory.peak_allocated_bytes):.0f} %"
