"""Profile files: plans from measured throughput, jobs that name them, and what is said of mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frenzy.core.scheduling.engine.policy_settings import HasPolicy
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.units import GIB
from frenzy.settings import CHECKOUT
from frenzy.sim.clusters import cluster_named
from frenzy.sim.disturbances import Disturbances
from frenzy.sim.engine import simulate
from frenzy.sim.profiles import Profile, profile_plans, read_profiles
from frenzy.sim.schedulers import ProductScheduler
from frenzy.sim.workloads import WorkloadSpec, make_workload

PROFILES = """
profiles:
  small:
    memory: 8 GiB
    restart_s: 30
    plans:
      - {gpu_type: rtx-2080-ti, gpus: 1, throughput: 10}
      - {gpu_type: a100-40, gpus: 1, throughput: 50}
      - {gpu_type: a100-40, gpus: 4, throughput: 160, memory: 12 GiB, host_memory: 1 GiB}
  wide:
    plans:
      - {gpu_type: a100-40, gpus: 16, throughput: 4.5, memory: 39 GiB, tensor_parallel: 8}
      - {gpu_type: rtx-6000, gpus: 4, throughput: 1, memory: 20 GiB}
  nowhere:
    memory: 50 GiB
    plans:
      - {gpu_type: a100-40, gpus: 1, throughput: 1}
      - {gpu_type: a100-40, gpus: 32, throughput: 1, memory: 1 GiB}
      - {gpu_type: h100, gpus: 1, throughput: 1}
      - {gpu_type: rtx-6000, gpus: 4, throughput: 1, memory: 1 GiB, host_memory: 2 TiB}
