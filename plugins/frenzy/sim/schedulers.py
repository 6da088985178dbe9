"""What the engine asks: something that turns a state into actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from frenzy.core.scheduling import Policy, SchedulingState, decide
from frenzy.core.values.scheduling_facts import Action


class Scheduler(Protocol):
    """A policy as the engine runs it.

    rules: the policy whose queue order and plan order the state keeps. round_s: it decides every so
    many seconds; None for one that decides at every event.
    """

    @property
    def name(self) -> str: ...

    @property
    def rules(self) -> Policy: ...

    @property
    def round_s(self) -> float | None: ...

    def decide(self, state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        """Starts, moves and stops; holds are of no consequence here."""
        ...


@dataclass(frozen=True)
class ProductScheduler:
    """The product's own decision, with one of its policies."""

    rules: Policy

    @property
    def name(self) -> str:
        return self.rules.name

    @property
    def round_s(self) -> float | None:
        return None

    def decide(self, state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        return decide(state, now_s, self.rules)
