"""A script's environment has another release than predictions hold for: its agent says so, and the next plan knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.in_memory.sources import FakeClock, FixedInventory
from tests.unit.app.playing import Airflow, make_job
from tests.unit.core.marp_values import llama_config
from tests.unit.installation import in_memory_services

from frenzy.adapters.calibration_file import calibration_of_release, default_calibration
from frenzy.app.observe import report_progress
from frenzy.app.queries import run_view
from frenzy.app.register import register_run
from frenzy.app.settlement import end_attempt
from frenzy.core.lifecycle.reschedule import room_bytes
from frenzy.core.runs.ledger import DataFacts, JobState, RunIdentity
from frenzy.core.runs.protocol import DirectiveKind, EndReport, ProgressReport, RegisterRun, RunView, VerdictKind
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.units import GIB
from frenzy.core.values.workload import WorkloadSpec

CONFIG = llama_config(1024, 16, 16, 128256, max_position_embeddings=4096)
OWN = default_calibration().versions["transformers"]
OLD = {"transformers": "4.44.2", "torch": "2.4.1"}


def cluster(*gpus: GpuType) -> Cluster:
    nodes = [
        Node(name=each.name, gpu_type=each.name, num_gpus=1, host_memory_bytes=256 * GIB, num_cpus=16) for each in gpus
    ]
    return Cluster(gpu_types=gpus, nodes=tuple(nodes))


def card(name: str, size: float, tflops: float = 100.0) -> GpuType:
    return GpuType(name=name, memory_bytes=int(size * GIB), flops_per_s=tflops * 1e12, compute_capability="8.0")


# The product's coefficients say 44.1 GiB, those of transformers 4.44 45.1: on the small card a false "fits".
SMALL_IS_FAST = cluster(card("small", 44.5, 200), card("large", 80))


SCRIPT = WorkloadSpec(command=("python", "train.py"), resumable=True, framework="deepspeed")


def job(**workload: Any) -> TrainingJob:
    return replace(
        make_job("script"),
        model=ModelSpec(config=CONFIG),
        data=DataSpec(path="", sequence_length=2048),
        training=TrainingSpec(max_steps=100, global_batch_size=8),
        workload=replace(SCRIPT, **workload),
    )


@pytest.fixture
def airflow() -> Airflow:
    return on(SMALL_IS_FAST)


def on(there: Cluster) -> Airflow:
    clock = FakeClock()
    services = in_memory_services(
        clock=clock,
        inventory=FixedInventory(there),
        calibration=default_calibration(),
        of_release=calibration_of_release,
        marp_policy="closed-form",
    )
    with services.ledger.transaction() as tx:
        tx.put_cluster(there)  # as the inventory says it
    return Airflow(services=services, clock=clock)


def register(airflow: Airflow, job: TrainingJob, run_id: str = "r1") -> RunView:
    identity = RunIdentity(dag_id=f"job_{job.name}", run_id=run_id, task_group="train")
    airflow.key = identity.run_key
    request = RegisterRun(identity=identity, job=job, model_config=CONFIG, data_facts=DataFacts())
    return register_run(airflow.services, request)


def begun(airflow: Airflow, **workload: Any) -> Airflow:
    register(airflow, job(**workload))
    airflow.place()
    airflow.launch(1)
    return airflow


def end(airflow: Airflow, exit_code: int, releases: dict[str, str], step: int = 0, attempt: int = 1) -> RunView:
    result = AttemptResult(exit_code=exit_code, last_step=step, total_steps=100, releases=releases)
    return end_attempt(airflow.services, airflow.key, attempt, EndReport(result=result))


def plan_of(airflow: Airflow) -> ResourcePlan:
    return run_view(airflow.services, airflow.key).attempts[-1].plan


def notices(airflow: Airflow) -> list[str]:
    return [each.text for each in run_view(airflow.services, airflow.key).events if each.kind == "releases"]


def best_reason(view: RunView) -> str:
    return next(each.reason.detail for each in view.candidates if each.rank == 1)


@pytest.mark.parametrize("exit_code", [97, 137])
def test_what_an_older_release_keeps_more_no_longer_fits_once_the_agent_has_said_it(
    airflow: Airflow, exit_code: int
) -> None:
    first = plan_of(begun(airflow))
    assert first.gpu_type == "small"
    end(airflow, exit_code, OLD)
    assert airflow.decide().kind is VerdictKind.RETRY
    airflow.place()
    assert plan_of(airflow).gpu_type == "large"
    assert plan_of(airflow).memory.required_bytes > first.memory.required_bytes
    view = run_view(airflow.services, airflow.key)
    (small,) = (each for each in view.candidates if each.plan.gpu_type == "small")
    assert small.plan.memory.required_bytes > 45 * GIB
    assert "coefficients of transformers 4.44.2, for the script's 4.44.2 (reported by the agent)" in best_reason(view)
    assert view.attempts[0].releases == OLD


def test_memory_that_the_other_coefficients_explain_is_not_counted_twice(airflow: Airflow) -> None:
    begun(airflow)
    end(airflow, 97, OLD)
    airflow.decide()
    airflow.place()
    following = run_view(airflow.services, airflow.key).attempts[-1].next_attempt
    assert following.previous is not None
    assert following.previous.memory.required_bytes > 45 * GIB
    assert following.extra_bytes_per_gpu == room_bytes(following.previous)


def test_the_user_is_told_at_the_first_report_and_once(airflow: Airflow) -> None:
    begun(airflow)
    assert notices(airflow) == []
    for step, said in enumerate((OLD, OLD, {"transformers": "4.43.0"}), start=1):
        report_progress(airflow.services, airflow.key, 1, ProgressReport(last_step=step, releases=said))
    end(airflow, 0, OLD, step=100)
    assert notices(airflow) == [
        f"The script runs transformers 4.44.2; the trainer has {OWN}. The next plan is for 4.44.2, if one "
        "fits then. Installed there: torch 2.4.1, transformers 4.44.2."
    ]


def test_the_report_decides_where_packages_say_another_release(airflow: Airflow) -> None:
    begun(airflow, packages={"transformers": "4.44.0"})
    assert plan_of(airflow).gpu_type == "large"
    assert "for the script's 4.44.0 (workload.packages)" in best_reason(run_view(airflow.services, airflow.key))
    end(airflow, 137, {"transformers": OWN})
    airflow.decide()
    airflow.place()
    assert plan_of(airflow).gpu_type == "small"
    assert notices(airflow)[0].startswith(
        f"The script runs transformers {OWN}; workload.packages says 4.44.0. The next plan is for {OWN}, if"
    )


@pytest.mark.parametrize(
    ("releases", "said"),
    [
        ({"transformers": "4.40.1"}, "Plans stay as they are, since none can be made for it. No coefficients of"),
        ({"deepspeed": "0.15.4", "transformers": OWN}, "The script runs DeepSpeed 0.15.4; what its buffers take is"),
    ],
)
def test_what_nothing_is_known_of_is_told_and_changes_no_plan(
    airflow: Airflow, releases: dict[str, str], said: str
) -> None:
    begun(airflow)
    end(airflow, 137, releases)
    assert airflow.decide().kind is VerdictKind.RETRY
    airflow.place()
    assert plan_of(airflow).gpu_type == "small"
    assert said in notices(airflow)[0]
    assert register(airflow, job(), "r2").run.state is JobState.PLANNED


@pytest.mark.parametrize("release", [OWN, "99.1"])
def test_the_products_own_release_and_newer_ones_change_nothing(airflow: Airflow, release: str) -> None:
    first = plan_of(begun(airflow))
    end(airflow, 137, {"transformers": release})
    airflow.decide()
    airflow.place()
    assert plan_of(airflow).shape == first.shape
    assert notices(airflow) == []


def test_a_run_that_was_taken_goes_on_where_the_report_leaves_it_no_plan() -> None:
    only_small = on(cluster(card("small", 44.5)))
    begun(only_small)
    end(only_small, 137, OLD)
    assert only_small.decide().kind is VerdictKind.RETRY
    only_small.place()
    assert plan_of(only_small).gpu_type == "small"


def test_the_next_run_of_the_same_job_and_image_is_planned_for_what_was_reported(airflow: Airflow) -> None:
    begun(airflow)
    end(airflow, 0, OLD, step=100)
    assert "(reported by the agent)" in best_reason(register(airflow, job(), "r2"))
    others: tuple[dict[str, Any], ...] = (
        {"image": "other:1"},
        {"packages": {"transformers": OWN}},
        {"command": ("a",)},
    )
    for number, other in enumerate(others, start=3):
        assert "(reported by the agent)" not in best_reason(register(airflow, job(**other), f"r{number}"))


@pytest.mark.parametrize("said", [{"transformers": "new"}, {"pip": "24.0"}, {"transformers": "4.44.2; rm"}])
def test_what_is_no_release_is_not_believed(airflow: Airflow, said: dict[str, str]) -> None:
    begun(airflow)
    directive = report_progress(airflow.services, airflow.key, 1, ProgressReport(last_step=1, releases=said))
    assert directive.kind is DirectiveKind.CONTINUE
    view = end(airflow, 0, said, step=100)
    assert (view.attempts[0].releases, notices(airflow)) == ({}, [])
