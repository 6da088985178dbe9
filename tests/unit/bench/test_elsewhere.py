"""The workloads on which no number of ``has`` was chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.elsewhere_workloads import SIA_GOODPUT, SIA_PROFILES, groups
from tests.bench.jct_elsewhere import run, with_unknown_work
from tests.bench.jct_runs import SEEDS

from frenzy.sim.workloads import WorkloadSpec, make_scenario


@pytest.fixture(scope="module")
def workloads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[WorkloadSpec]]:
    return groups(tmp_path_factory.mktemp("elsewhere"))


def test_the_same_workloads_are_made_each_time(workloads: dict[str, list[WorkloadSpec]], tmp_path: Path) -> None:
    groups(tmp_path)
    made = {Path(path).name: Path(path).read_bytes() for each in workloads.values() for path in _files_of(each)}
    assert made == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def _files_of(specs: list[WorkloadSpec]) -> set[str]:
    named = {name for spec in specs for name in (spec.trace, spec.cluster, spec.profiles or "")}
    return {name for name in named if "/" in name and name != str(SIA_PROFILES)}


def test_no_scenario_is_one_that_the_comparison_scores(workloads: dict[str, list[WorkloadSpec]]) -> None:
    specs = [spec for each in workloads.values() for spec in each]
    assert all(spec.seed not in SEEDS for spec in specs)
    assert len({spec.name for spec in specs}) == len(specs)


def test_made_up_profiles_leave_no_job_without_a_plan_and_some_without_the_small_cards(
    workloads: dict[str, list[WorkloadSpec]],
) -> None:
    jobs = make_scenario(workloads["made-up profiles, low load"][0]).jobs
    types = [{plan.gpu_type for plan in each.job.plans} for each in jobs]
    assert len(jobs) == 130
    assert all(types)
    assert any("t4" not in each for each in types)
    assert any("t4" in each for each in types)


def test_a_run_is_the_same_each_time_but_for_its_cpu_times(workloads: dict[str, list[WorkloadSpec]]) -> None:
    spec = workloads["made-up profiles, low load"][0]
    one, other = (run("has", 1.4, spec) for _ in range(2))
    assert (one.jct_mean_s, one.makespan_s) == (other.jct_mean_s, other.makespan_s)
    assert one.num_jobs == 130


def test_most_jobs_with_sias_goodput_are_alike_and_short_and_a_few_are_very_long(
    workloads: dict[str, list[WorkloadSpec]],
) -> None:
    jobs = make_scenario(workloads[SIA_GOODPUT][0]).jobs
    best_s = sorted(each.work * min(plan.predicted_run_s for plan in each.job.plans) for each in jobs)
    assert len(jobs) == 160
    assert best_s[133] < 300
    assert best_s[-4] > 4 * 3600


def test_unknown_work_is_believed_to_be_the_same_for_all_and_changes_nothing_that_is_true(
    workloads: dict[str, list[WorkloadSpec]],
) -> None:
    scenario = make_scenario(workloads[SIA_GOODPUT][0])
    unknown = with_unknown_work(scenario)
    assert [each.work for each in unknown.jobs] == [each.work for each in scenario.jobs]
    for each in unknown.jobs:
        alone_s = min(plan.predicted_run_s for plan in each.job.plans if plan.num_gpus == 1)
        assert each.job.work_left * alone_s == pytest.approx(1800)
