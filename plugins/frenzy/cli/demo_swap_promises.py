"""What a swap promises, judged from what the ledger and the workers recorded of two runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from frenzy.cli.demo_promises import Promise, loss_equals_control
from frenzy.cli.demo_shared_promises import (
    all_free,
    all_succeeded,
    batch_kept,
    budget_untouched,
    moved,
    nothing_lost,
    overlap_s,
)
from frenzy.core.lifecycle.moves import MOVE_REASONS
from frenzy.core.runs.ledger import Attempt
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.views import MemoryView
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.units import format_bytes

_FORESEEN = (
    ReasonCode.MEMORY_PRESSURE_FORECAST,
    ReasonCode.MEMORY_PRESSURE_USAGE,
    ReasonCode.ALLOCATOR_RETRIES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One run at its end, and the losses by step of the same job never interrupted."""

    view: RunView
    memory: MemoryView
    control_losses: Mapping[int, float]
    control_result: AttemptResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapStory:
    """The two runs at their ends, and the GPUs that were not free then."""

    roomy: Watched
    growing: Watched
    num_held_gpus: int


def judge(story: SwapStory) -> tuple[Promise, ...]:
    """Every promise, in the order of the story."""
    roomy, growing = story.roomy.view, story.growing.view
    return (
        all_succeeded("Both jobs trained to their last step", roomy, growing),
        _outgrew(growing),
        _gave_way(story),
        _took_over(story),
        _both_went_on(story),
        _kept_what_it_got(growing),
        nothing_lost(MOVE_REASONS | frozenset(_FORESEEN), roomy, growing),
        batch_kept(roomy, growing),
        budget_untouched(roomy),
        _same_loss("growing", story.growing),
        _same_loss("roomy", story.roomy),
        all_free(story.num_held_gpus),
    )


def _outgrew(growing: RunView) -> Promise:
    """It stopped before its memory ran out, and went on where a GPU has more."""
    pairs = [(one, next_) for one, next_ in moved(growing, *_FORESEEN) if _memory(next_) > _memory(one)]
    told = [f"{format_bytes(_memory(one))} -> {format_bytes(_memory(next_))}" for one, next_ in pairs]
    name = "The growing job left its GPU for a larger one before memory ran out"
    return Promise(name=name, kept=bool(pairs), evidence=", ".join(told))


def _memory(attempt: Attempt) -> int:
    return attempt.plan.gpu_memory_bytes


def _exchange(story: SwapStory) -> tuple[Attempt, Attempt] | None:
    """The roomy job's attempt that gave way, and the growing one's on its GPUs."""
    for before, _ in moved(story.roomy.view, *MOVE_REASONS):
        for _, after in moved(story.growing.view, *_FORESEEN):
            if _nodes(before) & _nodes(after) and before.plan.gpu_type == after.plan.gpu_type:
                return before, after
    return None


def _nodes(attempt: Attempt) -> set[str]:
    return {each.node for each in attempt.placement.allocations}


def _gave_way(story: SwapStory) -> Promise:
    found = _exchange(story)
    told = found[0].outcome if found is not None else None
    named = told is not None and story.growing.view.run.job.name in told.sentence
    name = "The roomy job moved at a checkpoint, and was told for whom"
    return Promise(name=name, kept=named, evidence=told.sentence if told else "")


def _took_over(story: SwapStory) -> Promise:
    found = _exchange(story)
    name = "The growing job went on where the roomy one had been"
    return Promise(name=name, kept=found is not None, evidence=", ".join(_nodes(found[1])) if found else "")


def _both_went_on(story: SwapStory) -> Promise:
    """Seconds in which both trained, each at its new place."""
    shared_s = sum(
        overlap_s(elsewhere, larger)
        for _, elsewhere in moved(story.roomy.view, *MOVE_REASONS)
        for _, larger in moved(story.growing.view, *_FORESEEN)
    )
    return Promise(name="Both trained at their new places at once", kept=shared_s > 0, evidence=f"{shared_s:.0f} s")


def _kept_what_it_got(growing: RunView) -> Promise:
    num = len(list(moved(growing, *MOVE_REASONS)))
    return Promise(name="What was given for memory was not taken back", kept=num == 0, evidence=f"{num} more moves")


def _same_loss(which: str, run: Watched) -> Promise:
    return replace(loss_equals_control(run), name=f"The {which} job's loss equals that of an uninterrupted run")
