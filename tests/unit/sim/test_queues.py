"""Shares and quotas in the simulator: the product's own decision, on jobs that name queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from frenzy.core.values.errors import SpecError
from frenzy.core.values.queue_rules import QueueRule, QueueRules, Quota, TeamRule
from frenzy.sim.engine import simulate
from frenzy.sim.registry import keeps_queues, scheduler_named, scheduler_names
from frenzy.sim.results import SimResult
from frenzy.sim.workloads import WorkloadSpec, make_scenario

PROFILES = "profiles: {one: {memory: 8 GiB, restart_s: 30, plans: [{gpu_type: a100-40, gpus: 1, throughput: 1}]}}"
SHARES = QueueRules(queues=(QueueRule(name="a", weight=3.0), QueueRule(name="b")))


def workload(folder: Path, rules: QueueRules, *, num_jobs: int = 48) -> WorkloadSpec:
    """Jobs of an hour each for 16 A100, all at once, every second of queue a and team red."""
    rows = [f"{'a' if at % 2 else 'b'},{'red' if at % 2 else 'blue'},0,one,3600" for at in range(num_jobs)]
    (folder / "profiles.yaml").write_text(PROFILES, encoding="utf-8")
    (folder / "jobs.csv").write_text("\n".join(["queue,team,submit_s,profile,work_samples", *rows]), encoding="utf-8")
    return WorkloadSpec(trace=str(folder / "jobs.csv"), profiles=str(folder / "profiles.yaml"), queues=rules)


def held_at(result: SimResult, time_s: float, queue: str) -> int:
    queues = {job.run_key: job.queue for job in result.jobs}
    return sum(
        stay.num_gpus for stay in result.stays if queues[stay.run_key] == queue and stay.start_s <= time_s < stay.end_s
    )


@pytest.mark.parametrize("policy", ["has", "backfill"])
def test_queues_hold_their_shares_for_as_long_as_both_have_jobs(policy: str, tmp_path: Path) -> None:
    result = simulate(make_scenario(workload(tmp_path, SHARES)), scheduler_named(policy, SHARES))
    assert [(held_at(result, time_s, "a"), held_at(result, time_s, "b")) for time_s in (60.0, 5000.0)] == [(12, 4)] * 2
    assert all(job.end_s is not None for job in result.jobs)


@pytest.mark.parametrize("policy", ["has", "backfill"])
def test_a_quota_is_kept_from_the_first_job_to_the_last(policy: str, tmp_path: Path) -> None:
    rules = QueueRules(teams=(TeamRule(name="red", quota=Quota(max_gpus=3)),))
    result = simulate(make_scenario(workload(tmp_path, rules, num_jobs=20)), scheduler_named(policy, rules))
    times = {stay.start_s for stay in result.stays}
    assert max(held_at(result, time_s, "a") for time_s in times) == 3
    assert all(job.end_s is not None for job in result.jobs)


def test_a_job_of_a_queue_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="one of a, c"):
        make_scenario(workload(tmp_path, QueueRules(queues=(QueueRule(name="a"), QueueRule(name="c")))))


def test_only_the_policies_that_keep_queues_say_so() -> None:
    assert {name for name in scheduler_names() if keeps_queues(name)} == {"has", "backfill"}


COSTS = """
profiles:
  one:
    memory: 8 GiB
    plans:
      - {gpu_type: a100-40, gpus: 1, throughput: 1}
      - {gpu_type: a100-40, gpus: 4, throughput: 2}
"""
TIMED = """submit_s,profile,work_samples,deadline_s,objective
0,one,3600,,cost
0,one,3600,2000,cost
0,one,3600,9000,
"""


@pytest.mark.parametrize("policy", ["has", "backfill"])
def test_costs_and_deadlines_of_a_job_file_choose_its_plans(policy: str, tmp_path: Path) -> None:
    (tmp_path / "profiles.yaml").write_text(COSTS, encoding="utf-8")
    (tmp_path / "jobs.csv").write_text(TIMED, encoding="utf-8")
    spec = WorkloadSpec(trace=str(tmp_path / "jobs.csv"), profiles=str(tmp_path / "profiles.yaml"), load=2.0)
    result = simulate(make_scenario(spec), scheduler_named(policy))
    assert [(stay.run_key[-1], stay.num_gpus) for stay in sorted(result.stays, key=lambda stay: stay.run_key)] == [
        ("1", 1),
        ("2", 4),
        ("3", 4),
    ]
    assert [job.deadline_s for job in sorted(result.jobs, key=lambda job: job.run_key)] == [None, 2000.0, 9000.0]


def test_an_objective_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "profiles.yaml").write_text(COSTS, encoding="utf-8")
    (tmp_path / "jobs.csv").write_text(TIMED.replace(",cost", ",fame"), encoding="utf-8")
    with pytest.raises(SpecError, match="time, cost"):
        make_scenario(WorkloadSpec(trace=str(tmp_path / "jobs.csv"), profiles=str(tmp_path / "profiles.yaml")))
