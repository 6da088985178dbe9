"""Everything that can be compared, by name: what ``frenzy simulate`` offers, and its rivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from frenzy.sim import registry
from frenzy.sim.schedulers import Scheduler
from tools.policy_bench.published import PublishedScheduler


def scheduler_named(name: str) -> Scheduler:
    """A new scheduler of that name, with its default numbers. Raises SpecError for an unknown one."""
    return RIVALS[name]() if name in RIVALS else registry.scheduler_named(name)


def scheduler_names() -> tuple[str, ...]:
    return tuple(sorted({*RIVALS, *registry.scheduler_names()}))


def _sia(*, rigid: bool = False, no_allocation: float = 1.1, work_power: float = 0.0) -> Scheduler:
    """Imported when asked for: the solver takes a while to load."""
    from tools.policy_bench.sia import SiaParameters, SiaScheduler

    return SiaScheduler(SiaParameters(rigid=rigid, no_allocation=no_allocation, work_power=work_power))


def _gavel() -> Scheduler:
    from tools.policy_bench.gavel import GavelScheduler

    return GavelScheduler()


def _srtf() -> Scheduler:
    from tools.policy_bench.srtf import SrtfScheduler

    return SrtfScheduler()


RIVALS: Final[Mapping[str, Callable[[], Scheduler]]] = MappingProxyType(
    {
        "frenzy-paper-published": PublishedScheduler,
        "gavel-lp": _gavel,
        "sia-ilp": _sia,
        "sia-ilp-work": lambda: _sia(work_power=0.5),
        "sia-rigid": lambda: _sia(rigid=True, no_allocation=2.0),
        "srtf": _srtf,
    }
)
