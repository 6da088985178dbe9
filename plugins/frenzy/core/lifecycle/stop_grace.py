"""How long workers may take whom somebody else tells to end: as long as a checkpoint of theirs takes."""

from __future__ import annotations

import math
from typing import Final

from frenzy.core.values.resource_plan import CHECKPOINT_STAGING, ResourcePlan

# Where no checkpoint was measured yet, a node's ranks share what a network volume takes.
UNMEASURED_BYTES_PER_S: Final = 100e6
# The one that is being written is finished before the last one is.
_WRITES: Final = 2
# The signal comes while a step runs.
_STEPS: Final = 2


def stop_grace_s(
    plan: ResourcePlan, *, num_ranks: int, bytes_per_s: float | None, least_s: float, most_s: float
) -> float:
    """Seconds for the end of a node's ``num_ranks`` ranks, from ``least_s`` to ``least_s + most_s``.

    bytes_per_s: what the slowest rank of an earlier checkpoint wrote, None where there is none. A plan of a script
    does not say how much that saves: ``least_s``.
    """
    memory = plan.memory
    each = memory.uncopied_bytes + sum(term.num_bytes for term in memory.host_terms if term.name == CHECKPOINT_STAGING)
    rate = bytes_per_s if bytes_per_s is not None and bytes_per_s > 0 else UNMEASURED_BYTES_PER_S / num_ranks
    takes_s = _STEPS * plan.step_time_s + _WRITES * each / rate if each else 0.0
    return least_s + math.ceil(min(most_s, takes_s))
