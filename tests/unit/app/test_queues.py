"""Queues and quotas in the product: refused by name, kept by every pass, shown, captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from tests.in_memory.sources import FixedQueues
from tests.unit.app.playing import Airflow, make_job
from tests.unit.installation import CONFIG

from frenzy.app.place import place_status
from frenzy.app.queries import explain, queue_view
from frenzy.app.queue_snapshot import queue_snapshot
from frenzy.app.register import preview, register_run
from frenzy.app.stored_jobs import store_job
from frenzy.core.runs.access import Caller
from frenzy.core.runs.ledger import DataFacts, JobState, RunIdentity
from frenzy.core.runs.protocol import PlaceStatus, RegisterRun
from frenzy.core.runs.views import QueueSnapshot
from frenzy.core.scheduling import HasPolicy
from frenzy.core.values.codec import dumps, loads
from frenzy.core.values.errors import ReasonCode, SpecError
from frenzy.core.values.job import ConstraintsSpec, TrainingJob
from frenzy.core.values.queue_rules import QueueRule, QueueRules, Quota, TeamRule
from frenzy.sim.snapshot import product_scheduler

RULES = QueueRules(
    queues=(QueueRule(name="research", weight=3.0), QueueRule(name="default")),
    teams=(TeamRule(name="red", quota=Quota(max_gpus=1)),),
)

ADMIN = Caller(name="admin", is_admin=True)


@pytest.fixture
def shared(airflow: Airflow) -> Airflow:
    return replace(airflow, services=replace(airflow.services, queues=FixedQueues(RULES)))


def of(name: str, *, queue: str = "default", team: str = "default") -> TrainingJob:
    return replace(make_job(name), queue=queue, team=team)


def test_a_queue_that_is_not_there_is_refused_with_those_that_are(shared: Airflow) -> None:
    lost = of("lost", queue="reserch")
    identity = RunIdentity(dag_id="job_lost", run_id="r", task_group="train")
    asked = RegisterRun(identity=identity, job=lost, model_config=CONFIG, data_facts=DataFacts(num_tokens=10**6))
    for attempt in (
        lambda: store_job(shared.services, lost, "name: lost", caller=ADMIN),
        lambda: register_run(shared.services, asked),
        lambda: preview(shared.services, asked, ADMIN),
    ):
        with pytest.raises(SpecError) as refusal:
            attempt()
        (violation,) = refusal.value.violations
        assert (violation.path, violation.value, violation.allowed) == (
            "queue",
            "'reserch'",
            "one of research, default",
        )


def test_a_job_without_a_queue_is_told_why_it_is_refused_where_there_is_no_default_one() -> None:
    (violation,) = QueueRules(queues=(QueueRule(name="research"),)).refusals("default")
    assert violation.allowed == "one of research; jobs that name none are in 'default', if an administrator adds that"


def test_without_queues_a_job_may_name_any(airflow: Airflow) -> None:
    assert store_job(airflow.services, of("anywhere", queue="reserch"), "name: anywhere", caller=ADMIN)


SECRETS: Final = QueueRules(
    queues=(QueueRule(name="default"), QueueRule(name="research", secrets=("k8s:research/*",))),
    teams=(TeamRule(name="red", secrets=("env:HF_TOKEN",)), TeamRule(name="*")),
)


def entrances(airflow: Airflow, job: TrainingJob) -> tuple[Callable[[], object], ...]:
    """Every way in which a specification comes to be kept, run or planned."""
    identity = RunIdentity(dag_id=f"job_{job.name}", run_id="r", task_group="train")
    asked = RegisterRun(identity=identity, job=job, model_config=CONFIG, data_facts=DataFacts(num_tokens=10**6))
    return (
        lambda: store_job(airflow.services, job, f"name: {job.name}", caller=ADMIN),
        lambda: preview(airflow.services, asked, ADMIN),
        lambda: register_run(airflow.services, asked),
    )


@pytest.mark.parametrize("rules", [QueueRules(), RULES, SECRETS])
@pytest.mark.parametrize(
    "reference", ["k8s:frenzy-airflow/connection", "env:AWS_SECRET_ACCESS_KEY", "env:AIRFLOW__CORE__FERNET_KEY"]
)
def test_a_secret_that_nobody_allowed_is_refused_at_every_entrance(
    airflow: Airflow, rules: QueueRules, reference: str
) -> None:
    told = replace(airflow, services=replace(airflow.services, queues=FixedQueues(rules)))
    for enter in entrances(told, replace(of("thief"), secrets={"MINE": reference})):
        with pytest.raises(SpecError) as refusal:
            enter()
        (violation,) = refusal.value.violations
        assert (violation.path, violation.value) == ("secrets.MINE", repr(reference))
        assert "queue default and the team default: none; ask your administrator" in violation.allowed


@pytest.mark.parametrize(
    ("queue", "team", "allowed"),
    [
        ("default", "default", ()),
        ("research", "default", ("k8s:research/hub",)),
        ("default", "red", ("env:HF_TOKEN",)),
        ("research", "red", ("env:HF_TOKEN", "k8s:research/hub")),
    ],
)
def test_secrets_are_those_of_the_queue_and_the_team(
    airflow: Airflow, queue: str, team: str, allowed: tuple[str, ...]
) -> None:
    told = replace(airflow, services=replace(airflow.services, queues=FixedQueues(SECRETS)))
    asked = {"A": "env:HF_TOKEN", "B": "k8s:research/hub", "C": "k8s:research-2/hub"}
    with pytest.raises(SpecError) as refusal:
        store_job(told.services, replace(of("one", queue=queue, team=team), secrets=asked), "name: one", caller=ADMIN)
    refused = {each.path.removeprefix("secrets.") for each in refusal.value.violations}
    assert {asked[name] for name in asked.keys() - refused} == set(allowed)
    fine = {name: each for name, each in asked.items() if each in allowed}
    for enter in entrances(told, replace(of("two", queue=queue, team=team), secrets=fine)):
        enter()


def test_a_team_at_its_quota_waits_beside_idle_gpus_and_says_why(shared: Airflow) -> None:
    first, second = (shared.submitted(of(name, team="red")) for name in ("first", "second"))
    other = shared.submitted(of("other", team="blue"))
    assert place_status(first.services, first.key).status is PlaceStatus.PLACED
    told = place_status(second.services, second.key)
    assert told.status is PlaceStatus.WAITING
    assert told.reason is not None
    assert told.reason.code is ReasonCode.WAITING_FOR_QUOTA
    assert "Team red may hold 1 GPU and holds 1" in told.reason.sentence
    assert place_status(other.services, other.key).status is PlaceStatus.PLACED
    lines = " ".join(explain(second.services, second.key).lines)
    assert "With a quota of 2 GPUs for team red it would start now." in lines


def test_the_queue_shows_queue_team_share_and_quota(shared: Airflow) -> None:
    shared.submitted(of("one", queue="research", team="red"))
    shared.submitted(of("two", queue="default", team="red"))
    view = queue_view(shared.services)
    assert [(row.queue, row.team) for row in view.running] == [("research", "red")]
    assert [(row.queue, row.team) for row in view.waiting] == [("default", "red")]
    assert [(row.queue, row.weight, row.num_running, row.num_waiting, row.held, row.share) for row in view.shares] == [
        ("research", 3.0, 1, 0, 1.0, 3.0),
        ("default", 1.0, 0, 1, 0.0, 1.0),
    ]
    assert [(row.name, row.held, row.max_gpus) for row in view.quotas] == [("red", 1, 1)]


def test_what_a_job_holds_until_it_has_left_is_its_queues(shared: Airflow) -> None:
    for index in range(4):
        job = shared.submitted(replace(of(f"job{index}"), constraints=ConstraintsSpec(max_gpus=1)))
        job.launch(1)
        job.step(1, 7)
        shared.clock.advance(600)
    shared.submitted(of("owner", queue="research"))
    view = queue_view(shared.services)
    assert JobState.CHECKPOINTING in {row.state for row in view.running}
    (default,) = (row for row in view.shares if row.queue == "default")
    assert (default.num_running, default.num_gpus, default.held) == (4, 4, 4.0)


def test_places_count_from_one_though_a_decision_looked_at_some_jobs_only(airflow: Airflow) -> None:
    for name in ("one", "two", "three", "four", "five"):
        airflow.submitted(of(name))
        airflow.clock.advance(1)
    with airflow.services.ledger.transaction() as tx:
        for entry in tx.queue():
            tx.put_queue_entry(replace(entry, position=2))
    waiting = queue_view(airflow.services).waiting
    assert [row.position for row in waiting] == list(range(1, len(waiting) + 1))
    assert [row.waiting_since_s for row in waiting] == sorted(row.waiting_since_s for row in waiting)
    assert len(waiting) > 1


def test_an_installation_without_queues_shows_none(airflow: Airflow) -> None:
    airflow.submitted(of("one"))
    view = queue_view(airflow.services)
    assert (view.shares, view.quotas) == ((), ())


def test_a_snapshot_is_simulated_with_the_queues_it_was_taken_with(shared: Airflow) -> None:
    shared.submitted(of("one", team="red"))
    found = loads(QueueSnapshot, dumps(queue_snapshot(shared.services)))
    assert found.queues == RULES
    assert product_scheduler(found).rules == HasPolicy(queues=RULES)


def test_a_change_of_the_rules_holds_from_the_next_pass_on(shared: Airflow) -> None:
    shared.submitted(of("first", team="red"))
    second = shared.submitted(of("second", team="red"))
    raised = replace(RULES, teams=(TeamRule(name="red", quota=Quota(max_gpus=4)),))
    shared.services.queues.replace(raised)
    shared.submitted(of("third", team="blue"))
    assert place_status(second.services, second.key).status is PlaceStatus.PLACED
