"""How the room of a GPU type grows as its running jobs end."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.has_world import facts, node, plan, running

from frenzy.core.capacity.free_capacity import FreeOfType, Need, place
from frenzy.core.scheduling import BackfillPolicy, SchedulingState
from frenzy.core.scheduling.engine.left_over import Timeline

NODES = [node("n1", "v100", 4), node("n2", "v100", 4)]

ends = st.lists(st.sampled_from((5.0, 10.0, 20.0, 20.0, 40.0, None)), max_size=8)


def state_of(end_times: list[float | None]) -> SchedulingState:
    """Jobs with one GPU each, four to a node, of which each ends when told."""
    jobs = [
        running(f"j{at}", plan("v100", 1), ("n1" if at < 4 else "n2", 1), end_s=end_s)
        for at, end_s in enumerate(end_times)
    ]
    return SchedulingState.of(facts(NODES, [], jobs), BackfillPolicy())


def at(state: SchedulingState, now_s: float) -> Timeline:
    ends = [(end_s, state.running[run_key]) for end_s, run_key in state.ends.get("v100", ())]
    return Timeline(state.room.by_type["v100"], ends, now_s, state.policy)


def one_by_one(state: SchedulingState, now_s: float) -> list[tuple[float, tuple[str, ...], FreeOfType]]:
    """Each time at which jobs are expected to end, their names and the room then: by letting them end in turn."""
    expected = {
        job.run_key: math.inf if job.expected_end_s is None else max(now_s, job.expected_end_s)
        for job in state.running.values()
    }
    found = []
    for time_s in sorted({*expected.values(), math.inf}):
        names = sorted(run_key for run_key, end_s in expected.items() if end_s == time_s)
        state = state.without(names)
        found.append((time_s, tuple(f"job-{run_key}" for run_key in names), state.room.by_type["v100"]))
    return found


@settings(max_examples=100, deadline=None)
@given(ends, st.lists(st.sampled_from((0.0, 5.0, 12.0, 20.0, 50.0)), min_size=1, max_size=3), st.integers(1, 8))
def test_the_room_grows_as_if_the_jobs_ended_one_after_the_other(
    end_times: list[float | None], times: list[float], num_gpus: int
) -> None:
    state = state_of(end_times)
    need = Need("v100", num_gpus, 1, 0, 0, 0)
    for now_s in times:
        timeline, walked = at(state, now_s), one_by_one(state, now_s)
        fitting = [(time_s, names, room) for time_s, names, room in walked if place(room, need) is not None]
        if place(state.room.by_type["v100"], need) is not None:
            continue
        time_s, names, room = fitting[0]
        placement = place(room, need)
        assert placement is not None
        left = {each.node: room.free[each.node].plus(need.on_node(each.num_gpus), -1) for each in placement.allocations}
        assert timeline.earliest(need) == (time_s, names, left)
        assert timeline.soonest(num_gpus) == next(at_s for at_s, _, room in walked if room.idle_gpus >= num_gpus)


def test_jobs_past_their_expected_end_may_all_end_now() -> None:
    timeline = at(state_of([5.0, 10.0, 20.0, None] + [None] * 4), 12.0)
    assert timeline.soonest(2) == 12.0
    assert timeline.soonest(3) == 20.0
    assert timeline.soonest(4) == math.inf
    found = timeline.earliest(Need("v100", 2, 1, 0, 0, 0))
    assert found is not None
    assert found[:2] == (12.0, ("job-j0", "job-j1"))
