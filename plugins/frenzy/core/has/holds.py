"""Why each waiting job waits: one reason, in a sentence, with the smallest remedy.

Judged on the board of a pass that started nothing, so that every sentence speaks of the same
moment. A sentence that depends only on what is asked for is made once for all jobs that ask it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from frenzy.core.has.board import Board
from frenzy.core.has.deadlines import lost_sentence
from frenzy.core.has.impossible import impossible
from frenzy.core.has.options import Contender, Option
from frenzy.core.has.placement import place, shortfall
from frenzy.core.has.queue_holds import QueueJudge
from frenzy.core.has.reservation import Reservation
from frenzy.core.has.room import Free, Need, TypeRoom
from frenzy.core.has.wording import about, are, asked, host_needs, listed, more_gpus
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.plan import ResourcePlan
from frenzy.core.values.queue import Hold, QueuedJob
from frenzy.core.values.units import counted, format_bytes


def holds(board: Board, expected_starts: Mapping[str, float]) -> list[Hold]:
    """One hold for each waiting job, in queue order.

    expected_starts: time by run key, for the jobs whose start could be foreseen.
    """
    judge = Judge(board)
    return [
        Hold(
            run_key=contender.job.run_key,
            reason=judge.reason(contender, expected_starts.get(contender.job.run_key)),
            position=position,
            expected_start_s=expected_starts.get(contender.job.run_key),
        )
        for position, contender in enumerate(board.state.waiting, start=1)
    ]


class Judge:
    """Finds the one reason for which each waiting job of a board waits."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._own = {each.job.run_key: each for each in board.reservations.values()}
        self._shared: dict[str, Reason] = {}
        self._of_rules = QueueJudge(board)

    def reason(self, contender: Contender, expected_start_s: float | None) -> Reason:
        """Why ``contender`` waits; the remedy says when, if that could be foreseen."""
        job = contender.job
        if job.run_key in self._board.state.running:
            detail = f"Workers of the last attempt of {job.job_name} still hold their GPUs."
            return Reason(code=ReasonCode.WAITING_FOR_OLD_WORKERS, detail=detail)
        own = self._own.get(job.run_key)
        if own is not None and own.instead_of is not None:
            return self._better_plan(own, own.instead_of)
        reason = self._shared.get(contender.asks)
        if reason is None:
            reason = self._shared[contender.asks] = self._of_rules.quota(contender) or self._judge(contender)
        lost = lost_sentence(self._board.with_deadline_in_reach(contender), self._board.now_s)
        if lost is not None:
            reason = replace(reason, detail=f"{reason.sentence} {lost}")
        return self._with_time(reason, own, expected_start_s)

    def _judge(self, contender: Contender) -> Reason:
        board, options = self._board, self._board.quotas.within(contender).options
        if board.state.rules.counts_gpus_only:
            return self._mixed(options)
        possible = [option.need for option in options if board.fits_empty(option.need)]
        if not possible:
            return impossible(board.state, [option.need for option in options])
        for need in possible:
            if board.fits_now(need) is None:
                continue
            if board.head_of_line is not None:
                return _behind_line(board.head_of_line)
            if need.gpu_type in board.reservations:
                return self._behind_head(need, board.reservations[need.gpu_type])
            return self._kept(need)
        return (
            self._host_short(possible)
            or self._memory_short(options, possible)
            or self._of_rules.share(contender.job)
            or self._gpus_short(possible)
        )

    def _with_time(self, reason: Reason, own: Reservation | None, expected_start_s: float | None) -> Reason:
        if reason.remedy is None or expected_start_s is None:
            return reason
        when = about(expected_start_s - self._board.now_s)
        if own is not None and own.promise.after:
            when += f", when {listed(own.promise.after, last='and')} {'ends' if len(own.promise.after) == 1 else 'end'}"
        return replace(reason, remedy=f"{reason.remedy}; {when}")

    def _better_plan(self, own: Reservation, now: ResourcePlan) -> Reason:
        plan, start_s = own.promise.option.plan, own.promise.start_s
        assert start_s is not None, "only a start that is known is worth waiting for"
        earlier_s = self._board.now_s + own.job.work_left * now.predicted_run_s - own.promise.end_s
        cheaper = (
            f"costs {1 - plan.predicted_cost / now.predicted_cost:.0%} less" if now.predicted_cost else "is cheaper"
        )
        gain = f"ends {about(earlier_s)} earlier" if earlier_s > 0 else cheaper
        reason = Reason(
            code=ReasonCode.WAITING_FOR_BETTER_PLAN,
            detail=f"{plan.plan_id}, expected soon, {gain} than {now.plan_id}, which could start now.",
            remedy=f"{asked(own.promise.option.need)} free",
        )
        return self._with_time(reason, own, start_s)

    def _behind_head(self, need: Need, head: Reservation) -> Reason:
        idle = self._board.room.idle_gpus(need.gpu_type)
        start_s = head.promise.start_s
        when = "" if start_s is None else f" and expected to start in {about(start_s - self._board.now_s)}"
        missing = max(1, self._shortfall(self._board.spare(need.gpu_type), need))
        return Reason(
            code=ReasonCode.WAITING_BEHIND_HEAD,
            detail=f"{idle} {need.gpu_type} {are(idle)} idle, but {head.job.job_name} is first in line for them{when}.",
            remedy=f"{more_gpus(missing, need)} free, or a priority above {head.job.priority}",
        )

    def _kept(self, need: Need) -> Reason:
        idle = self._board.room.idle_gpus(need.gpu_type)
        return Reason(
            code=ReasonCode.WAITING_BEHIND_HEAD,
            detail=f"{idle} {need.gpu_type} {are(idle)} idle, but kept for jobs that are due earlier or matter more.",
            remedy=f"{more_gpus(need.num_gpus, need)} free, or a higher priority",
        )

    def _host_short(self, needs: Sequence[Need]) -> Reason | None:
        for need in needs:
            room = self._board.room.by_type[need.gpu_type]
            if place(room, need._replace(host_bytes=0, millicpus_per_gpu=0)) is not None:
                return Reason(
                    code=ReasonCode.WAITING_FOR_HOST_RESOURCES,
                    detail=f"{room.idle_gpus} {need.gpu_type} {are(room.idle_gpus)} idle, "
                    f"but a node must also have {host_needs(need)} free.",
                    remedy=_least_host_lack(room, need),
                )
        return None

    def _memory_short(self, options: Sequence[Option], possible: Sequence[Need]) -> Reason | None:
        board = self._board
        sizes = {each.name: each.memory_bytes for each in board.state.cluster.gpu_types}
        largest = max((sizes[name] for name, room in board.room.by_type.items() if room.idle_gpus), default=0)
        required = min(option.plan.memory.required_bytes for option in options)
        if not 0 < largest < required:
            return None
        reason = self._gpus_short(possible)
        detail = f"Idle GPUs have {format_bytes(largest)} at most; the job needs {format_bytes(required)} on each."
        return replace(reason, code=ReasonCode.WAITING_FOR_GPU_MEMORY, detail=detail)

    def _gpus_short(self, needs: Sequence[Need]) -> Reason:
        board = self._board
        totals = board.state.cluster.num_gpus_by_type
        types = dict.fromkeys(need.gpu_type for need in needs)
        idle = [f"{board.room.idle_gpus(each)} of {totals[each]} {each}" for each in types]
        wanted = listed([asked(need) for need in needs], more="other plans")
        missing, need = min(
            ((self._shortfall(board.room.by_type[need.gpu_type], need), need) for need in needs),
            key=lambda each: each[0],
        )
        return Reason(
            code=ReasonCode.WAITING_FOR_GPUS,
            detail=f"Needs {wanted}; idle: {listed(idle, last='and', more='more types')}.",
            remedy=f"{more_gpus(max(1, missing), need)} free",
        )

    def _mixed(self, options: Sequence[Option]) -> Reason:
        """For the published algorithm, which takes idle GPUs of any type that is large enough."""
        board = self._board
        types = board.state.cluster.gpu_types
        totals = board.state.cluster.num_gpus_by_type
        lacking = []
        for option in options:
            fitting = [each.name for each in types if each.memory_bytes >= option.plan.memory.required_bytes]
            idle = sum(board.room.idle_gpus(name) for name in fitting)
            never = sum(totals[name] for name in fitting) < option.need.num_gpus
            lacking.append((never, option.need.num_gpus - idle, option.plan.memory.required_bytes))
        never, missing, required = min(lacking, default=(True, 1, 0))
        return Reason(
            code=ReasonCode.NEVER_FITS if never else ReasonCode.WAITING_FOR_GPUS,
            remedy=f"{counted(max(1, missing), 'more GPU')} with {format_bytes(required)} or more",
        )

    def _shortfall(self, room: TypeRoom, need: Need) -> int:
        return shortfall(room, need, self._board.state.empty.by_type[need.gpu_type])


