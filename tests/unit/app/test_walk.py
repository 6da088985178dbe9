"""A run walks from its spec to its end, whatever happens on the way, and holds no GPU afterwards."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.in_memory.run_store import InMemoryRunStore
from tests.in_memory.sources import FixedInventory
from tests.unit.app.playing import Airflow, make_job
from tests.unit.installation import small_cluster

from frenzy.adapters.calibration_file import default_calibration
from frenzy.app.cancellation import cancel
from frenzy.app.place import place_status
from frenzy.app.queries import explain, gpus_view, queue_view, run_view, view_of
from frenzy.app.reconciliation import reconcile, reconcile_targets
from frenzy.app.services import require_run
from frenzy.app.settlement import end_attempt
from frenzy.core.lifecycle.why import why
from frenzy.core.planning.asked_cards import plan_asked_for
from frenzy.core.runs.ledger import JobState, LeaseState
from frenzy.core.runs.protocol import DirectiveKind, EndReport, PlaceStatus, ReconcileReport, VerdictKind
from frenzy.core.runs.steps import steps_are_estimated
from frenzy.core.values.cluster import Cluster, NodeAllocation, Placement
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError
from frenzy.core.values.job import ConstraintsSpec, TrainingJob, TrainingSpec, ValidationSpec
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.scheduling_facts import Start
from frenzy.core.values.units import GIB, MIB
from frenzy.ports import LedgerTx

BY_USER = Reason(code=ReasonCode.CANCELLED_BY_USER, detail="Pressed by a test.")


def test_an_undisturbed_run_succeeds_and_frees_its_gpus(airflow: Airflow) -> None:
    assert airflow.register(make_job()).run.state is JobState.PLANNED
    placed = airflow.place()
    assert placed.status is PlaceStatus.PLACED
    assert placed.spec is not None
    assert placed.spec.attempt == 1
    assert airflow.launch(1).kind is DirectiveKind.CONTINUE
    airflow.step(1, 1)
    assert run_view(airflow.services, airflow.key).run.state is JobState.RUNNING
    airflow.end(1, 0, last_step=100)
    assert airflow.decide().kind is VerdictKind.DONE
    assert airflow.free_gpus == 4


def test_pressure_moves_the_run_to_a_plan_with_more_room(airflow: Airflow) -> None:
    airflow.begun()
    first = run_view(airflow.services, airflow.key).attempts[0].plan
    extra = first.gpu_memory_bytes - first.memory.peak_allocated_bytes
    assert airflow.press(1, extra=extra).kind is DirectiveKind.CHECKPOINT_AND_STOP
    airflow.end(1, 98)
    assert airflow.decide().kind is VerdictKind.RETRY
    placed = airflow.place()
    assert placed.spec is not None
    assert placed.spec.attempt == 2
    second = placed.spec.plan
    assert second.shape != first.shape
    assert second.global_batch_size == first.global_batch_size
    assert second.gpu_memory_bytes - second.memory.peak_allocated_bytes > extra


def test_pressure_is_not_acted_upon_when_no_plan_has_more_room(airflow: Airflow) -> None:
    airflow.begun()
    assert airflow.press(1, extra=100 * GIB).kind is DirectiveKind.CONTINUE
    view = run_view(airflow.services, airflow.key)
    assert view.run.state is JobState.RUNNING
    assert any("NO_OTHER_PLAN" in event.text for event in view.events)


def test_pressure_is_not_acted_upon_when_the_forecast_is_off(airflow: Airflow) -> None:
    airflow.begun(make_job(forecast=False))
    assert airflow.press(1, extra=MIB).kind is DirectiveKind.CONTINUE


def test_out_of_memory_recovers_on_another_plan(airflow: Airflow) -> None:
    airflow.begun()
    first = run_view(airflow.services, airflow.key).attempts[0].plan
    airflow.end(1, 97)
    assert airflow.decide().kind is VerdictKind.RETRY
    placed = airflow.place()
    assert placed.spec is not None
    assert placed.spec.plan.shape != first.shape


def test_a_killed_worker_is_retried_and_a_repeated_crash_fails(airflow: Airflow) -> None:
    airflow.begun(make_job(max_reschedules=50))
    for attempt in (1, 2):
        airflow.end(attempt, 137, last_step=5)
        assert airflow.decide().kind is VerdictKind.RETRY
        airflow.place()
        airflow.launch(attempt + 1)
    airflow.end(3, 137, last_step=5)
    verdict = airflow.decide()
    assert verdict.kind is VerdictKind.FAIL
    assert run_view(airflow.services, airflow.key).run.state is JobState.FAILED


def test_the_budget_of_moves_bounds_recovery(airflow: Airflow) -> None:
    airflow.begun(make_job(max_reschedules=0))
    airflow.end(1, 97)
    verdict = airflow.decide()
    assert verdict.kind is VerdictKind.FAIL
    assert verdict.reason.code is ReasonCode.RESCHEDULE_BUDGET_SPENT
    assert run_view(airflow.services, airflow.key).run.state is JobState.FAILED_OOM


def out_of_memory_on_every_plan(airflow: Airflow) -> str:
    """The remedy of the run's end."""
    airflow.begun(make_job(max_reschedules=50))
    attempt = 1
    airflow.end(attempt, 97)
    while (verdict := airflow.decide()).kind is VerdictKind.RETRY:
        airflow.place()
        attempt += 1
        airflow.launch(attempt)
        airflow.end(attempt, 97)
    assert verdict.reason.code is ReasonCode.NO_OTHER_PLAN
    return verdict.reason.remedy or ""


