"""Cost of one scheduling pass: CPU time on a busy mixed cluster with a long queue.

Run it alone, or through ``make bench``; it prints a table and writes ``build/bench/schedule.json``,
a list of {name, value, unit, goal, ok}. Every figure is the median of several passes over the same
state, in process CPU time, so that other work on the machine does not count.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frenzy.core.cluster import Cluster, Node
from frenzy.core.gpu_catalogue import CATALOGUE
from frenzy.core.has import HasPolicy, PaperPolicy, Policy, SchedulingState, apply_actions, schedule
from frenzy.core.plan import MemoryPrediction, ResourcePlan
from frenzy.core.queue import QueuedJob, SchedulingFacts
from frenzy.core.units import GIB

OUTPUT = Path(__file__).parents[2] / "build" / "bench" / "schedule.json"
CARDS = ("a100-80", "a100-40", "v100-32", "rtx-3090", "l40s", "t4")
NOW_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One size. ``pass_goal_s`` and ``decision_goal_s`` are for the default policy."""

    name: str
    num_nodes: int
    num_queued: int
    pass_goal_s: float
    decision_goal_s: float


CASES = (
    Case(name="100 nodes, 500 queued", num_nodes=100, num_queued=500, pass_goal_s=0.05, decision_goal_s=0.001),
    Case(name="1,200 nodes, 10,000 queued", num_nodes=1200, num_queued=10_000, pass_goal_s=0.1, decision_goal_s=0.001),
)


def main() -> list[dict[str, Any]]:
    """Measure every case, print the table, write the JSON file, return its rows."""
    rows = [row for case in CASES for row in measure(case)]
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        goal = "" if row["goal"] is None else f"goal {row['goal']:g} {row['unit']}  {'ok' if row['ok'] else 'MISSED'}"
        print(f"{row['name']:72} {row['value']:10.3f} {row['unit']}  {goal}")
    return rows


def measure(case: Case) -> list[dict[str, Any]]:
    """Rows for one case."""
    policy = HasPolicy()
    facts = busy_facts(case, policy)
    state = SchedulingState.of(facts, policy)
    full_s = median_cpu_s(lambda: schedule(state, NOW_S, policy))
    from_facts_s = median_cpu_s(lambda: schedule(facts, NOW_S, policy), repeats=3)
    bare = SchedulingState.of(facts, HasPolicy(num_forecasts=0))
    decision_s = median_cpu_s(lambda: one_decision(bare), repeats=51)
    rows = [
        row(f"{case.name}: has, full pass over an indexed state", full_s, case.pass_goal_s),
        row(f"{case.name}: has, full pass, indices made from facts", from_facts_s),
        row(f"{case.name}: has, one job ends and the first in line is decided on", decision_s, case.decision_goal_s),
    ]
    paper = PaperPolicy()
    paper_state = SchedulingState.of(busy_facts(case, paper), paper)
    return [
        *rows,
        row(f"{case.name}: frenzy-paper, full pass", median_cpu_s(lambda: schedule(paper_state, NOW_S, paper))),
    ]


def one_decision(state: SchedulingState) -> None:
    """One job ends, and it is decided whether the job at the head of the queue starts, and where."""
    ended = state.finish(next(iter(state.running)))
    schedule(ended.with_front(1), NOW_S, ended.rules.policy)


def row(name: str, seconds: float, goal_s: float | None = None) -> dict[str, Any]:
    """One line of the report, in milliseconds."""
    return {
        "name": name,
        "value": round(seconds * 1000, 4),
        "unit": "ms",
        "goal": None if goal_s is None else goal_s * 1000,
        "ok": goal_s is None or seconds <= goal_s,
    }


def median_cpu_s(call: Callable[[], object], *, repeats: int = 7) -> float:
    """Median process CPU time of ``call``."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times)


def busy_facts(case: Case, policy: Policy) -> SchedulingFacts:
    """A cluster filled by ``policy`` itself, and a queue behind it."""
    rng = random.Random(case.num_nodes)
    jobs = [random_job(rng, f"job-{index:05d}", index) for index in range(case.num_queued + case.num_nodes)]
    first = SchedulingFacts(cluster=mixed_cluster(case.num_nodes), queued=tuple(jobs), running=())
    full = apply_actions(first, schedule(first, NOW_S, policy), now_s=NOW_S)
    return SchedulingFacts(cluster=full.cluster, queued=full.queued[: case.num_queued], running=full.running)


def mixed_cluster(num_nodes: int) -> Cluster:
    """Nodes of 4 and 8 GPUs, the types in turn."""
    nodes = tuple(
        Node(
            name=f"node-{index:04d}",
            gpu_type=CARDS[index % len(CARDS)],
            num_gpus=8 if index % 3 else 4,
            host_memory_bytes=512 * GIB,
            num_cpus=96,
        )
        for index in range(num_nodes)
    )
    return Cluster(tuple(CATALOGUE[card].gpu for card in CARDS), nodes)


def random_job(rng: random.Random, run_key: str, index: int) -> QueuedJob:
    """A job with twenty plans: up to 16 GPUs of four of the types, faster ones first."""
    work_s = rng.lognormvariate(8, 1.5)
    plans = [
        random_plan(card, num_gpus, work_s, tp)
        for card in rng.sample(CARDS, 4)
        for num_gpus, tp in ((1, 1), (2, 1), (4, 2), (8, 1), (16, 4))
    ]
    return QueuedJob(
        run_key=run_key,
        job_name=run_key,
        submitted_s=NOW_S - 1000 + index * 0.01,
        plans=tuple(sorted(plans, key=lambda plan: plan.predicted_run_s)),
        priority=rng.choice((0, 0, 0, 1)),
    )


def random_plan(card: str, num_gpus: int, work_s: float, tp: int) -> ResourcePlan:
    """A plan whose run time falls with the GPUs' speed and, less than in proportion, their number."""
    gpu = CATALOGUE[card].gpu
    run_s = work_s * (3e14 / gpu.flops_per_s) / num_gpus**0.85
    return ResourcePlan(
        gpu_type=card,
        num_gpus=num_gpus,
        dp=num_gpus // tp,
        tp=tp,
        zero_stage=2,
        micro_batch_size=1,
        accumulation_steps=1,
        activation_checkpointing=False,
        memory=MemoryPrediction(
            peak_allocated_bytes=8 * GIB, required_bytes=10 * GIB, host_bytes=16 * GIB, at="backward"
        ),
        gpu_memory_bytes=gpu.memory_bytes,
        step_time_s=1.0,
        samples_per_s=1.0,
        predicted_run_s=run_s,
        predicted_cost=run_s * num_gpus,
    )


if __name__ == "__main__":
    main()
