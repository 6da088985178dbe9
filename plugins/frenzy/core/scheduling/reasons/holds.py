"""Why each waiting job waits: one reason, in a sentence, read from the record of the decision itself.

A sweep leaves what every job found at its turn (``Missed``). A pass that moves nobody leaves its board; it is repeated
until it starts nothing, so that every sentence speaks of the same moment. A sentence that depends only on what
is asked for is made once for all jobs that ask it. Remedies name no numbers here: ``remedies`` tries them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from frenzy.core.scheduling.engine.board import Board
from frenzy.core.scheduling.engine.deadlines import lost_sentence
from frenzy.core.scheduling.engine.options import Contender, Option
from frenzy.core.scheduling.engine.placement import place
from frenzy.core.scheduling.engine.reservation import Reservation
from frenzy.core.scheduling.engine.room import Need
from frenzy.core.scheduling.engine.sweep import Kept, Missed
from frenzy.core.scheduling.engine.wording import about, are, asked, host_needs, listed
from frenzy.core.scheduling.reasons.impossible import impossible
from frenzy.core.scheduling.reasons.queue_holds import QueueJudge, over_quota
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.queue_rules import Limit
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob
from frenzy.core.values.units import format_bytes


class Judge:
    """Finds the one reason for which each waiting job of a board waits; the board is of a pass that moves nobody."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._own = {each.job.run_key: each for each in board.reservations.values()}
        self._shared: dict[object, Reason] = {}
        self._of_rules = QueueJudge(board)

    def reason(self, contender: Contender) -> Reason:
        """Why ``contender`` waits."""
        job, board = contender.job, self.board
        if job.run_key in board.state.running:
            detail = f"Workers of the last attempt of {job.job_name} still hold their GPUs."
            return Reason(code=ReasonCode.WAITING_FOR_OLD_WORKERS, detail=detail)
        own = self._own.get(job.run_key)
        if own is not None and own.instead_of is not None:
            return self._better_plan(own, own.instead_of)
        key = self._alike(contender)
        reason = self._shared.get(key)
        if reason is None:
            reason = self._shared[key] = self._judge(contender)
        if job.deadline_s is None:
            return reason
        lost = lost_sentence(board.with_deadline_in_reach(contender), board.now_s)
        return reason if lost is None else replace(reason, detail=f"{reason.sentence} {lost}")

    def when(self, run_key: str, expected_start_s: float) -> str:
        """When the job is expected to start, and once whose end, if that was foreseen."""
        when, own = about(expected_start_s - self.board.now_s), self._own.get(run_key)
        if own is None or not own.promise.after:
            return when
        return (
            f"{when}, when {listed(own.promise.after, last='and')} {'ends' if len(own.promise.after) == 1 else 'end'}"
        )

    def option(self, contender: Contender, option: Option) -> str:
        """What became of one plan of a waiting job, as a sentence."""
        need, name = option.need, option.plan.plan_id
        if not self.board.fits_empty(need):
            return f"{name} does not fit the nodes in service, even when they are empty."
        return self._option(contender, option)

    def _option(self, contender: Contender, option: Option) -> str:
        board, need, name = self.board, option.need, option.plan.plan_id
        limit = board.quotas.exceeded(contender.job, need.gpu_type, need.num_gpus)
        if limit is not None:
            return f"{name} is over the quota of {limit.title}."
        if board.fits_now(need) is not None:
            return f"{name} would fit what is idle, were it not kept for the job in front."
        idle = board.room.idle_gpus(need.gpu_type)
        return f"{name} needs {asked(need)}; {idle} {are(idle)} idle."

    def _alike(self, contender: Contender) -> object:
        """Equal for jobs that wait for the same reason."""
        return contender.asks, contender.menu.required_bytes

    def _judge(self, contender: Contender) -> Reason:
        quota = self._of_rules.quota(contender)
        if quota is not None:
            return quota
        board, options = self.board, self.board.quotas.within(contender).options
        if board.state.rules.counts_gpus_only:
            return self._mixed(options)
        possible = [option for option in options if board.fits_empty(option.need)]
        if not possible:
            return impossible(board.state, [option.need for option in options])
        for need in (each.need for each in possible):
            if board.fits_now(need) is None:
                continue
            if board.head_of_line is not None:
                return _behind_line(board.head_of_line)
            return self._behind_head(need, board.reservations[need.gpu_type])
        return self._lack(contender, options, possible)

    def _lack(self, contender: Contender, options: Sequence[Option], possible: Sequence[Option]) -> Reason:
        """That too little is there for it, of whatever kind."""
        needs = [each.need for each in possible]
        gpus = _for_gpus(needs, self._found(contender, needs))
        return (
            self._host_short(needs) or self._memory_short(options, gpus) or self._of_rules.share(contender.job) or gpus
        )

    def _found(self, contender: Contender, needs: Sequence[Need]) -> str:
        """What of the GPUs that it needs there was."""
        totals = self.board.state.cluster.num_gpus_by_type
        types = dict.fromkeys(need.gpu_type for need in needs)
        idle = [f"{self.board.room.idle_gpus(each)} of {totals[each]} {each}" for each in types]
        return f"idle: {listed(idle, last='and', more='more types')}"

    def _better_plan(self, own: Reservation, now: ResourcePlan) -> Reason:
        plan, start_s = own.promise.option.plan, own.promise.start_s
        assert start_s is not None, "only a start that is known is worth waiting for"
        earlier_s = self.board.now_s + own.job.work_left * now.predicted_run_s - own.promise.end_s
        cheaper = (
            f"costs {1 - plan.predicted_cost / now.predicted_cost:.0%} less" if now.predicted_cost else "is cheaper"
        )
        gain = f"ends {about(earlier_s)} earlier" if earlier_s > 0 else cheaper
        return Reason(
            code=ReasonCode.WAITING_FOR_BETTER_PLAN,
            detail=f"{plan.plan_id}, expected soon, {gain} than {now.plan_id}, which could start now.",
            remedy=f"idle {plan.gpu_type}",
        )

    def _behind_head(self, need: Need, head: Reservation) -> Reason:
        idle = self.board.room.idle_gpus(need.gpu_type)
        start_s = head.promise.start_s
        when = "" if start_s is None else f" and expected to start in {about(start_s - self.board.now_s)}"
        return Reason(
            code=ReasonCode.WAITING_BEHIND_HEAD,
            detail=f"{idle} {need.gpu_type} {are(idle)} idle, but {head.job.job_name} is first in line for them{when}.",
            remedy=f"{head.job.job_name} started or cancelled",
        )

    def _host_short(self, needs: Sequence[Need]) -> Reason | None:
        for need in needs:
            room = self.board.room.by_type[need.gpu_type]
            bare = need._replace(host_bytes=0, millicpus_per_gpu=0)
            if place(room, bare) is not None and place(room, need) is None:
                return Reason(
                    code=ReasonCode.WAITING_FOR_HOST_RESOURCES,
                    detail=f"{room.idle_gpus} {need.gpu_type} {are(room.idle_gpus)} idle, "
                    f"but a node must also have {host_needs(need)} free.",
                    remedy=f"more host memory or CPUs free on nodes with idle {need.gpu_type}",
                )
        return None

    def _memory_short(self, options: Sequence[Option], gpus: Reason) -> Reason | None:
        board = self.board
        sizes = {each.name: each.memory_bytes for each in board.state.cluster.gpu_types}
        largest = max((sizes[name] for name, room in board.room.by_type.items() if room.idle_gpus), default=0)
        required = min(option.plan.memory.required_bytes for option in options)
        if not 0 < largest < required:
            return None
        detail = f"Idle GPUs have {format_bytes(largest)} at most; the job needs {format_bytes(required)} on each."
        return replace(gpus, code=ReasonCode.WAITING_FOR_GPU_MEMORY, detail=detail)

    def _mixed(self, options: Sequence[Option]) -> Reason:
        """For the published algorithm, which takes idle GPUs of any type that is large enough."""
        types, totals = self.board.state.cluster.gpu_types, self.board.state.cluster.num_gpus_by_type

        def never(option: Option) -> bool:
            required = option.plan.memory.required_bytes
            return sum(totals[each.name] for each in types if each.memory_bytes >= required) < option.need.num_gpus

        required = min((option.plan.memory.required_bytes for option in options), default=0)
        return Reason(
            code=ReasonCode.NEVER_FITS if all(map(never, options)) else ReasonCode.WAITING_FOR_GPUS,
            remedy=f"more GPUs with {format_bytes(required)}",
        )


