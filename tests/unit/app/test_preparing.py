"""Before it queues, a run has its data prepared; what was prepared is frozen, and why it was not ends the run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.cancellation import cancel
from frenzy.app.place import place_status
from frenzy.app.preparing import prepared, preparing
from frenzy.app.queries import explain, list_runs, queue_view, run_view
from frenzy.app.reconciliation import reconcile_targets
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import DirectiveKind, PlaceStatus, PreparedReport, PreparingReport, VerdictKind
from frenzy.core.values.errors import ContractError, Reason, ReasonCode
from frenzy.core.values.job import TrainingSpec
from frenzy.core.values.prepared_data import PreparedData
from frenzy.core.values.telemetry import Heartbeat

BEGINS = PreparingReport(begins=True)
FOUND = PreparedData(
    shards="a" * 32,
    tokenizer="b" * 32,
    digest="c" * 32,
    num_tokens=10_000,
    num_train=70,
    num_validation=8,
    total_steps=100,
)
BY_USER = Reason(code=ReasonCode.CANCELLED_BY_USER, detail="Pressed by a test.")


@pytest.fixture
def planned(airflow: Airflow) -> Airflow:
    airflow.register(make_job())
    return airflow


def state(airflow: Airflow) -> JobState:
    return run_view(airflow.services, airflow.key).run.state


def begin(airflow: Airflow) -> int:
    directive = preparing(airflow.services, airflow.key, BEGINS)
    assert directive.kind is DirectiveKind.CONTINUE
    assert directive.spec is not None
    return directive.spec.number


def test_what_was_prepared_is_frozen_and_told_to_the_workers(planned: Airflow) -> None:
    begin(planned)
    assert state(planned) is JobState.PREPARING
    view = prepared(planned.services, planned.key, PreparedReport(prepared=FOUND))
    assert (view.run.state, view.run.prepared) == (JobState.PLANNED, FOUND)
    placed = planned.place()
    assert placed.spec is not None
    assert placed.spec.prepared == FOUND


def test_the_steps_are_counted_from_the_sequences_that_there_are(airflow: Airflow) -> None:
    job = replace(make_job(), training=TrainingSpec(epochs=2.0, global_batch_size=8))
    airflow.register(job)
    begin(airflow)
    with pytest.raises(ContractError, match="total_steps"):
        prepared(airflow.services, airflow.key, PreparedReport(prepared=FOUND))
    found = replace(FOUND, total_steps=18)
    assert prepared(airflow.services, airflow.key, PreparedReport(prepared=found)).run.total_steps == 18


@pytest.mark.parametrize("name", ["../" * 10 + "ab", "A" * 32, "a" * 31 + "/"])
def test_a_name_that_leads_elsewhere_is_refused(planned: Airflow, name: str) -> None:
    begin(planned)
    with pytest.raises(ContractError, match="hexadecimal"):
        prepared(planned.services, planned.key, PreparedReport(prepared=replace(FOUND, shards=name)))
    assert state(planned) is JobState.PREPARING


def test_how_far_it_is_is_told_where_runs_are_shown(planned: Airflow) -> None:
    begin(planned)
    sign = Heartbeat(phase="tokens\x1b[2J made", time_s=1e30, done=10**30)
    assert preparing(planned.services, planned.key, PreparingReport(progress=sign)).kind is DirectiveKind.CONTINUE
    known = run_view(planned.services, planned.key).preparation
    assert known is not None
    assert known.progress is not None
    assert known.progress.phase == "tokens[2J made"
    assert known.progress.done == 10**18
    assert [each.preparation for each in list_runs(planned.services)] == [known]
    assert [each.run_key for each in queue_view(planned.services).preparing] == [planned.key]
    assert any("tokens[2J made" in line for line in explain(planned.services, planned.key).lines)


def test_each_beginning_has_a_number_of_its_own_but_for_one_that_is_found_at_work(planned: Airflow) -> None:
    assert [begin(planned), begin(planned)] == [1, 2]
    found = preparing(planned.services, planned.key, PreparingReport(begins=True, found=2))
    assert found.spec is not None
    assert found.spec.number == 2


def test_data_that_are_refused_end_the_run_with_what_is_wrong_with_them(planned: Airflow) -> None:
    begin(planned)
    why = Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail="data.path: 'x' is refused; there is no text in it")
    run = prepared(planned.services, planned.key, PreparedReport(reason=why)).run
    assert (run.state, run.reason) == (JobState.FAILED, why)


def test_any_other_failure_ends_it_as_not_prepared_and_says_what_to_do(planned: Airflow) -> None:
    begin(planned)
    why = Reason(code=ReasonCode.DISK_FULL, detail="No space left on device.")
    run = prepared(planned.services, planned.key, PreparedReport(reason=why)).run
    assert run.state is JobState.FAILED_SETUP
    assert run.reason is not None
    assert run.reason.code is ReasonCode.DATA_NOT_PREPARED
    assert "No space left" in run.reason.detail
    assert run.reason.remedy
    assert planned.decide().kind is VerdictKind.FAIL


def test_a_task_that_died_ends_the_run(planned: Airflow) -> None:
    begin(planned)
    verdict = planned.decide()
    assert (verdict.kind, verdict.reason.code) == (VerdictKind.FAIL, ReasonCode.DATA_NOT_PREPARED)
    assert state(planned) is JobState.FAILED_SETUP


def test_a_cleared_task_goes_on_where_the_data_could_not_be_prepared(planned: Airflow) -> None:
    begin(planned)
    planned.decide()
    assert begin(planned) == 2
    assert state(planned) is JobState.PREPARING


def test_a_cancelled_run_stops_preparing_and_is_not_begun_again(planned: Airflow) -> None:
    begin(planned)
    cancel(planned.services, planned.key, BY_USER)
    assert state(planned) is JobState.CANCELLED
    for report in (PreparingReport(), BEGINS):
        assert preparing(planned.services, planned.key, report).kind is DirectiveKind.KILL
    prepared(planned.services, planned.key, PreparedReport(prepared=FOUND))
    assert state(planned) is JobState.CANCELLED


def test_a_run_whose_dag_run_was_ended_stops_preparing(planned: Airflow) -> None:
    begin(planned)
    identity = run_view(planned.services, planned.key).run.identity
    planned.services.ledger.over_dag_runs.add((identity.dag_id, identity.run_id))  # type: ignore[attr-defined]
    reconcile_targets(planned.services)
    assert state(planned) is JobState.CANCELLED


def test_what_is_prepared_is_not_prepared_again(planned: Airflow) -> None:
    begin(planned)
    prepared(planned.services, planned.key, PreparedReport(prepared=FOUND))
    assert preparing(planned.services, planned.key, BEGINS).kind is DirectiveKind.ENDED


def test_a_run_that_fits_nowhere_any_more_is_refused_though_nobody_told_of_its_data(planned: Airflow) -> None:
    begin(planned)
    with planned.services.ledger.transaction() as tx:
        tx.put_cluster(replace(tx.cluster(), nodes=()))
    assert planned.place().status is PlaceStatus.REFUSED
    assert state(planned) is JobState.FAILED_NO_RESOURCE


def test_a_run_that_has_its_place_needs_no_preparing(planned: Airflow) -> None:
    planned.place()
    assert preparing(planned.services, planned.key, BEGINS).kind is DirectiveKind.ENDED
    assert place_status(planned.services, planned.key).spec is not None


def test_later_attempts_read_the_same_data(planned: Airflow) -> None:
    begin(planned)
    prepared(planned.services, planned.key, PreparedReport(prepared=FOUND))
    planned.place()
    planned.launch(1)
    planned.step(1, 1)
    planned.end(1, 97)
    planned.decide()
    placed = planned.place()
    assert placed.spec is not None
    assert (placed.spec.attempt, placed.spec.prepared) == (2, FOUND)


def cleared_after_training(airflow: Airflow) -> InMemoryRunStore:
    """A run that saved a checkpoint of FOUND and ended; its tasks were cleared, and nothing else has changed."""
    begin(airflow)
    prepared(airflow.services, airflow.key, PreparedReport(prepared=FOUND))
    store = airflow.services.runs
    assert isinstance(store, InMemoryRunStore)
    store.write_checkpoint(airflow.key, 50)
    cancel(airflow.services, airflow.key, BY_USER)
    airflow.clock.advance(1.0)
    assert airflow.register(make_job()).run.prepared is None
    return store


@pytest.mark.parametrize(("changed", "kept"), [([], (50,)), (["shards"], (50,)), (["digest"], ()), (["tokenizer"], ())])
def test_a_cleared_run_keeps_its_checkpoints_if_its_data_are_the_same(
    planned: Airflow, changed: list[str], kept: tuple[int, ...]
) -> None:
    store = cleared_after_training(planned)
    begin(planned)
    assert store.checkpoint_steps(planned.key) == (50,)
    prepared(planned.services, planned.key, PreparedReport(prepared=replace(FOUND, **dict.fromkeys(changed, "d" * 32))))
    assert store.checkpoint_steps(planned.key) == (50,), "they go with the start of workers"
    planned.place()
    planned.launch(1)
    assert store.checkpoint_steps(planned.key) == kept
    events = run_view(planned.services, planned.key).events
    assert any("The data have changed" in each.text for each in events) is not bool(kept)
    store.write_checkpoint(planned.key, 60)
    planned.launch(1)
    assert 60 in store.checkpoint_steps(planned.key), "they are looked at once"


def test_a_run_cleared_twice_before_it_was_prepared_knows_its_data_still(planned: Airflow) -> None:
    store = cleared_after_training(planned)
    cancel(planned.services, planned.key, BY_USER)
    planned.register(make_job())
    begin(planned)
    prepared(planned.services, planned.key, PreparedReport(prepared=replace(FOUND, digest="d" * 32)))
    planned.place()
    planned.launch(1)
    assert store.checkpoint_steps(planned.key) == ()


def test_checkpoints_of_prepared_data_go_where_workers_prepare_them_now(planned: Airflow) -> None:
    store = cleared_after_training(planned)
    planned.place()
    planned.launch(1)
    assert store.checkpoint_steps(planned.key) == ()
