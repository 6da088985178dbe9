"""The product's policies as they are simulated, by name, and what was added to them.

Starts are not forecast, since nobody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from frenzy.core.scheduling import POLICIES, Policy, with_queues
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.queue_rules import NO_RULES, QueueRule, QueueRules
from frenzy.sim.schedulers import ProductScheduler, Scheduler

_SOME_RULES: Final = QueueRules(queues=(QueueRule(name="any"),))


def scheduler_named(name: str, queues: QueueRules = NO_RULES) -> Scheduler:
    """A new scheduler of that name, with its default numbers. Raises SpecError for an unknown one.

    queues: shares and quotas, for the policies that know any (``keeps_queues``).
    """
    if name not in _SCHEDULERS:
        raise SpecError([Violation(path="policy", value=repr(name), allowed=f"one of {', '.join(scheduler_names())}")])
    scheduler = _SCHEDULERS[name]()
    if isinstance(scheduler, ProductScheduler):
        return replace(scheduler, rules=with_queues(scheduler.rules, queues))
    return scheduler


def keeps_queues(name: str) -> bool:
    """Whether the policy of that name keeps shares and quotas."""
    policy = POLICIES.get(name)
    return policy is not None and with_queues(policy, _SOME_RULES) != policy


def scheduler_names() -> tuple[str, ...]:
    return tuple(sorted(_SCHEDULERS))


def offer(schedulers: Mapping[str, Callable[[], Scheduler]]) -> None:
    """Add schedulers of one's own, by name."""
    _SCHEDULERS.update(schedulers)


def _product(policy: Policy) -> Callable[[], Scheduler]:
    return lambda: ProductScheduler(policy)


_SCHEDULERS: Final[dict[str, Callable[[], Scheduler]]] = {name: _product(policy) for name, policy in POLICIES.items()}