def test_out_of_memory_on_the_last_plan_names_the_command_that_lists_what_mends_it(airflow: Airflow) -> None:
    services = replace(airflow.services, marp_policy="closed-form", calibration=default_calibration())
    predicted = replace(airflow, services=services)
    named = re.search(r"frenzy plan FILE --fit (\S+) lists", out_of_memory_on_every_plan(predicted))
    assert named is not None
    with services.ledger.reading() as tx:
        asked = plan_asked_for(named[1], tx.cluster())
    assert asked is not None
    assert asked[1] == run_view(services, predicted.key).attempts[-1].plan.shape


def test_out_of_memory_on_the_last_plan_of_the_paper_names_no_command_that_would_refuse_it(airflow: Airflow) -> None:
    assert "shorten data.sequence_length" in (remedy := out_of_memory_on_every_plan(airflow))
    assert "--fit" not in remedy


def test_decide_asked_again_says_the_same(airflow: Airflow) -> None:
    airflow.begun()
    airflow.end(1, 97)
    assert airflow.decide() == airflow.decide()


def test_enqueue_and_end_repeated_change_nothing(airflow: Airflow) -> None:
    airflow.begun()
    assert airflow.place().spec == airflow.place().spec
    once = airflow.end(1, 0, last_step=100)
    assert airflow.end(1, 97) == once
    assert airflow.free_gpus == 4


def test_registering_again_keeps_the_frozen_spec(airflow: Airflow) -> None:
    before = airflow.register(make_job(batch=8))
    after = airflow.register(make_job(batch=16))
    assert after.run.job == before.run.job


def test_a_job_that_fits_nowhere_is_refused_with_a_remedy(airflow: Airflow) -> None:
    job = make_job()
    tight = job.__class__(
        **{
            **{name: getattr(job, name) for name in job.__dataclass_fields__},
            "constraints": job.constraints.__class__(gpu_types=("no-such-type",)),
        }
    )
    view = airflow.register(tight)
    assert view.run.state is JobState.FAILED_NO_RESOURCE
    assert view.run.reason is not None
    assert view.run.reason.remedy


def test_two_jobs_for_the_last_gpus_run_one_after_the_other(airflow: Airflow) -> None:
    others = [airflow.another() for _ in range(8)]
    for index, each in enumerate(others):
        each.register(make_job(f"job{index}"), run_id=f"r{index}")
        each.place()
    view = queue_view(airflow.services)
    assert view.waiting, "more jobs than GPUs: one must wait"
    assert all(row.reason is not None for row in view.waiting)
    assert [row.position for row in view.waiting] == list(range(1, len(view.waiting) + 1))
    waiter = next(each for each in others if each.key == view.waiting[0].run_key)
    for each in others:
        if each is not waiter and place_status(each.services, each.key).status is PlaceStatus.PLACED:
            each.launch(1)
            each.end(1, 0, last_step=100)
    assert place_status(waiter.services, waiter.key).status is PlaceStatus.PLACED