class SweepJudge(Judge):
    """The same for a sweep that may move jobs, from what each job found at its turn.

    board: of the state to which the decision leads. missed: by run key.
    """

    def __init__(self, board: Board, missed: Mapping[str, Missed]) -> None:
        super().__init__(board)
        self._missed = missed
        self._holders: dict[str, str] = {}

    def _alike(self, contender: Contender) -> object:
        return contender.asks, contender.menu.required_bytes, id(self._missed[contender.job.run_key])

    def _option(self, contender: Contender, option: Option) -> str:
        need, name, missed = option.need, option.plan.plan_id, self._missed[contender.job.run_key]
        over = next((limit for choice, limit, _ in missed.over if choice.need == need), None)
        if over is not None:
            return f"{name} is over the quota of {over.title}."
        kept = _in_the_way(missed, need)
        if kept is not None:
            return f"{name} would fit what was left at its turn, were it not kept for {kept.claim.job.job_name}."
        return f"{name} needs {asked(need)}; {self._left(missed, [need])}."

    def _judge(self, contender: Contender) -> Reason:
        missed = self._missed[contender.job.run_key]
        possible = [option for option in contender.options if self.board.fits_empty(option.need)]
        if not possible:
            return impossible(self.board.state, [option.need for option in contender.options])
        over = {choice.need: (limit, held) for choice, limit, held in missed.over}
        allowed = [each for each in possible if each.need not in over]
        forbidden = [each for each in possible if each.need in over and _is_left(missed, each.need)]
        if forbidden or not allowed:
            nearest = min(forbidden or possible, key=lambda each: _excess(each.need, *over[each.need]))
            return over_quota(nearest.plan, *over[nearest.need])
        for need in (each.need for each in allowed):
            kept = _in_the_way(missed, need)
            if kept is not None:
                return _kept_for(kept, need, missed)
        return self._lack(contender, allowed, allowed)

    def _found(self, contender: Contender, needs: Sequence[Need]) -> str:
        return self._left(self._missed[contender.job.run_key], needs)

    def _left(self, missed: Missed, needs: Sequence[Need]) -> str:
        """What was left of the types of ``needs``, and who has the rest of the first."""
        totals = self.board.state.cluster.num_gpus_by_type
        types = list(dict.fromkeys(need.gpu_type for need in needs))
        left = [f"{max(0, missed.left.get(each, 0))} of {totals[each]} {each}" for each in types]
        told, holders = f"left at its turn: {listed(left, last='and', more='more types')}", self._holders_of(types[0])
        return f"{told}; {types[0]} is held by {holders}" if holders else told

    def _holders_of(self, gpu_type: str) -> str:
        if gpu_type not in self._holders:
            jobs = (job for job in self.board.state.running.values() if job.plan.gpu_type == gpu_type)
            self._holders[gpu_type] = listed(sorted(job.job_name for job in jobs), last="and")
        return self._holders[gpu_type]