def _behind_line(head: QueuedJob) -> Reason:
    return Reason(
        code=ReasonCode.WAITING_BEHIND_HEAD,
        detail=f"It would fit, but {head.job_name} is first in line and blocks all jobs behind it.",
        remedy=f"{head.job_name} started or cancelled, or a priority above {head.priority}",
    )


def _least_host_lack(room: TypeRoom, need: Need) -> str:
    """What the node with idle GPUs that comes closest lacks."""

    def lack(name: str) -> Free:
        free = room.free[name]
        wanted = need.on_node(min(need.num_gpus, free.num_gpus))
        return Free(0, max(0, wanted.host_bytes - free.host_bytes), max(0, wanted.millicpus - free.millicpus))

    names = [name for bucket in room.by_idle[1:] for name in bucket if name not in need.excluded_nodes]
    lacks = {name: lack(name) for name in names}
    short = [name for name in names if lacks[name] != Free(0, 0, 0)]
    nearest = min(short, key=lambda name: (lacks[name].host_bytes, lacks[name].millicpus, name))
    parts = [f"{format_bytes(lacks[nearest].host_bytes)} of host memory"] if lacks[nearest].host_bytes else []
    parts += [f"{lacks[nearest].millicpus / 1000:g} CPUs"] if lacks[nearest].millicpus else []
    return f"{' and '.join(parts)} more free on {nearest}"