def test_a_run_that_is_planned_anew_is_explained_without_its_first_plan(airflow: Airflow) -> None:
    airflow.begun()
    airflow.press(1, extra=20 * MIB)
    airflow.end(1, 98)
    airflow.place()
    cancel(airflow.services, airflow.key, BY_USER)
    assert "Ranked first" not in "\n".join(explain(airflow.services, airflow.key).lines)
    resumed = airflow.register(make_job())
    lines = "\n".join(explain(airflow.services, airflow.key).lines)
    assert (resumed.run.state, resumed.run.num_attempts) == (JobState.PLANNED, 2)
    assert "Planned anew after an attempt: 4 plans fit" in lines
    assert "Ranked first" not in lines


def refused_today(airflow: Airflow) -> None:
    """As a release without a check would have left the run."""
    with airflow.services.ledger.transaction() as tx:
        run = tx.run(airflow.key)
        assert run is not None
        tx.put_run(replace(run, model_config={**(run.model_config or {}), "vocab_size": 200}))


def test_a_run_that_an_earlier_release_planned_is_refused_in_its_place_by_name(airflow: Airflow) -> None:
    airflow.register(make_job())
    refused_today(airflow)
    airflow.place()
    run = run_view(airflow.services, airflow.key).run
    assert run.state is JobState.FAILED_NO_RESOURCE
    assert run.reason is not None and "vocab_size is 200" in run.reason.sentence


def test_a_run_that_an_earlier_release_started_trains_on_and_is_not_moved(airflow: Airflow) -> None:
    airflow.begun()
    refused_today(airflow)
    assert airflow.press(1, extra=20 * MIB).kind is DirectiveKind.CONTINUE
    assert airflow.end(1, 0, last_step=100).run.state is JobState.SUCCEEDED


def test_a_queued_run_is_cancelled_at_once(airflow: Airflow) -> None:
    airflow.register(make_job())
    cancel(airflow.services, airflow.key, BY_USER)
    assert run_view(airflow.services, airflow.key).run.state is JobState.CANCELLED


def test_a_placed_run_that_never_launched_frees_its_gpus_at_once(airflow: Airflow) -> None:
    airflow.register(make_job())
    airflow.place()
    cancel(airflow.services, airflow.key, BY_USER)
    assert airflow.free_gpus == 4
    assert airflow.launch(1).kind is DirectiveKind.ENDED


def test_a_running_run_holds_its_gpus_until_its_workers_are_gone(airflow: Airflow) -> None:
    airflow.begun()
    cancel(airflow.services, airflow.key, BY_USER)
    assert airflow.free_gpus < 4
    assert airflow.step(1, 2).kind is DirectiveKind.KILL
    airflow.end(1, 137)
    assert airflow.free_gpus == 4
    assert run_view(airflow.services, airflow.key).run.state is JobState.CANCELLED
    assert airflow.decide().kind is VerdictKind.FAIL


def test_a_cancelled_run_that_finished_first_counts_as_done(airflow: Airflow) -> None:
    airflow.begun()
    cancel(airflow.services, airflow.key, BY_USER)
    airflow.end(1, 0, last_step=100)
    assert run_view(airflow.services, airflow.key).run.state is JobState.SUCCEEDED


def test_decide_waits_for_workers_that_are_not_proved_gone(airflow: Airflow) -> None:
    airflow.begun()
    with pytest.raises(TemporaryError, match="WAITING_FOR_OLD_WORKERS"):
        airflow.decide()


def test_a_launch_that_never_began_is_tried_again_and_not_charged(airflow: Airflow) -> None:
    airflow.register(make_job(max_reschedules=0))
    airflow.place()
    assert airflow.decide().kind is VerdictKind.RETRY
    placed = airflow.place()
    assert placed.spec is not None
    assert placed.spec.attempt == 2


def test_a_run_that_failed_runs_again_when_its_tasks_are_cleared(airflow: Airflow) -> None:
    airflow.begun(make_job(max_reschedules=0))
    airflow.end(1, 97)
    airflow.decide()
    airflow.clock.advance(10)
    assert airflow.register(make_job(batch=16)).run.state is JobState.PLANNED
    placed = airflow.place()
    assert placed.spec is not None
    assert placed.spec.attempt == 2
    assert placed.spec.job.training.global_batch_size == 16