def _is_left(missed: Missed, need: Need) -> bool:
    return need.num_gpus <= missed.left.get(need.gpu_type, 0)


def _in_the_way(missed: Missed, need: Need) -> Kept | None:
    """The job for whose sake ``need`` found too few GPUs, if it is for that."""
    kept = missed.kept.get(need.gpu_type)
    if kept is None or _is_left(missed, need):
        return None
    return kept if need.num_gpus <= missed.left.get(need.gpu_type, 0) + kept.num_gpus else None


def _excess(need: Need, limit: Limit, held: int) -> int:
    return held + need.num_gpus - limit.num_gpus


def _kept_for(kept: Kept, need: Need, missed: Missed) -> Reason:
    left, name = max(0, missed.left.get(need.gpu_type, 0)) + kept.num_gpus, kept.claim.job.job_name
    return Reason(
        code=ReasonCode.WAITING_BEHIND_HEAD,
        detail=f"{left} {need.gpu_type} {are(left)} left, but {kept.num_gpus} {are(kept.num_gpus)} kept for {name}, "
        "which is due or matters more.",
        remedy=f"{name} started or cancelled",
    )


def _for_gpus(needs: Sequence[Need], found: str) -> Reason:
    types = list(dict.fromkeys(need.gpu_type for need in needs))
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        detail=f"Needs {listed([asked(need) for need in needs], more='other plans')}; {found}.",
        remedy=f"more idle {listed(types)}",
    )


def _behind_line(head: QueuedJob) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_BEHIND_HEAD,
        detail=f"It would fit, but {head.job_name} is first in line and blocks all jobs behind it.",
        remedy=f"{head.job_name} started or cancelled",
    )
