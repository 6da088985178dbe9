"""Scheduling policies by name, with the numbers that tune them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Final

from frenzy.core.capacity.free_capacity import Need
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.queue_rules import NO_RULES, QueueRules
from frenzy.core.values.resource_plan import ResourcePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnyPolicy:
    """What every policy has. cpus_per_gpu: CPUs a worker holds for each of its GPUs."""

    name: ClassVar[str]
    cpus_per_gpu: float = 1.0

    @property
    def numbers(self) -> BackfillPolicy:
        """By which the sweep goes: the first plan that fits, no rules of queues."""
        return _PLAIN

    def need(self, plan: ResourcePlan, excluded_nodes: tuple[str, ...] = ()) -> Need:
        """What ``plan`` asks of the nodes."""
        host_bytes = plan.memory.host_bytes_of_node_and_rank
        return _need(plan.gpu_type, plan.num_gpus, plan.tp, host_bytes, self.cpus_per_gpu, excluded_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPolicy(_AnyPolicy):
    """The engine with moves off: each job takes the plan that costs least of what is idle, behind reservations.

    What each number does, ``python -m tests.bench.tune_has`` shows.

    urgency: how much a job counts the delay of those behind it when it chooses a plan; 0: not at all.
    slowdown: a job is due this many times later than the whole cluster would take for it alone.
    overrun_share: of a job that outlived its estimate this share of what it did is believed to be left.
    deadline_slack: a deadline is at risk with less time left than so many times what the job's plan takes that
    uses GPUs best.
    queues: shares of queues, quotas of queues and teams.

    min_gain: a job that could start waits for a plan that lowers its time to the end (or its cost) by this share.
    max_wait_share: it does so while its whole wait is below this share of its longest plan's run time.

    hysteresis: a faster plan, or a move, must leave less than this share of the time to the end (restart included).
    payback: a move that nothing forces must pay for itself before the job has run so many times as long as it has.
    disturbance: a plan that makes others move must save what these lose by it, and so many restarts' time.
    gain_without_budget: a job without moves left may grow if that divides the time to its end by so much.
    """

    name: ClassVar[str] = "backfill"
    urgency: float = 0.4
    slowdown: float = 1.0
    overrun_share: float = 1.0
    deadline_slack: float = 2.0
    queues: QueueRules = NO_RULES
    min_gain: float = 0.1
    max_wait_share: float = 0.5
    hysteresis: float = 0.8
    payback: float = 12.0
    disturbance: float = 9.0
    gain_without_budget: float = 1.5

    @property
    def numbers(self) -> BackfillPolicy:
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class HasPolicy(BackfillPolicy):
    """The product's default: the same with moves on, so that all jobs end sooner.

    What is overtaken can be moved later: so it may wait longer for its turn, and takes fewer GPUs.
    """

    name: ClassVar[str] = "has"
    urgency: float = 0.8
    slowdown: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperPolicy(_AnyPolicy):
    """Frenzy as published: FIFO, the first plan that fits by (GPUs, memory), pass over what does not."""

    name: ClassVar[str] = "frenzy-paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoPolicy(_AnyPolicy):
    """FIFO on the number of GPUs the user asked for, on any type; who has to wait blocks all behind."""

    name: ClassVar[str] = "fifo"


_PLAIN: Final = BackfillPolicy(urgency=0.0, slowdown=0.0)


@lru_cache(maxsize=16384)
def _need(  # noqa: PLR0913
    gpu_type: str,
    num_gpus: int,
    group_size: int,
    host_bytes: tuple[int, int],
    cpus_per_gpu: float,
    excluded_nodes: tuple[str, ...],
) -> Need:
    """Shared by the plans that ask for the same, of which a long queue has very many."""
    millicpus = round(cpus_per_gpu * 1000)
    return Need(gpu_type, num_gpus, group_size, *host_bytes, millicpus, tuple(sorted(excluded_nodes)))


Policy = HasPolicy | PaperPolicy | BackfillPolicy | FifoPolicy


def with_queues(policy: Policy, queues: QueueRules) -> Policy:
    """``policy`` with these queues and quotas; itself, if it knows none."""
    return replace(policy, queues=queues) if isinstance(policy, BackfillPolicy) else policy


POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {policy.name: policy for policy in (HasPolicy(), PaperPolicy(), BackfillPolicy(), FifoPolicy())}
)


def policy_named(name: str, *, cpus_per_gpu: float = 1.0) -> Policy:
    """The policy called ``name``, with its default numbers. Raises SpecError for an unknown name.

    cpus_per_gpu: what a worker takes of a node's CPUs for each of its GPUs, as in the policies.
    """
    if name not in POLICIES:
        allowed = f"one of {', '.join(sorted(POLICIES))}"
        raise SpecError([Violation(path="policy", value=repr(name), allowed=allowed)])
    return replace(POLICIES[name], cpus_per_gpu=cpus_per_gpu)
