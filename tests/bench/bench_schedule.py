"""Cost of scheduling decisions: CPU time of ``has`` beside its rivals, in one run on one machine.

``make bench-schedule`` prints a table and writes ``build/bench/schedule.json``, a list of {name, value,
unit, goal, ok}, and ``docs/images/schedule-growth.png``. Times are CPU times of this process, so that other work on
the machine counts little; rivals that are compared decide on the same facts, in turn.

- A *full pass* decides on everything, from an indexed state: who starts, moves, gives way. It is repeated,
  so that most jobs are known from the pass before, as in operation; "all jobs new to it" is without that.
- *One decision* is that after one event, its state made from facts.
- A round of ``sia-ilp`` is all it does to decide: configurations, integer program, placement.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.bench.report import figure, publish
from tests.bench.schedule_facts import busy, cluster_of, events, jobs_on, now_of, rigid, with_own_plans
from tests.bench.schedule_growth import cpu_s, draw_growth, growth, median_cpu_s, pass_s
from tests.placement_gap import gap_figures

from frenzy.core.scheduling import HasPolicy, SchedulingState, apply_actions, decide, schedule
from frenzy.core.values.scheduling_facts import QueuedJob, SchedulingFacts
from frenzy.sim.engine import simulate
from frenzy.sim.workloads import WorkloadSpec, make_scenario
from tools.policy_bench.rivals import scheduler_named

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "schedule-growth.png"
NUM_QUEUED, NUM_ACTIVE, NUM_NEW = 10_000, 12_500, 200
NUM_BESIDE_SIA = 1280


def main() -> list[dict[str, Any]]:
    """Measure everything, print the table, write the JSON file and the picture, return the rows."""
    rows = [*against_sia(), *whole_trace(), *large(), *gap_figures()]
    found = growth()
    draw_growth(found, PICTURE)
    return publish("schedule", [*rows, *found.rows])


def against_sia() -> list[dict[str, Any]]:
    """Decisions at 2,048 GPUs and 1,280 jobs, all of which may be moved: ``sia-ilp`` makes one each round, over all
    jobs; ``has`` one after each event, and a full pass where nothing is known of the one before. For rounds and full
    passes one more job waits every other time.
    """
    all_jobs = jobs_on("2048", NUM_BESIDE_SIA + NUM_NEW)
    jobs, new = all_jobs[:NUM_BESIDE_SIA], all_jobs[NUM_BESIDE_SIA:]
    extra = new[0]
    facts, now_s = busy(cluster_of("2048"), jobs), now_of((*jobs, extra))
    calls = {name: _call_of(name, facts, extra, now_s) for name in ("sia-ilp", "has")}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(10):
        for name, call in calls.items():
            times[name].append(cpu_s(call))
    has_s, sia_s = statistics.median(times["has"]), statistics.median(times["sia-ilp"])
    one_s = statistics.mean(seconds for seconds, _ in decision_times(facts, new, now_of(jobs)))
    size = f"2,048 GPUs, {len(facts.running):,} running, {len(facts.queued):,} waiting"
    return [
        figure(f"{size}: sia-ilp, one round", 1000 * sia_s, "ms"),
        figure(f"{size}: has, one decision, mean of {2 * len(new)}", 1000 * one_s, "ms"),
        *_ratio(f"{size}: one decision", one_s, sia_s, 100),
        figure(f"{size}: has, full pass", 1000 * has_s, "ms"),
        *_ratio(f"{size}: full pass", has_s, sia_s, 100),
    ]


def _call_of(name: str, facts: SchedulingFacts, extra: QueuedJob, now_s: float) -> Callable[[], object]:
    scheduler = scheduler_named(name)
    both = (facts, replace(facts, queued=(*facts.queued, extra)))
    states = cycle([SchedulingState.of(each, scheduler.rules) for each in both])
    return lambda: scheduler.decide(next(states), now_s)


def _ratio(what: str, has_s: float, sia_s: float, times_less: float) -> list[dict[str, Any]]:
    return [
        figure(f"{what}, sia-ilp / has", sia_s / has_s, "times"),
        figure(f"{what}, has / sia-ilp", has_s / sia_s, "", goal=1 / times_less),
    ]


def whole_trace() -> list[dict[str, Any]]:
    """All decisions of a simulation of 160 jobs on 64 GPUs, upkeep of the state included."""
    scenario = make_scenario(WorkloadSpec(trace="philly-160-1", cluster="64"))
    has_s, sia_s = (simulate(scenario, scheduler_named(name)).scheduler_cpu_s for name in ("has", "sia-ilp"))
    what = f"whole trace {scenario.name}"
    return [figure(f"{what}: has", 1000 * has_s, "ms"), *_ratio(what, has_s, sia_s, 50)]


def large() -> list[dict[str, Any]]:
    """6,212 GPUs on 1,213 nodes, 10,000 waiting jobs, all that run may be moved; and the same with none that may."""
    jobs = jobs_on("6212", NUM_ACTIVE + NUM_NEW)
    active, new = jobs[:NUM_ACTIVE], jobs[NUM_ACTIVE:]
    now_s = now_of(active)
    facts = busy(cluster_of("6212"), active, num_waiting=NUM_QUEUED)
    still = rigid(facts)
    size = f"6,212 GPUs, {len(facts.running):,} running, {len(facts.queued):,} waiting"
    policy = HasPolicy()
    told_s = median_cpu_s(lambda: schedule(facts, now_s, policy))
    from_facts_s = median_cpu_s(lambda: decide(facts, now_s, policy))
    return [
        figure(f"{size}: has, full pass", 1000 * pass_s(facts, "has", now_s), "ms", goal=100.0),
        figure(f"{size}: has, full pass, all jobs new to it", 1000 * new_to_it_s(facts, now_s), "ms", goal=100.0),
        figure(f"{size}: has, full pass, none may be moved", 1000 * pass_s(still, "has", now_s), "ms", goal=100.0),
        figure(f"{size}: has, full pass and why each job waits", 1000 * told_s, "ms", goal=100.0),
        figure(f"{size}: has, full pass, state made from facts", 1000 * from_facts_s, "ms"),
        *own_plans(facts, size, now_s),
        figure(f"{size}: backfill, full pass", 1000 * pass_s(facts, "backfill", now_s), "ms"),
        figure(f"{size}: frenzy-paper, full pass", 1000 * pass_s(facts, "frenzy-paper", now_s), "ms"),
        *_one_decision(f"{size}: has", facts, new, now_s),
        *_one_decision(f"{size}: has, none may be moved", still, rigid_jobs(new), now_s),
        *memory(facts, size),
    ]


def own_plans(facts: SchedulingFacts, size: str, now_s: float) -> list[dict[str, Any]]:
    """With plans of each job's own: the first pass of a process, and a later one, which finds what that one made."""
    policy = HasPolicy()
    strange = [with_own_plans(facts) for _ in range(3)]
    first_s = statistics.median(cpu_s(partial(schedule, each, now_s, policy)) for each in strange)
    later_s = median_cpu_s(lambda: schedule(strange[-1], now_s, policy))
    what = f"{size}: has, full pass and why each job waits, each job with plans of its own"
    return [
        figure(f"{what}, the first of a process", 1000 * first_s, "ms", goal=100.0),
        figure(f"{what}, a later one", 1000 * later_s, "ms", goal=100.0),
    ]