@pytest.mark.parametrize(("batch", "step", "told"), [(8, 10, "goes on from step 10"), (16, None, "starts again")])
def test_a_cleared_run_knows_the_checkpoint_that_it_goes_on_from(
    airflow: Airflow, batch: int, step: int | None, told: str
) -> None:
    airflow.begun(make_job(batch=8, max_reschedules=0))
    assert isinstance(airflow.services.runs, InMemoryRunStore)
    airflow.services.runs.write_checkpoint(airflow.key, 10)
    airflow.end(1, 97)
    airflow.decide()
    airflow.clock.advance(10)
    airflow.register(make_job(batch=batch, max_reschedules=0))
    airflow.place()
    view = run_view(airflow.services, airflow.key)
    following = view.attempts[-1].next_attempt
    assert following.checkpoint_step == step
    begins = f"Resumed from step {step}." if step else "Started again, without a checkpoint."
    assert following.reason.detail.startswith(begins)
    assert told in why(view.run, view.attempts, None)
    with airflow.services.ledger.reading() as tx:
        assert "registered again, its spec is frozen." in " ".join(each.text for each in tx.events(airflow.key))


def cleared_with_a_checkpoint(airflow: Airflow) -> InMemoryRunStore:
    """A run of batches of 8 that has failed with a checkpoint of step 10."""
    airflow.begun(make_job(batch=8, max_reschedules=0))
    store = airflow.services.runs
    assert isinstance(store, InMemoryRunStore)
    store.write_checkpoint(airflow.key, 10)
    airflow.end(1, 97)
    airflow.decide()
    airflow.clock.advance(10)
    return store


def test_a_cleared_run_whose_new_specification_is_refused_keeps_its_checkpoints_for_the_old_one(
    airflow: Airflow,
) -> None:
    store = cleared_with_a_checkpoint(airflow)
    nowhere = replace(make_job(batch=10**6), constraints=ConstraintsSpec(gpu_types=("none",)))
    for job in (nowhere, nowhere):
        assert airflow.register(job).run.state is JobState.FAILED_NO_RESOURCE
        assert store.checkpoint_steps(airflow.key) == (10,)
        airflow.clock.advance(10)
    airflow.register(make_job(batch=8, max_reschedules=0))
    placed = airflow.place()
    assert placed.spec is not None
    airflow.launch(placed.spec.attempt)
    assert store.checkpoint_steps(airflow.key) == (10,)
    assert run_view(airflow.services, airflow.key).attempts[-1].next_attempt.checkpoint_step == 10


def test_checkpoints_of_another_specification_go_once_and_before_any_worker_is_started(airflow: Airflow) -> None:
    store = cleared_with_a_checkpoint(airflow)
    airflow.register(make_job(batch=16))
    airflow.place()
    assert store.checkpoint_steps(airflow.key) == (10,), "no files are removed while others wait for the ledger"
    airflow.launch(2)
    assert store.checkpoint_steps(airflow.key) == ()
    store.write_checkpoint(airflow.key, 20)
    airflow.launch(2)
    airflow.step(2, 20)
    airflow.end(2, 137, last_step=20)
    airflow.decide()
    airflow.place()
    airflow.launch(3)
    assert store.checkpoint_steps(airflow.key) == (20,)


def test_every_state_has_an_explanation(airflow: Airflow) -> None:
    airflow.begun()
    lines = explain(airflow.services, airflow.key).lines
    assert lines[0] == "Job 'job' is RUNNING."
    assert any("Attempt 1" in line for line in lines)


def test_an_end_is_explained_once_and_an_attempt_without_a_step_has_none(airflow: Airflow) -> None:
    airflow.register(make_job())
    airflow.place()
    airflow.launch(1)
    airflow.end(1, 0, last_step=0)
    airflow.decide()
    lines = explain(airflow.services, airflow.key).lines
    (ended,) = (each for each in lines if each.startswith("It ended: "))
    assert ended.partition(": ")[2].partition(": ")[2] not in lines
    assert any("no step, peak" in line for line in lines)


