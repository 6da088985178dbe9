"""What a run's memory teaches is in the next plan of other jobs, and only what the model is to blame for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.in_memory.sources import FixedInventory
from tests.unit.app.playing import Airflow, make_job

from frenzy.adapters.calibration_file import default_calibration
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.ledger import CalibrationSample
from frenzy.core.runs.protocol import EndReport, ProgressReport
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.job import CallbackSpec, TrainingJob
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.units import GIB, MIB

DONE, OUT_OF_MEMORY = 0, 97


@pytest.fixture
def learner(airflow: Airflow) -> Airflow:
    """Plans by the closed form."""
    services = replace(airflow.services, marp_policy="closed-form", calibration=default_calibration())
    return replace(airflow, services=services)


def attempt(
    airflow: Airflow,
    name: str,
    *,
    ratio: float = 1.0,
    exit_code: int = DONE,
    job: TrainingJob | None = None,
    growth_step: int | None = None,
    pace: float | None = None,
    last_step: int = 10,
) -> ResourcePlan:
    """One run whose first attempt peaks at ``ratio`` times the model's prediction; its plan.

    pace: what its steps take, as a multiple of the time model's prediction.
    """
    airflow.register(job or make_job(name))
    spec = airflow.place().spec
    assert spec is not None
    airflow.launch(1)
    peak = round(spec.plan.memory.model_peak_bytes * ratio)
    progress = ProgressReport(
        last_step=last_step,
        step_time_s=None if pace is None else pace * (spec.plan.model_step_s or spec.plan.step_time_s),
        peaks=PeakMemory(allocated_bytes=peak, reserved_bytes=peak + MIB, device_used_bytes=peak + 2 * MIB),
        explained_peak_bytes=peak,
        growth_step=growth_step,
    )
    result = AttemptResult(exit_code=exit_code, last_step=last_step, total_steps=100)
    end_attempt(airflow.services, airflow.key, 1, EndReport(result=result, progress=progress))
    return spec.plan


def samples(airflow: Airflow) -> tuple[CalibrationSample, ...]:
    with airflow.services.ledger.reading() as tx:
        return tx.samples()


def same_plan(airflow: Airflow, plan: ResourcePlan, name: str) -> ResourcePlan:
    """How the shape of ``plan`` is predicted for another job of the same kind."""
    view = airflow.register(make_job(name))
    return next(each.plan for each in view.candidates if each.plan.shape == plan.shape)


def test_an_attempt_leaves_what_was_predicted_and_all_that_was_measured(learner: Airflow) -> None:
    plan = attempt(learner, "first", ratio=1.02)
    (sample,) = samples(learner)
    assert sample.predicted_bytes == plan.memory.model_peak_bytes
    assert sample.measured_bytes == round(1.02 * plan.memory.model_peak_bytes)
    assert sample.peaks is not None
    assert (sample.peaks.reserved_bytes, sample.peaks.device_used_bytes) == (
        sample.measured_bytes + MIB,
        sample.measured_bytes + 2 * MIB,
    )
    assert (sample.family, sample.kind, sample.censored) == ("gpt2", plan_kind(learner, plan), False)
    assert sample.versions["marp_policy"] == "closed-form"


def plan_kind(airflow: Airflow, plan: ResourcePlan) -> object:
    return airflow.services.inventory.cluster().types_by_name[plan.gpu_type].kind


def test_runs_that_need_7_percent_more_shift_the_next_jobs_prediction(learner: Airflow) -> None:
    plans = [attempt(learner, f"job{index}", ratio=1.07) for index in range(5)]
    after = same_plan(learner, plans[-1], "next")
    assert after.memory.learned_factor == pytest.approx(1.07, abs=0.012)
    assert after.memory.model_peak_bytes == pytest.approx(plans[0].memory.peak_allocated_bytes, rel=1e-6)
    assert sum(term.num_bytes for term in after.memory.terms) == after.memory.peak_allocated_bytes


def test_learning_does_not_feed_on_itself(learner: Airflow) -> None:
    for index in range(15):
        attempt(learner, f"job{index}", ratio=1.07)
    ratios = [each.measured_bytes / each.predicted_bytes for each in samples(learner)]
    assert ratios == pytest.approx([1.07] * 15, rel=1e-4)


def test_an_out_of_memory_makes_that_plan_infeasible_for_other_jobs(learner: Airflow) -> None:
    failed = attempt(learner, "first", exit_code=OUT_OF_MEMORY)
    view = learner.register(make_job("second"))
    assert all(each.plan.shape != failed.shape for each in view.candidates if each.feasible)
    assert any(each.feasible for each in view.candidates)


def test_the_runs_own_out_of_memory_is_not_counted_twice(learner: Airflow) -> None:
    """Its next plan has room for what was seen; the bound of the group is for other runs."""
    attempt(learner, "first", exit_code=OUT_OF_MEMORY)
    learner.decide()
    spec = learner.place().spec
    assert spec is not None
    assert spec.plan.memory.learned_factor == 1.0


def test_a_card_that_was_full_before_the_training_began_teaches_nothing(learner: Airflow) -> None:
    learner.register(make_job("first"))
    learner.place()
    learner.launch(1)
    refused = AttemptResult(exit_code=OUT_OF_MEMORY, last_step=0, total_steps=0)
    end_attempt(learner.services, learner.key, 1, EndReport(result=refused))
    assert samples(learner) == ()


def test_growth_that_the_model_is_not_to_blame_for_raises_no_bound(learner: Airflow) -> None:
    failed = attempt(learner, "first", exit_code=OUT_OF_MEMORY, growth_step=5)
    assert not samples(learner)[0].censored
    after = same_plan(learner, failed, "second")
    assert after.memory.required_bytes == failed.memory.required_bytes


def test_nothing_is_learned_from_jobs_whose_own_code_holds_memory(learner: Airflow) -> None:
    hoarding = make_job("first")
    hoarding = replace(hoarding, training=replace(hoarding.training, callbacks=(CallbackSpec(path="mine:Hoard"),)))
    plans = [
        attempt(learner, f"job{index}", exit_code=OUT_OF_MEMORY, ratio=1.5, job=replace(hoarding, name=f"job{index}"))
        for index in range(3)
    ]
    assert samples(learner) == ()
    assert len({each.shape for each in plans}) == 1
    after = same_plan(learner, plans[0], "second")
    assert after.memory.required_bytes == plans[0].memory.required_bytes


def test_what_the_papers_formula_got_wrong_says_nothing_about_the_closed_form(learner: Airflow) -> None:
    paper = replace(learner, services=replace(learner.services, marp_policy="paper"))
    for index in range(5):
        attempt(paper, f"job{index}", ratio=1.5)
    view = learner.register(make_job("next"))
    assert all(each.plan.memory.learned_factor == 1.0 for each in view.candidates)


def test_what_an_older_memory_model_got_wrong_says_nothing_about_this_one(learner: Airflow) -> None:
    for index in range(5):
        attempt(learner, f"job{index}", ratio=1.5)
    with learner.services.ledger.transaction() as tx:
        for sample in tx.samples():
            versions = {name: each for name, each in sample.versions.items() if name != "memory_model"}
            tx.add_sample(replace(sample, versions=versions))
    view = learner.register(make_job("next"))
    assert all(each.plan.memory.learned_factor == 1.0 for each in view.candidates)


def on_a_node_of(learner: Airflow, gpu: GpuType) -> Airflow:
    node = Node(name="a", gpu_type=gpu.name, num_gpus=2, host_memory_bytes=512 * GIB, num_cpus=64)
    cluster = Cluster(gpu_types=(gpu,), nodes=(node,))
    with learner.services.ledger.transaction() as tx:
        tx.put_cluster(cluster)
    return replace(learner, services=replace(learner.services, inventory=FixedInventory(cluster)))


@pytest.fixture
def on_cards(learner: Airflow) -> Airflow:
    """The same on a node of real cards."""
    return on_a_node_of(learner, replace(CATALOGUE["a100-80"].gpu, price_per_hour=1.0))


def test_runs_that_took_longer_make_the_next_jobs_plan_longer_and_say_so(on_cards: Airflow) -> None:
    plans = [attempt(on_cards, f"job{index}", pace=1.4) for index in range(5)]
    after = same_plan(on_cards, plans[-1], "next")
    assert after.model_step_s == pytest.approx(plans[0].step_time_s)
    assert after.step_time_s == pytest.approx(1.4 * plans[0].step_time_s, rel=0.05)
    assert after.predicted_cost == pytest.approx(1.4 * plans[0].predicted_cost, rel=0.05)
    best = next(each for each in on_cards.register(make_job("last")).candidates if each.rank == 1)
    assert "times the model's" in best.reason.detail


def test_a_learned_pace_does_not_feed_on_itself(on_cards: Airflow) -> None:
    for index in range(12):
        attempt(on_cards, f"job{index}", pace=1.4)
    ratios = [each.residual.step_ratio for each in samples(on_cards) if each.residual]
    assert ratios == pytest.approx([1.4] * 12)


def test_an_attempt_that_hardly_began_teaches_no_pace(on_cards: Airflow) -> None:
    plans = [attempt(on_cards, f"job{index}", pace=3.0, last_step=4) for index in range(5)]
    assert same_plan(on_cards, plans[0], "next").model_step_s is None


def test_the_load_of_this_machine_teaches_no_pace(learner: Airflow) -> None:
    throttled = GpuType(name="small", memory_bytes=4 * GIB, flops_per_s=1e12, kind=DeviceKind.VIRTUAL)
    virtual = on_a_node_of(learner, throttled)
    plans = [attempt(virtual, f"job{index}", pace=3.0) for index in range(5)]
    assert same_plan(virtual, plans[0], "next").step_time_s == plans[0].step_time_s
