"""Where every active job stands under ``has``: indices that an event changes only at the jobs it names.

They answer, without a look at all jobs: who is first among the waiting ones, and among those that what is idle
might be enough for; who is last of those that hold GPUs; who could grow by how little; and the weight of all that
come before or after a place in line. Jobs that hold GPUs stand here as of their start: as they get on they come to
be due a little earlier, which matters for whom to look at first, not for what is decided of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from frenzy.core.has.choices import Choice, Tables
from frenzy.core.has.claims import claim_at_start, claim_of_waiting
from frenzy.core.has.options import Contender
from frenzy.core.has.policy import HasPolicy
from frenzy.core.has.ranks import Rank, Ranks, rank_of
from frenzy.core.values.queue import RunningJob

K = TypeVar("K")
Smallest = tuple[tuple[str, int], ...]
Step = tuple[str, int]

_NONE = Ranks.of(())


@dataclass(frozen=True, slots=True)
class Standing:
    """All active jobs, of which some may be moved.

    waiting: in the order they are served; by_need: the same by what their smallest plans ask for. holding: those
    that hold GPUs, likewise; by_type: by the type of their GPUs. steps: by (type, number), jobs that so many more idle
    GPUs of that type would let run faster by ``hysteresis``; the most to gain first. num_movable, num_timed: those of
    all that may be moved, those that have a deadline.
    """

    policy: HasPolicy = field(compare=False, repr=False)
    tables: Tables = field(compare=False, repr=False)
    waiting: Ranks
    by_need: Mapping[Smallest, Ranks]
    holding: Ranks
    by_type: Mapping[str, Ranks]
    steps: Mapping[Step, Ranks]
    num_movable: int
    num_timed: int

    @staticmethod
    def of(
        policy: HasPolicy, tables: Tables, waiting: Iterable[Contender], running: Iterable[RunningJob]
    ) -> Standing | None:
        """The indices of all these jobs; None if none of them may be moved."""
        contenders, jobs = list(waiting), list(running)
        movable = sum(each.job.elasticity is not None for each in contenders)
        movable += sum(job.elasticity is not None for job in jobs)
        if not movable:
            return None
        ranks = sorted(_waiting_rank(each, tables, policy) for each in contenders)
        by_need: dict[Smallest, list[Rank]] = {}
        for rank in ranks:
            by_need.setdefault(rank.claim.others.fewest_gpus, []).append(rank)
        held = sorted(rank_of_holding(job, tables, policy) for job in jobs)
        by_type: dict[str, list[Rank]] = {}
        steps: dict[Step, list[Rank]] = {}
        for rank in held:
            by_type.setdefault(_current(rank).gpu_type, []).append(rank)
            for step, stepping in _steps(rank, policy):
                steps.setdefault(step, []).append(stepping)
        return Standing(
            policy,
            tables,
            Ranks.of(ranks),
            {need: Ranks.of(each) for need, each in by_need.items()},
            Ranks.of(held),
            {gpu_type: Ranks.of(each) for gpu_type, each in by_type.items()},
            {step: Ranks.of(sorted(each)) for step, each in steps.items()},
            movable,
            sum(each.job.deadline_s is not None for each in contenders)
            + sum(job.deadline_s is not None for job in jobs),
        )

    @property
    def weight(self) -> float:
        """Of all jobs."""
        return self.waiting.sums.weight + self.holding.sums.weight

    @property
    def num_active(self) -> int:
        """All jobs."""
        return len(self.waiting) + len(self.holding)

    def fits_all(self, idle: Mapping[str, int]) -> bool:
        """Whether every waiting job, alone, may find GPUs enough."""
        return all(_fits(smallest, idle) for smallest in self.by_need)

    def fits_any(self, idle: Mapping[str, int]) -> bool:
        """Whether any waiting job may find GPUs enough."""
        return any(_fits(smallest, idle) for smallest in self.by_need)

    def grows_with(self, idle: Mapping[str, int]) -> bool:
        """Whether ``idle`` GPUs might let a running job run faster."""
        return any(more <= idle.get(gpu_type, 0) for gpu_type, more in self.steps)

    def submit(self, contender: Contender) -> Standing:
        """Once ``contender`` waits."""
        rank = _waiting_rank(contender, self.tables, self.policy)
        return self._with_waiting(
            self.waiting.put(rank),
            _put(self.by_need, rank.claim.others.fewest_gpus, rank),
            self.num_movable + (contender.job.elasticity is not None),
            self.num_timed + (contender.job.deadline_s is not None),
        )

    def withdraw(self, contender: Contender) -> Standing | None:
        """Once ``contender``, which waits, does so no more; None if then no job may be moved."""
        rank = _waiting_rank(contender, self.tables, self.policy)
        num_movable = self.num_movable - (contender.job.elasticity is not None)
        if not num_movable:
            return None
        return self._with_waiting(
            self.waiting.without(rank.key),
            _without(self.by_need, rank.claim.others.fewest_gpus, rank),
            num_movable,
            self.num_timed - (contender.job.deadline_s is not None),
        )

    def _with_waiting(
        self, waiting: Ranks, by_need: Mapping[Smallest, Ranks], num_movable: int, num_timed: int
    ) -> Standing:
        # Written out, since it is called at every event: ``replace`` takes longer than the change itself.
        return Standing(
            self.policy,
            self.tables,
            waiting,
            by_need,
            self.holding,
            self.by_type,
            self.steps,
            num_movable,
            num_timed,
        )

    def start(self, job: RunningJob) -> Standing:
        """Once ``job`` holds its GPUs."""
        rank = rank_of_holding(job, self.tables, self.policy)
        steps = self.steps
        for step, stepping in _steps(rank, self.policy):
            steps = _put(steps, step, stepping)
        return self._with_holding(
            self.holding.put(rank),
            _put(self.by_type, _current(rank).gpu_type, rank),
            steps,
            self.num_movable + (job.elasticity is not None),
            self.num_timed + (job.deadline_s is not None),
        )

    def finish(self, job: RunningJob) -> Standing | None:
        """Once ``job``, which holds GPUs, does so no more; None if then no job may be moved."""
        num_movable = self.num_movable - (job.elasticity is not None)
        if not num_movable:
            return None
        rank = rank_of_holding(job, self.tables, self.policy)
        steps = self.steps
        for step, stepping in _steps(rank, self.policy):
            steps = _without(steps, step, stepping)
        return self._with_holding(
            self.holding.without(rank.key),
            _without(self.by_type, _current(rank).gpu_type, rank),
            steps,
            num_movable,
            self.num_timed - (job.deadline_s is not None),
        )

    def _with_holding(
        self,
        holding: Ranks,
        by_type: Mapping[str, Ranks],
        steps: Mapping[Step, Ranks],
        num_movable: int,
        num_timed: int,
    ) -> Standing:
        return Standing(
            self.policy, self.tables, self.waiting, self.by_need, holding, by_type, steps, num_movable, num_timed
        )


def _fits(smallest: Smallest, idle: Mapping[str, int]) -> bool:
    return any(num_gpus <= idle.get(gpu_type, 0) for gpu_type, num_gpus in smallest)


def _waiting_rank(contender: Contender, tables: Tables, policy: HasPolicy) -> Rank:
    claim = claim_of_waiting(contender, tables, policy)
    return rank_of(claim, weight=claim.weight)


def rank_of_holding(job: RunningJob, tables: Tables, policy: HasPolicy) -> Rank:
    """As of its start. A job that stays where it is waits for nobody: it has no weight."""
    claim = claim_at_start(job, tables, policy)
    assert claim.current is not None
    weight = 0.0 if job.elasticity is None else claim.weight
    return rank_of(claim, weight=weight, gpus=claim.current.gpus * claim.num_held / claim.current.num_gpus)


def _current(rank: Rank) -> Choice:
    assert rank.claim.current is not None
    return rank.claim.current


def _steps(rank: Rank, policy: HasPolicy) -> list[tuple[Step, Rank]]:
    """How many GPUs more let the job run faster, if any do: of its own type the fewest, and of the type of its fastest
    plan.

    Where jobs are ranked, the most gain comes first: in seconds, as of the start, if it had them all along. A job
    that has to leave its nodes comes before all others, and needs no more than it has.
    """
    claim, current = rank.claim, _current(rank)
    if claim.is_displaced:
        return [((current.gpu_type, 0), rank._replace(minus_priority=0, due_s=-math.inf))]
    if claim.by_cost or claim.job.elasticity is None:
        return []
    table, left_s = claim.others, claim.left
    most_s = claim.run_s(current) * policy.hysteresis - claim.restart_s
    smallest: dict[str, Choice] = {}
    for choice in table.choices:
        if left_s * choice.unit_s >= most_s:
            if table.is_by_speed:
                break
            continue
        if smallest and choice.gpu_type != current.gpu_type and choice.gpu_type not in smallest:
            continue
        known = smallest.get(choice.gpu_type)
        if known is None or choice.num_gpus < known.num_gpus:
            smallest[choice.gpu_type] = choice
    return [
        (
            (gpu_type, choice.num_gpus - (claim.num_held if gpu_type == current.gpu_type else 0)),
            rank._replace(minus_priority=0, due_s=claim.run_s(choice) - claim.run_s(current)),
        )
        for gpu_type, choice in smallest.items()
    ]


def _put(ranks: Mapping[K, Ranks], key: K, rank: Rank) -> Mapping[K, Ranks]:
    return {**ranks, key: ranks.get(key, _NONE).put(rank)}


def _without(ranks: Mapping[K, Ranks], key: K, rank: Rank) -> Mapping[K, Ranks]:
    rest = ranks[key].without(rank.key)
    if len(rest):
        return {**ranks, key: rest}
    return {each: known for each, known in ranks.items() if each != key}