def new_to_it_s(facts: SchedulingFacts, now_s: float) -> float:
    """CPU seconds of a full pass over a state none of whose jobs the last decision saw."""
    scheduler = scheduler_named("has")
    states = [SchedulingState.of(facts, scheduler.rules) for _ in range(3)]
    return statistics.median(cpu_s(partial(scheduler.decide, state, now_s)) for state in states)


def rigid_jobs(jobs: tuple[QueuedJob, ...]) -> tuple[QueuedJob, ...]:
    return rigid(SchedulingFacts(cluster=cluster_of("6212"), queued=jobs, running=())).queued


def _one_decision(what: str, facts: SchedulingFacts, new: tuple[QueuedJob, ...], now_s: float) -> list[dict[str, Any]]:
    """All decisions, then apart: those that change nothing, and those that start or move jobs, by the job."""
    measured = decision_times(facts, new, now_s)
    still = [seconds for seconds, num_actions in measured if not num_actions]
    by_job = [seconds / num_actions for seconds, num_actions in measured if num_actions]
    times = [seconds for seconds, _ in measured]
    mean = statistics.mean(num_actions for _, num_actions in measured)
    return [
        figure(f"{what}, one decision, median of {len(times)}", 1000 * statistics.median(times), "ms"),
        figure(f"{what}, one decision, p99", 1000 * _p99(times), "ms", goal=100.0),
        figure(f"{what}, jobs started or moved by a decision, mean", mean, "jobs"),
        figure(f"{what}, one decision that starts or moves none, p99 of {len(still)}", 1000 * _p99(still), "ms"),
        figure(f"{what}, one decision, for each job started or moved, p99", 1000 * _p99(by_job), "ms"),
    ]


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))] if values else 0.0


def decision_times(facts: SchedulingFacts, new: tuple[QueuedJob, ...], now_s: float) -> list[tuple[float, int]]:
    """CPU seconds and number of actions of each decision while the jobs ``new`` arrive and as many end, in turn.

    Timed: the decision, its state made from facts, as the product makes it.
    """
    scheduler = scheduler_named("has")
    facts = apply_actions(facts, decide(facts, now_s, scheduler.rules), now_s=now_s)
    gc.collect()
    measured = []
    for when_s, happen in events(new, now_s):
        facts = happen(facts)
        began_s = time.process_time()
        actions = decide(facts, when_s, scheduler.rules)
        measured.append((time.process_time() - began_s, len(actions)))
        facts = apply_actions(facts, actions, now_s=when_s)
    return measured


def memory(facts: SchedulingFacts, size: str) -> list[dict[str, Any]]:
    """What the indexed state holds beyond the facts, jobs and plans themselves."""
    gc.collect()
    tracemalloc.start()
    state = SchedulingState.of(facts, scheduler_named("has").rules)
    held, _ = tracemalloc.get_traced_memory()
    decide(state, now_of(facts.queued), state.policy)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return [
        figure(f"{size}: memory of the state, beyond the facts", held / 2**20, "MiB"),
        figure(f"{size}: peak during a full pass", peak / 2**20, "MiB"),
    ]


if __name__ == "__main__":
    main()
