"""What the comparison of completion times concludes from its runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.jct_figures import Bar, all_ratios, bars, json_rows, paper_claims, ratio
from tests.bench.jct_page import misses, policies, table, tables_as_text, verdict, write_page
from tests.bench.jct_runs import HAS, HAS_WRONG, PAPER, PAPER_ALL, SERIES, SIA, SIA_RIGID, Run, cases, without_offload

from frenzy.sim.disturbances import Disturbances
from frenzy.sim.engine import simulate
from frenzy.sim.summaries import Summary
from frenzy.sim.workloads import WorkloadSpec, make_scenario
from tools.policy_bench.rivals import scheduler_named

JCT_S = {HAS: 70.0, HAS_WRONG: 90.0, SIA: 100.0, SIA_RIGID: 140.0, PAPER: 200.0, PAPER_ALL: 400.0}


def summary(policy: str, scenario: str, jct_s: float) -> Summary:
    return Summary(
        scenario=scenario,
        policy=policy,
        num_jobs=10,
        num_never_ended=0,
        jct_mean_s=jct_s,
        jct_median_s=jct_s / 2,
        jct_p99_s=jct_s * 9,
        queue_mean_s=1.0,
        makespan_s=jct_s * 10,
        gpu_hours_used=5.0,
        gpu_hours_lost=0.1,
        utilisation=0.5,
        fragmentation=0.0,
        slowdown_mean=2.0,
        slowdown_max=jct_s / 10,
        restarts_mean=1.0,
        restarts_max=4,
        num_ooms=0,
        scheduler_cpu_s=100.0 if policy.startswith("sia") else 1.0,
    )


@pytest.fixture
def summaries() -> list[Summary]:
    return [summary(policy, name, jct_s * k) for policy, jct_s in JCT_S.items() for name, k in (("a", 1), ("b", 50))]


def named(found: list[Bar], name: str) -> Bar:
    return next(each for each in found if each.name == name)


def test_a_ratio_is_the_mean_of_the_scenarios_ratios_whatever_their_length() -> None:
    pairs = [summary(HAS, "a", 1), summary(SIA, "a", 2), summary(HAS, "b", 2000), summary(SIA, "b", 1000)]
    found = ratio(pairs, HAS, SIA)
    assert found.mean.value == pytest.approx((0.5 + 2) / 2)
    assert found.geometric.value == pytest.approx(1.0)
    assert found.mean.low == pytest.approx(0.5)
    assert found.mean.high == pytest.approx(2.0)


def test_scenarios_that_only_one_of_both_has_run_do_not_count() -> None:
    some = [summary(HAS, "a", 1), summary(SIA, "a", 2), summary(HAS, "b", 9)]
    assert ratio(some, HAS, SIA).mean.num_scenarios == 1


def test_policies_without_a_common_scenario_have_no_ratio() -> None:
    with pytest.raises(ValueError, match="no scenario"):
        ratio([summary(HAS, "a", 1), summary(SIA, "b", 2)], HAS, SIA)


def test_a_goal_is_met_or_missed_by_the_mean_of_the_ratios(summaries: list[Summary]) -> None:
    found = bars(summaries)
    assert named(found, f"average JCT, {HAS} / {SIA}").ok
    assert not named(found, f"average JCT, {HAS_WRONG} / {SIA}").ok
    assert named(found, f"jobs that never ended, {HAS}").ok


def test_a_job_that_never_ends_misses_the_goal(summaries: list[Summary]) -> None:
    starved = [replace(each, num_never_ended=1) if each.policy == HAS else each for each in summaries]
    assert not named(bars(starved), f"jobs that never ended, {HAS}").ok


def test_scheduler_cpu_is_that_of_all_scenarios(summaries: list[Summary]) -> None:
    assert named(bars(summaries), f"scheduler CPU over whole traces, {HAS} / {SIA}").value == pytest.approx(0.01)


def test_a_missed_goal_is_told_with_how_much_it_was_missed_by(summaries: list[Summary]) -> None:
    assert f"average JCT, {HAS_WRONG} / {SIA}: 0.9 instead of 0.85, 5.9% too much" in misses(bars(summaries))
    assert misses([]) == "No goal was missed."


def test_the_papers_claims_are_judged_against_each_variant_of_sia(summaries: list[Summary]) -> None:
    told = verdict(paper_claims(summaries))
    assert f"average JCT, {PAPER} / {SIA}: 100% longer; the claim is not reproduced." in told
    assert f"scheduler CPU over whole traces, {PAPER} / {SIA}: 100 times less; the claim of ten times holds." in told


def test_every_figure_of_the_file_has_a_name_of_its_own(summaries: list[Summary]) -> None:
    rows = json_rows(summaries)
    assert len({row["name"] for row in rows}) == len(rows)
    assert all(set(row) == {"name", "value", "unit", "goal", "ok"} for row in rows)


def test_rivals_that_were_not_run_are_left_out(summaries: list[Summary]) -> None:
    assert {each.rival for each in all_ratios(summaries)} == {SIA, SIA_RIGID, PAPER, PAPER_ALL}


def test_the_tables_name_every_series(summaries: list[Summary]) -> None:
    assert all(f"`{policy}`" in policies(summaries) for policy in JCT_S)
    assert f"`{HAS}` / `{SIA}`" in tables_as_text(summaries)


def test_the_page_holds_the_tables_and_the_picture(summaries: list[Summary], tmp_path: Path) -> None:
    page = write_page([Run(summary=each, jcts_s=(60.0, 3600.0)) for each in summaries], (0, 1), tmp_path)
    text = page.read_text(encoding="utf-8")
    assert policies(summaries) in text
    assert "the seeds 0, 1: 2 scenarios" in text
    assert "`{name, value, unit, goal, ok}`" in text
    assert (tmp_path / "images" / "compare-jct.png").read_bytes().startswith(b"\x89PNG")


def test_cells_of_a_table_are_aligned() -> None:
    assert table(("a", "bb"), [("xxx", "y")]) == "| a   | bb |\n| --- | -- |\n| xxx | y  |"


def test_every_series_runs_every_scenario_or_all_of_the_first_seed() -> None:
    count = {series.label: sum(case.series is series for case in cases()) for series in SERIES}
    assert {label for label, number in count.items() if number != 24} == {"sia-ilp-work"}
    assert count["sia-ilp-work"] == 8


def test_offload_is_taken_away_only_from_jobs_with_other_plans() -> None:
    scenario = make_scenario(WorkloadSpec(num_jobs=60))
    some_offload = [each for each in scenario.jobs if any(plan.offload_optimizer for plan in each.job.plans)]
    assert some_offload
    for before, after in zip(scenario.jobs, without_offload(scenario).jobs, strict=True):
        in_gpus = tuple(plan for plan in before.job.plans if not plan.offload_optimizer)
        assert after.job.plans == (in_gpus or before.job.plans)


@pytest.mark.parametrize("policy", ["sia-ilp", "sia-rigid", "fifo", "frenzy-paper-published"])
def test_policies_that_are_run_once_decide_the_same_whatever_is_believed_of_work(policy: str) -> None:
    known, wrong = (
        simulate(
            make_scenario(WorkloadSpec(num_jobs=6, disturbances=Disturbances(estimate_sigma=sigma))),
            scheduler_named(policy),
        )
        for sigma in (0.0, 1.4)
    )
    assert [job.jct_s for job in known.jobs] == [job.jct_s for job in wrong.jobs]
