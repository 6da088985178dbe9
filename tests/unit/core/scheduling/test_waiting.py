"""The queue as an index: what is said of a line of jobs that ask for the same, and whose turn it is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.has_world import facts, node, plan, waiting

from frenzy.core.scheduling import BackfillPolicy, SchedulingState
from frenzy.core.scheduling.engine.queue_index import Limits, Turns
from frenzy.core.values.scheduling_facts import QueuedJob

run_times = st.sampled_from((10.0, 20.0, 30.0, 40.0))
changes = st.lists(st.tuples(st.sampled_from(("arrival", "withdrawal")), run_times, run_times), max_size=12)


def job(name: str, one_s: float, two_s: float) -> QueuedJob:
    """A job that may have one GPU or, no slower, two; whatever its run times, it asks for the same."""
    both = (plan("v100", 2, run_s=min(one_s, two_s)), plan("v100", 1, run_s=max(one_s, two_s) + 1))
    return waiting(name, *both, submitted_s=float(name))


@settings(max_examples=100, deadline=None)
@given(changes, st.sampled_from((1, 4)))
def test_the_least_run_times_of_a_line_are_those_of_its_jobs_whoever_comes_and_leaves(
    events: list[tuple[str, float, float]], ask_every: int
) -> None:
    state = SchedulingState.of(facts([node("n1", "v100", 4)], [job("0", 20.0, 30.0)], []), BackfillPolicy())
    for number, (kind, one_s, two_s) in enumerate(events, start=1):
        if kind == "arrival":
            state = state.submit(job(str(number), one_s, two_s))
        elif len(state.waiting) > 1:
            state = state.withdraw(next(iter(state.waiting)).job.run_key)
        (line,) = state.waiting.lines.values()
        if number % ask_every == 0:
            each_option = zip(*(contender.run_times for contender in state.waiting), strict=True)
            assert line.least_run_s == tuple(min(times) for times in each_option)


def test_a_line_kept_to_limits_has_turns_for_jobs_within_them_only() -> None:
    jobs = [job("0", 100.0, 90.0), job("1", 40.0, 30.0), job("2", 100.0, 80.0), job("3", 20.0, 10.0)]
    state = SchedulingState.of(facts([node("n1", "v100", 4)], jobs, []), BackfillPolicy())
    turns, seen = Turns(state.waiting), list[str]()
    for contender in turns:
        seen.append(contender.job.run_key)
        turns.keep_to(Limits(10.0, ((1, 55.0),)))
    assert seen == ["0", "1", "3"]


def test_a_closed_line_has_no_more_turns() -> None:
    other = waiting("1", plan("v100", 4), submitted_s=1.0)
    jobs = [job("0", 100.0, 90.0), other, job("2", 100.0, 80.0)]
    state = SchedulingState.of(facts([node("n1", "v100", 4)], jobs, []), BackfillPolicy())
    turns, seen = Turns(state.waiting), list[str]()
    for contender in turns:
        seen.append(contender.job.run_key)
        turns.close()
    assert seen == ["0", "1"]
