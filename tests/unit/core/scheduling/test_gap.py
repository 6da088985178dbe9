"""``has`` beside an exact solver on small instances: the optimality gap is bounded (see ``tests.placement_gap``)."""

from __future__ import annotations

import statistics

import pytest
from tests.placement_gap import ELASTIC_BOUNDS, RIGID_BOUNDS, fits, gaps, least_s
from tests.unit.core.has_world import facts, node, plan, waiting


def test_the_gap_of_jobs_that_are_never_moved_is_bounded() -> None:
    shares = [each.rigid for each in gaps()]
    assert min(shares) >= -1e-9
    assert statistics.mean(shares) <= RIGID_BOUNDS[0]
    assert max(shares) <= RIGID_BOUNDS[1]


def test_with_moves_it_is_better_on_average_than_the_best_schedule_without() -> None:
    shares = [each.elastic for each in gaps()]
    assert statistics.mean(shares) <= ELASTIC_BOUNDS[0]
    assert max(shares) <= ELASTIC_BOUNDS[1]


def test_the_solver_runs_the_shorter_job_first_where_jobs_do_not_fit_together() -> None:
    cluster = facts([node("n", "g", 2)], []).cluster
    jobs = [waiting("long", plan("g", 2, run_s=100.0)), waiting("short", plan("g", 2, run_s=10.0))]
    assert least_s(cluster, jobs) == pytest.approx(10.0 + 110.0)


def test_the_solver_gives_up_speed_of_one_job_for_another() -> None:
    cluster = facts([node("n", "g", 2)], []).cluster
    jobs = [waiting(name, plan("g", 2, run_s=90.0), plan("g", 1, run_s=100.0)) for name in ("a", "b")]
    assert least_s(cluster, jobs) == pytest.approx(100.0 + 100.0)


def test_groups_of_a_plan_need_whole_nodes_only_as_far_as_they_are_large() -> None:
    cluster = facts([node("a", "g", 3), node("b", "g", 3)], []).cluster
    pairs, singles = plan("g", 4, tp=2), plan("g", 2)
    assert fits([pairs, singles], cluster)
    assert not fits([pairs, plan("g", 2, tp=2)], cluster)