"""
JOBS = """job,submit_s,profile,work_samples,duration,gpus,team,priority
b,20,small,5000,,1,red,-2
a,10,wide,,3600,4,,7
c,30,nowhere,5,,,,
d,,small,5,,,,
e,40,small,,,,,
"""


def files(folder: Path, profiles: str = PROFILES, jobs: str = JOBS) -> WorkloadSpec:
    (folder / "profiles.yaml").write_text(profiles, encoding="utf-8")
    (folder / "jobs.csv").write_text(jobs, encoding="utf-8")
    return WorkloadSpec(trace=str(folder / "jobs.csv"), profiles=str(folder / "profiles.yaml"))


def test_a_plan_takes_as_long_as_its_throughput_says(tmp_path: Path) -> None:
    files(tmp_path)
    plans = profile_plans(read_profiles(tmp_path / "profiles.yaml")["small"], cluster_named("44"))
    assert [(plan.gpu_type, plan.num_gpus) for plan in plans] == [("a100-40", 4), ("a100-40", 1), ("rtx-2080-ti", 1)]
    assert [1600 * plan.predicted_run_s for plan in plans] == pytest.approx([10, 32, 160])
    assert [plan.memory.required_bytes // GIB for plan in plans] == [12, 8, 8]
    assert [plan.memory.host_bytes // GIB for plan in plans] == [1, 0, 0]


def test_plans_that_cannot_run_on_the_cluster_are_passed_over(tmp_path: Path) -> None:
    files(tmp_path)
    profiles, cluster = read_profiles(tmp_path / "profiles.yaml"), cluster_named("44")
    assert profile_plans(profiles["nowhere"], cluster) == ()
    assert [plan.tp for plan in profile_plans(profiles["wide"], cluster)] == [8, 1]


def test_jobs_take_plans_work_and_rights_from_their_line(tmp_path: Path) -> None:
    workload = make_workload(files(tmp_path))
    first, second = workload.scenario.jobs
    assert workload.scenario.name == "jobs.seed0.44"
    assert (first.job.job_name, first.job.priority, first.job.team) == ("a", 7, "default")
    assert (second.job.job_name, second.job.priority, second.job.team) == ("b", -2, "red")
    assert (first.job.asked_gpus, second.job.asked_gpus) == (4, 1)
    assert (first.work, second.work) == (3600, 5000)
    assert [each.job.elasticity and each.job.elasticity.restart_s for each in (first, second)] == [60, 30]
    assert workload.left_out == {
        "no plan of its profile fits the cluster": 1,
        "no time of arrival": 1,
        "no work": 1,
    }


def test_jobs_of_a_profile_share_one_tuple_of_plans(tmp_path: Path) -> None:
    jobs = "job,submit_s,profile,work_samples\na,0,small,1\nb,1,small,2\n"
    first, second = make_workload(files(tmp_path, jobs=jobs)).scenario.jobs
    assert first.job.plans is second.job.plans


def test_wrong_estimates_apply_to_profiled_jobs_as_well(tmp_path: Path) -> None:
    spec = files(tmp_path)
    wrong = WorkloadSpec(trace=spec.trace, profiles=spec.profiles, disturbances=Disturbances(estimate_sigma=1.4))
    true, seen = make_workload(spec).scenario.jobs, make_workload(wrong).scenario.jobs
    assert [each.work for each in seen] == [each.work for each in true]
    assert all(each.job.work_left != each.work for each in seen)


def test_the_products_policy_runs_profiles_it_never_saw(tmp_path: Path) -> None:
    result = simulate(make_workload(files(tmp_path)).scenario, ProductScheduler(HasPolicy()))
    ends = {each.job_name: each.jct_s for each in result.jobs}
    # 3600 samples at 4.5 in a second; 5000 at 160 are not to be had on the GPUs that are left
    assert ends["a"] == pytest.approx(800)
    assert ends["b"] is not None


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["rtx-2080-ti", "a100-40", "rtx-6000"]), st.integers(1, 20), st.floats(0.01, 1e6)),
        min_size=1,
        max_size=10,
        unique_by=lambda each: each[:2],
    )
)
def test_plans_are_fastest_first_and_never_more_gpus_than_there_are(plans: list[tuple[str, int, float]]) -> None:
    rows = [{"gpu_type": name, "gpus": gpus, "throughput": rate} for name, gpus, rate in plans]
    cluster = cluster_named("44")
    found = profile_plans(Profile.model_validate({"memory": "1 GiB", "plans": rows}), cluster)
    times = [plan.predicted_run_s for plan in found]
    fitting = [each for each in plans if each[1] <= cluster.num_gpus_by_type[each[0]]]
    assert times == sorted(times)
    assert len(found) == len(fitting)


def test_json_is_read_like_yaml(tmp_path: Path) -> None:
    document = {"profiles": {"p": {"memory": GIB, "plans": [{"gpu_type": "t4", "gpus": 1, "throughput": 2}]}}}
    (tmp_path / "p.json").write_text(json.dumps(document), encoding="utf-8")
    assert read_profiles(tmp_path / "p.json")["p"].plans[0].throughput == 2


PLAN = "{gpu_type: t4, gpus: 2, throughput: 1}"


@pytest.mark.parametrize(
    ("text", "field", "value", "allowed"),
    [
        (f"profiles: {{p: {{plans: [{PLAN}]}}}}", "profiles.p.plans[0].memory", "nothing", "a size such as '9 GiB'"),
        ("profiles: {p: {memory: 1 GiB, plans: []}}", "profiles.p.plans", "[]", "at least 1 of them"),
        ("profiles: {}", "profiles", "{}", "at least 1 of them"),
        ("profile: {}", "profiles", "nothing", "this field is required"),
        ("- 1", "the document", "[1]", "a mapping of fields"),
        (
            "profiles: {p: {memory: 1 elephant, plans: [" + PLAN + "]}}",
            "profiles.p.memory",
            "'1 elephant'",
            "is not a size",
        ),
        (
            "profiles: {p: {memory: 1 GiB, plans: [{gpu_type: t4, gpus: 0, throughput: 1}]}}",
            "profiles.p.plans[0].gpus",
            "0",
            "at least 1",
        ),
        (
            "profiles: {p: {memory: 1 GiB, plans: [{gpu_type: t4, gpus: 1, throughput: 0}]}}",
            "profiles.p.plans[0].throughput",
            "0",
            "more than 0",
        ),
        (
            "profiles: {p: {memory: 1 GiB, plans: [{gpu_type: t4, gpus: 3, throughput: 1, tensor_parallel: 2}]}}",
            "profiles.p.plans[0].tensor_parallel",
            "2",
            "a divisor of gpus = 3",
        ),
        (
            f"profiles: {{p: {{memory: 1 GiB, plans: [{PLAN}, {PLAN}]}}}}",
            "profiles.p.plans[1]",
            "2 x t4",
            "each type, count and tensor_parallel once",
        ),
    ],
)
def test_a_mistake_in_a_profile_is_told_by_file_and_field(
    tmp_path: Path, text: str, field: str, value: str, allowed: str
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text, encoding="utf-8")
    violations = violations_of(file)
    assert [(each.path, each.value) for each in violations][:1] == [(f"{file}, {field}", value)]
    assert allowed in violations[0].allowed


def violations_of(file: Path) -> tuple[Violation, ...]:
    with pytest.raises(SpecError) as refused:
        read_profiles(file)
    return refused.value.violations


def test_text_that_is_no_yaml_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("profiles: [", encoding="utf-8")
    assert violations_of(tmp_path / "p.yaml")[0].path.startswith(f"{tmp_path / 'p.yaml'}, line")
    assert "readable YAML" in violations_of(tmp_path / "none.yaml")[0].allowed


@pytest.mark.parametrize(
    ("line", "place", "allowed"),
    [
        ("a,0,other,1,,,,", "line 2, column profile", "one of small, wide, nowhere"),
        ("a,0,small,-1,,,,", "line 2, column work_samples", "a number of at least 0"),
        ("a,0,small,1,,,,high", "line 2, column priority", "a whole number"),
    ],
)
def test_a_mistake_in_the_jobs_is_told_by_line_and_column(tmp_path: Path, line: str, place: str, allowed: str) -> None:
    spec = files(tmp_path, jobs=f"{JOBS.splitlines()[0]}\n{line}\n")
    with pytest.raises(SpecError) as refused:
        make_workload(spec)
    (violation,) = refused.value.violations
    assert (violation.path, violation.allowed) == (f"{spec.trace}, {place}", allowed)


def test_the_example_of_the_documentation_is_read(tmp_path: Path) -> None:
    page = (CHECKOUT / "docs/simulator-profiles.md").read_text(encoding="utf-8")
    profiles, jobs = (page.split(f"```{kind}\n")[1].split("```")[0] for kind in ("yaml", "text"))
    spec = replace(files(tmp_path, profiles, jobs), cluster="64")
    first, second = make_workload(spec).scenario.jobs
    assert (first.work, first.job.asked_gpus, second.job.priority) == (1.2e6, 4, 5)
    # 7200 GPU-seconds of the T4, the middle type, at 22 samples a second for each
    assert second.work == pytest.approx(7200 * 22)