def test_a_gpu_type_that_leaves_the_inventory_while_held_stays_known(airflow: Airflow) -> None:
    airflow.begun()
    view = run_view(airflow.services, airflow.key)
    assert view.lease is not None
    gone = view.lease.gpu_type
    whole = small_cluster()
    left = Cluster(
        gpu_types=tuple(each for each in whole.gpu_types if each.name != gone),
        nodes=tuple(each for each in whole.nodes if each.gpu_type != gone),
    )
    assert isinstance(airflow.services.inventory, FixedInventory)
    airflow.services.inventory.replace(left)
    (target,) = reconcile_targets(airflow.services)
    assert target.spec.gpu.name == gone
    assert place_status(airflow.services, airflow.key).spec is not None
    reconcile(airflow.services, ReconcileReport(findings=()))
    airflow.end(1, 0, last_step=100)
    reconcile_targets(airflow.services)
    assert [row.gpu_type for row in gpus_view(airflow.services).types] == [each.name for each in left.gpu_types]


def test_a_refused_lease_does_not_undo_the_end_of_another_run(airflow: Airflow) -> None:
    airflow.begun(make_job("first", batch=1))
    others = [airflow.another() for _ in range(8)]
    for number, each in enumerate(others):
        each.register(make_job(f"other-{number}"))
        each.place()
    (waiting, *_) = [e for e in others if place_status(e.services, e.key).status is PlaceStatus.WAITING]
    with airflow.services.ledger.reading() as tx:
        entry = tx.queue_entry(waiting.key)
    assert entry is not None
    nowhere = Placement(allocations=(NodeAllocation(node="no such node", num_gpus=1),))
    start = Start(run_key=waiting.key, plan=entry.plans[0], placement=nowhere)
    services = replace(airflow.services, schedule=lambda facts, now_s, policy: (start,))
    assert replace(airflow, services=services).end(1, 0, last_step=100).run.state is JobState.SUCCEEDED
    assert place_status(waiting.services, waiting.key).status is PlaceStatus.WAITING


def test_a_second_alarm_does_not_replace_the_reason_of_a_stop(airflow: Airflow) -> None:
    airflow.begun()
    with pytest.raises(TemporaryError, match="WAITING_FOR_OLD_WORKERS"):
        airflow.decide()
    assert airflow.press(1, extra=MIB).kind is DirectiveKind.KILL
    assert run_view(airflow.services, airflow.key).run.state is JobState.RUNNING


def test_workers_that_did_not_stop_in_time_are_moved_all_the_same(airflow: Airflow) -> None:
    airflow.begun()
    first = run_view(airflow.services, airflow.key).attempts[0].plan
    assert airflow.press(1, extra=MIB).kind is DirectiveKind.CHECKPOINT_AND_STOP
    airflow.end(1, 137)
    assert airflow.decide().reason.code is ReasonCode.MEMORY_PRESSURE_FORECAST
    placed = airflow.place()
    assert placed.spec is not None
    assert placed.spec.plan.shape != first.shape


def test_a_clock_that_is_set_back_loses_no_attempt(airflow: Airflow) -> None:
    airflow.register(make_job(max_reschedules=1))
    airflow.clock.advance(-5)
    airflow.place()
    for attempt in (1, 2):
        airflow.launch(attempt)
        airflow.end(attempt, 97)
        verdict = airflow.decide()
        airflow.place()
    assert verdict.reason.code is ReasonCode.RESCHEDULE_BUDGET_SPENT


def test_the_trainers_own_count_of_steps_replaces_the_estimate(airflow: Airflow) -> None:
    airflow.begun(replace(make_job(), training=TrainingSpec(epochs=1, global_batch_size=8)))
    result = AttemptResult(exit_code=98, last_step=10, total_steps=90)
    end_attempt(airflow.services, airflow.key, 1, EndReport(result=result))
    assert run_view(airflow.services, airflow.key).run.total_steps == 90
    assert run_view(airflow.services, airflow.key).run.state is JobState.RECOVERING


def test_a_crash_in_a_cluster_that_is_gone_is_not_called_a_lack_of_memory(airflow: Airflow) -> None:
    airflow.begun()
    assert isinstance(airflow.services.inventory, FixedInventory)
    airflow.services.inventory.replace(Cluster(gpu_types=(), nodes=()))
    airflow.end(1, 137)
    reconcile_targets(airflow.services)
    verdict = airflow.decide()
    assert verdict.kind is VerdictKind.FAIL
    assert "no plan fits the cluster any more" in verdict.reason.sentence


