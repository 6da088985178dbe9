"""Generated workloads: the same for the same seed, true work untouched by errors, plans that can run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.sim.offered_load import offered_load

from frenzy.core.capacity.free_capacity import FreeCapacity, place
from frenzy.core.models.shape import model_shape
from frenzy.core.scheduling.engine.policy_settings import HasPolicy
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import SpecError
from frenzy.core.values.job import Precision
from frenzy.sim.clusters import cluster_named
from frenzy.sim.disturbances import Disturbances
from frenzy.sim.job_classes import CLASSES, MODELS, JobSize, precision_for
from frenzy.sim.plan_sets import MAX_GPUS, MAX_PLANS_OF_TYPE
from frenzy.sim.reference import asked_gpus, by_speed
from frenzy.sim.scenario_jobs import Scenario, SimJob
from frenzy.sim.traces import Arrival, Trace, load_trace
from frenzy.sim.workloads import WorkloadSpec, generate, make_scenario, make_workload

SHORT_TRACES = [f"philly-160-{number}" for number in (1, 2, 3, 4)]
specs = st.builds(
    WorkloadSpec,
    trace=st.sampled_from(SHORT_TRACES),
    cluster=st.sampled_from(["44", "64", "288"]),
    seed=st.integers(0, 1000),
    load=st.sampled_from([None, 0.5, 2.0]),
)
MANY = settings(max_examples=25, deadline=None)


def of_arrivals(*arrivals: Arrival, cluster: str = "44") -> Scenario:
    trace = Trace(name="made", arrivals=arrivals, left_out={})
    return generate(WorkloadSpec(cluster=cluster), trace, cluster_named(cluster)).scenario


def works(jobs: Iterable[SimJob]) -> list[float]:
    return [each.work for each in jobs]


@MANY
@given(specs)
def test_jobs_come_in_order_with_work_and_unique_keys(spec: WorkloadSpec) -> None:
    jobs = make_scenario(spec).jobs
    times = [each.job.submitted_s for each in jobs]
    assert len(jobs) == len({each.job.run_key for each in jobs}) == 160
    assert times == sorted(times)
    assert all(0 < each.work < math.inf and each.work == each.job.work_left for each in jobs)


@MANY
@given(specs)
def test_every_plan_fits_the_empty_cluster_and_asked_gpus_are_those_of_a_plan(spec: WorkloadSpec) -> None:
    scenario = make_scenario(spec)
    empty, rules = FreeCapacity.of(scenario.cluster), HasPolicy()
    for plans in {id(each.job.plans): each.job.plans for each in scenario.jobs}.values():
        assert plans
        assert all(place(empty.by_type[plan.gpu_type], rules.need(plan)) is not None for plan in plans)
    for each in scenario.jobs:
        assert each.job.asked_gpus in {plan.num_gpus for plan in each.job.plans}


@MANY
@given(specs)
def test_the_same_spec_gives_the_same_scenario_and_another_seed_another(spec: WorkloadSpec) -> None:
    assert make_scenario(spec) == make_scenario(spec)
    assert works(make_scenario(spec).jobs) != works(make_scenario(replace(spec, seed=spec.seed + 1)).jobs)


@MANY
@given(specs, st.floats(0.1, 3.0), st.floats(0.1, 1.0))
def test_errors_of_estimates_and_memory_leave_the_true_work_as_it_is(
    spec: WorkloadSpec, sigma: float, share: float
) -> None:
    wrong = Disturbances(estimate_sigma=sigma, memory_error_share=share, node_mtbf_hours=24)
    true, disturbed = make_scenario(spec), make_scenario(replace(spec, disturbances=wrong))
    assert works(true.jobs) == works(disturbed.jobs)
    assert [each.job.plans for each in true.jobs] == [each.job.plans for each in disturbed.jobs]
    assert any(each.job.work_left != each.work for each in disturbed.jobs)
    assert all(each.job.work_left > 0 for each in disturbed.jobs)


@MANY
@given(specs, st.floats(1.0, 10.0))
def test_however_wrong_memory_is_predicted_one_plan_has_room(spec: WorkloadSpec, most: float) -> None:
    wrong = Disturbances(memory_error_share=1.0, most_memory_factor=most)
    for each in make_scenario(replace(spec, disturbances=wrong)).jobs:
        assert each.memory_factor >= 1
        assert not all(each.runs_out_of_memory(plan) for plan in each.job.plans)


def test_errors_of_estimates_are_as_wide_as_asked_for_and_grow_with_sigma_alone() -> None:
    def errors(sigma: float) -> list[float]:
        spec = WorkloadSpec(trace="openb-8152", cluster="288", disturbances=Disturbances(estimate_sigma=sigma))
        return [math.log(each.job.work_left / each.work) for each in make_scenario(spec).jobs]

    narrow, wide = errors(0.7), errors(1.4)
    assert math.sqrt(sum(each**2 for each in wide) / len(wide)) == pytest.approx(1.4, rel=0.03)
    assert wide == pytest.approx([2 * each for each in narrow])


def test_the_share_of_jobs_with_mispredicted_memory_is_the_one_asked_for() -> None:
    wrong = Disturbances(memory_error_share=0.25, most_memory_factor=1.3)
    jobs = make_scenario(WorkloadSpec(trace="openb-8152", cluster="288", disturbances=wrong)).jobs
    factors = [each.memory_factor for each in jobs if each.memory_factor > 1]
    assert len(factors) / len(jobs) == pytest.approx(0.25, abs=0.02)
    assert max(factors) <= 1.3


def test_jobs_of_a_class_share_one_tuple_of_plans_also_between_scenarios() -> None:
    jobs = [*make_scenario(WorkloadSpec()).jobs, *make_scenario(WorkloadSpec(trace="philly-160-2", seed=9)).jobs]
    plans_of: dict[str, set[int]] = {}
    for each in jobs:
        job_class = each.job.job_name.split(".", 1)[1]
        plans_of.setdefault(job_class, set()).add(id(each.job.plans))
    assert len(plans_of) > 10
    assert all(len(found) == 1 for found in plans_of.values())


def test_plan_sets_are_few_of_every_type_and_only_powers_of_two() -> None:
    for cluster in ("44", "288", "6212"):
        for each in make_scenario(WorkloadSpec(cluster=cluster)).jobs:
            counts = [plan.num_gpus for plan in each.job.plans]
            types = [plan.gpu_type for plan in each.job.plans]
            assert all(count.bit_count() == 1 and count <= MAX_GPUS for count in counts)
            assert max(types.count(name) for name in types) <= MAX_PLANS_OF_TYPE


def test_a_job_takes_as_long_as_in_the_trace_with_what_it_asked_for_on_the_middle_type() -> None:
    scenario = of_arrivals(Arrival(name="a", submit_s=0, num_gpus=4, duration_s=7200))
    (each,) = scenario.jobs
    asked = [plan for plan in each.job.plans if (plan.gpu_type, plan.num_gpus) == ("rtx-6000", 4)]
    assert each.job.asked_gpus == 4
    assert min(each.work * plan.predicted_run_s for plan in asked) == pytest.approx(7200)


def test_gpus_asked_for_are_lowered_to_a_count_that_can_be_used() -> None:
    scenario = of_arrivals(*(Arrival(name="a", submit_s=0, num_gpus=n, duration_s=600) for n in (1, 6, 12, 500)))
    asked = [each.job.asked_gpus or 0 for each in scenario.jobs]
    assert asked[:3] == [1, 4, 8]
    assert asked[3] == max(plan.num_gpus for plan in scenario.jobs[3].job.plans)
    assert asked_gpus(scenario.jobs[0].job.plans[:1], 0) == scenario.jobs[0].job.plans[0].num_gpus


def test_an_arrival_limited_to_gpu_types_gets_plans_on_those_the_cluster_has() -> None:
    def limited(*gpu_types: str, cluster: str) -> set[str]:
        arrival = Arrival(name="a", submit_s=0, num_gpus=1, duration_s=600, gpu_types=gpu_types)
        (each,) = of_arrivals(arrival, cluster=cluster).jobs
        return {plan.gpu_type for plan in each.job.plans}

    assert limited("V100M16", "V100M32", cluster="6212") == {"v100-16", "v100-32"}
    assert limited("G2", cluster="6212") == {"g2"}
    assert limited("G2", cluster="44") == {"a100-40", "rtx-2080-ti", "rtx-6000"}


def test_a_job_no_class_of_which_can_run_is_left_out_and_counted(tmp_path: Path) -> None:
    nodes = tmp_path / "tiny.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,4000,4096,1,T4\n", encoding="utf-8")
    workload = make_workload(WorkloadSpec(trace="philly-160-4", cluster=str(nodes)))
    reason = "no class of its size has a plan on the cluster"
    assert workload.left_out[reason] > 0
    assert len(workload.scenario.jobs) + workload.left_out[reason] == 160


def test_load_divides_times_of_arrival_and_the_first_jobs_can_be_taken_alone() -> None:
    usual, dense = make_scenario(WorkloadSpec()), make_scenario(WorkloadSpec(load=4, num_jobs=10))
    assert [each.job.submitted_s for each in dense.jobs] == [each.job.submitted_s / 4 for each in usual.jobs[:10]]
    assert works(dense.jobs) == works(usual.jobs[:10])
    assert offered_load(make_scenario(WorkloadSpec(load=4))).load == pytest.approx(4 * offered_load(usual).load)


def test_the_name_says_trace_seed_and_cluster_and_what_is_not_as_usual(tmp_path: Path) -> None:
    assert WorkloadSpec().name == make_scenario(WorkloadSpec()).name == "philly-160-1.seed0.44"
    unusual = WorkloadSpec(
        trace=str(tmp_path / "mine.csv"),
        seed=3,
        load=1.5,
        num_jobs=9,
        elasticity=None,
        precision=Precision.BF16,
        start_overhead_s=90,
        disturbances=Disturbances(estimate_sigma=1.4, memory_error_share=0.1, node_mtbf_hours=48),
    )
    assert unusual.name == "mine.seed3.44.load1.5.first9.rigid.bf16.start90.sigma1.4.memory0.1x1.5.mtbf48h1h"


def test_teams_are_those_of_the_trace() -> None:
    arrivals = load_trace("philly-82k").arrivals[:50]
    scenario = of_arrivals(*arrivals, cluster="288")
    assert [each.job.team for each in scenario.jobs] == [each.team for each in arrivals]
    assert {each.job.team for each in make_scenario(WorkloadSpec()).jobs} == {"default"}


def test_nodes_fail_as_often_as_asked_for_one_failure_of_a_node_at_a_time() -> None:
    wrong = Disturbances(node_mtbf_hours=10, node_repair_hours=2, failures_after_hours=1200)
    scenario = make_scenario(WorkloadSpec(cluster="288", disturbances=wrong))
    times = [each.at_s for each in scenario.failures]
    assert times == sorted(times)
    assert len(times) == pytest.approx(40 * (1200 + 8) / 12, rel=0.1)
    of_one = [each for each in scenario.failures if each.node == scenario.cluster.nodes[0].name]
    assert all(later.at_s >= each.at_s + each.repair_s for each, later in zip(of_one, of_one[1:], strict=False))


def test_every_size_has_classes_and_every_class_a_name_and_a_model_of_the_list() -> None:
    assert {size for each in CLASSES for size in each.sizes} == set(JobSize)
    assert len({each.name for each in CLASSES}) == len(CLASSES)
    assert {each.model for each in CLASSES} == set(MODELS)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_has_about_as_many_parameters_as_its_name_says(name: str) -> None:
    said = name.rsplit("-", 1)[1]
    millions = float(said[:-1]) * (1000 if said.endswith("b") else 1)
    assert model_shape(MODELS[name]).num_parameters / 1e6 == pytest.approx(millions, rel=0.25)


def test_jobs_train_in_the_format_that_all_cards_compute_at_full_rate() -> None:
    mixed = cluster_named("44")
    new = replace(mixed, gpu_types=mixed.gpu_types, nodes=tuple(n for n in mixed.nodes if n.gpu_type == "a100-40"))
    assert precision_for(mixed) is Precision.FP16
    assert precision_for(new) is Precision.BF16


def test_the_middle_type_is_nearest() -> None:
    assert by_speed(cluster_named("44")) == {"rtx-2080-ti": 1, "rtx-6000": 0, "a100-40": 1}


def test_a_short_philly_trace_keeps_44_gpus_busy_for_about_a_day() -> None:
    hours = [
        offered_load(make_scenario(WorkloadSpec(trace=name, seed=seed))).cluster_hours
        for name in SHORT_TRACES
        for seed in range(5)
    ]
    assert 12 < sum(hours) / len(hours) < 36


def test_numbers_that_mean_nothing_are_refused_all_at_once() -> None:
    wrong = Disturbances(
        estimate_sigma=math.nan, memory_error_share=2, most_memory_factor=0.5, node_mtbf_hours=0, node_repair_hours=0
    )
    with pytest.raises(SpecError) as refused:
        make_scenario(WorkloadSpec(load=0, num_jobs=0, disturbances=wrong))
    paths = [each.path.removeprefix("disturbances.") for each in refused.value.violations]
    assert paths[:3] == ["estimate_sigma", "memory_error_share", "most_memory_factor"]
    assert paths[3:] == ["node_mtbf_hours", "node_repair_hours", "load", "num_jobs"]


def test_a_type_of_the_cluster_is_meant_before_one_that_the_trace_of_pods_calls_so() -> None:
    given = cluster_named("64")
    named = {"t4": "p100"}
    own = Cluster(
        tuple(replace(each, name=named.get(each.name, each.name)) for each in given.gpu_types),
        tuple(replace(each, gpu_type=named.get(each.gpu_type, each.gpu_type)) for each in given.nodes),
    )
    limits = ("p100", "P100", "nosuch")
    arrivals = tuple(Arrival(name="a", submit_s=0, num_gpus=1, duration_s=600, gpu_types=(each,)) for each in limits)
    made = generate(WorkloadSpec(), Trace(name="made", arrivals=arrivals, left_out={}), own)
    types = [{plan.gpu_type for plan in each.job.plans} for each in made.scenario.jobs]
    assert types[0] == types[1] == {"p100"}
    assert len(types[2]) > 1
    assert made.num_unlimited == 1
