"""What several scenarios of moves ask of their runs. Pure."""

from __future__ import annotations

from typing import Final

from frenzy.cli.demo_checks import Check
from frenzy.core.runs.ledger import Attempt
from frenzy.core.runs.protocol import RunView

# Each look asks the server for the story of every job, and takes from the cores that they train on.
LOOK_EVERY_S: Final = 2.0


def overlap_s(one: Attempt, other: Attempt) -> float:
    """Seconds in which both trained."""
    if None in (one.first_step_s, other.first_step_s, one.ended_s, other.ended_s):
        return 0.0
    starts = max(one.first_step_s or 0.0, other.first_step_s or 0.0)
    return max(0.0, min(one.ended_s or 0.0, other.ended_s or 0.0) - starts)


def budget_untouched(view: RunView) -> Check:
    num, most = view.run.num_reschedules, view.run.job.on_memory_pressure.max_reschedules
    name = "The user's budget of reschedules is untouched"
    return Check(name=name, passed=num == 0, evidence=f"{num} of {most}")
