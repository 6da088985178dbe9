"""Everything that can be simulated, by name: the product's policies and their rivals."""

from __future__ import annotations

from frenzy.core.has import POLICIES, policy_named
from frenzy.sim.schedulers import ProductScheduler, Scheduler


def scheduler_named(name: str) -> Scheduler:
    """A scheduler of that name. Raises SpecError for an unknown one."""
    return ProductScheduler(policy_named(name))


def scheduler_names() -> tuple[str, ...]:
    return tuple(sorted(POLICIES))
