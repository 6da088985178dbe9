"""Heterogeneity-aware scheduling: which waiting job starts, with which plan, on which nodes.

One pure function decides, for the product and for the simulator: no I/O, no clock, no
randomness. The same facts give the same actions in whatever order they are listed, and a second
pass over facts to which the actions were applied starts nothing.
"""

from frenzy.core.scheduling.engine.policy_settings import (
    POLICIES,
    BackfillPolicy,
    FifoPolicy,
    HasPolicy,
    PaperPolicy,
    Policy,
    policy_named,
    with_queues,
)
from frenzy.core.scheduling.engine.state import SchedulingState
from frenzy.core.scheduling.explain import Explanation, explain
from frenzy.core.scheduling.schedule import decide, schedule
from frenzy.core.values.scheduling_facts import apply_actions

__all__ = [
    "POLICIES",
    "BackfillPolicy",
    "Explanation",
    "FifoPolicy",
    "HasPolicy",
    "PaperPolicy",
    "Policy",
    "SchedulingState",
    "apply_actions",
    "decide",
    "explain",
    "policy_named",
    "schedule",
    "with_queues",
]