def test_a_card_that_a_job_names_as_its_driver_does_is_planned(airflow: Airflow) -> None:
    gpu = small_cluster().gpu_types[0]
    services = replace(airflow.services, sold_as=lambda name: [gpu] if name == "ACME Card 9" else [])
    job = replace(make_job(), constraints=ConstraintsSpec(gpu_types=("ACME Card 9",)))
    view = replace(airflow, services=services).register(job)
    assert {each.plan.gpu_type for each in view.candidates if each.feasible} == {gpu.name}


def test_a_node_that_a_run_was_lost_on_is_used_again_once_no_other_could_run_it(airflow: Airflow) -> None:
    whole = small_cluster()
    spec = airflow.begun().place().spec
    assert spec is not None
    (held,) = spec.placement.allocations
    left, other = sorted(whole.nodes, key=lambda node: node.name != held.node)
    on_other = ConstraintsSpec(gpu_types=(other.gpu_type,), max_gpus=1)
    for name in ("first", "second"):
        assert airflow.submitted(replace(make_job(name), constraints=on_other)).is_placed
    lost = EndReport(reason=Reason(code=ReasonCode.NODE_LOST), lost_nodes=(left.name,))
    end_attempt(airflow.services, airflow.key, 1, lost)
    assert airflow.decide().kind is VerdictKind.RETRY
    assert airflow.place().status is PlaceStatus.WAITING
    assert isinstance(airflow.services.inventory, FixedInventory)
    airflow.services.inventory.replace(Cluster(gpu_types=whole.gpu_types, nodes=(left,)))
    reconcile_targets(airflow.services)
    reconcile(airflow.services, ReconcileReport(findings=()))
    again = place_status(airflow.services, airflow.key).spec
    assert again is not None
    assert [each.node for each in again.placement.allocations] == [left.name]


class _OneRunOnly:
    """A transaction in which nobody asks for what others hold."""

    def __init__(self, tx: LedgerTx) -> None:
        self._tx = tx

    def __getattr__(self, name: str) -> Any:
        assert name != "held_leases"
        return getattr(self._tx, name)


def test_showing_a_run_asks_for_no_other_runs_lease(airflow: Airflow) -> None:
    airflow.begun()
    with airflow.services.ledger.reading() as tx:
        run = require_run(tx, airflow.key)
        lease = view_of(cast(LedgerTx, _OneRunOnly(tx)), run).lease
    assert lease is not None
    assert lease.state is LeaseState.LIVE
    airflow.end(1, 137)
    assert run_view(airflow.services, airflow.key).lease is None


def by_epochs() -> TrainingJob:
    job = make_job()
    return replace(job, training=replace(job.training, max_steps=None, epochs=1.0))


def test_steps_are_an_estimate_until_the_tokens_are_counted_and_the_history_says_what_they_were(
    airflow: Airflow,
) -> None:
    job = by_epochs()
    airflow.begun(job)
    estimated = run_view(airflow.services, airflow.key).run
    assert steps_are_estimated(estimated)
    airflow.end(1, 137)
    airflow.decide()
    airflow.place()
    airflow.launch(2)
    view = run_view(airflow.services, airflow.key)
    assert view.run.total_steps == 100
    assert not steps_are_estimated(view.run)
    said = f"The data make 100 steps; {estimated.total_steps} were estimated before the tokens were counted."
    assert said in [each.text for each in view.events]
    assert not steps_are_estimated(run_view(airflow.services, airflow.another().begun(make_job(), "given").key).run)


def test_a_run_that_stopped_early_is_not_told_as_miscounted(airflow: Airflow) -> None:
    airflow.begun(replace(by_epochs(), validation=ValidationSpec(patience=1)))
    early = AttemptResult(exit_code=0, last_step=50, total_steps=50, stopped_early=True)
    view = end_attempt(airflow.services, airflow.key, 1, EndReport(result=early))
    assert view.run.state is JobState.SUCCEEDED
    assert not [each.text for each in view.events if each.kind == "data"]
