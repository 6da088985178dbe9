"""The product's own scheduler makes a running job give way to one that matters more, and leave a drained node."""

from __future__ import annotations

from dataclasses import replace

from tests.in_memory.sources import FixedQueues
from tests.unit.app.moving import STOPPED, ScriptedScheduler, a_pass, on_small, run_on, set_node, told_to_stop
from tests.unit.app.playing import Airflow, make_job
from tests.unit.core.has_world import team_quotas

from frenzy.app.place import place_status
from frenzy.app.queries import explain, run_view
from frenzy.core.lifecycle.moves import ElasticRules
from frenzy.core.runs.protocol import PlaceStatus, VerdictKind
from frenzy.core.values.cluster import NodeState
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.job import ConstraintsSpec

ON_SMALL = ConstraintsSpec(gpu_types=("small",), max_gpus=1)


def patient_job(airflow: Airflow, scheduler: ScriptedScheduler, constraints: ConstraintsSpec) -> Airflow:
    """A job at its twentieth step on one GPU of node a; it has none to give up and run on."""
    services = replace(airflow.services, schedule=scheduler, elastic=ElasticRules(min_run_s=0.0))
    patient = replace(airflow, services=services)
    run_on(patient, scheduler, replace(make_job("patient"), constraints=constraints), 1, step=20)
    patient.clock.advance(10)
    return patient


def test_a_job_that_cannot_shrink_gives_way_waits_with_a_reason_and_resumes(
    airflow: Airflow, scheduler: ScriptedScheduler
) -> None:
    patient = patient_job(airflow, scheduler, ON_SMALL)
    others = [patient.another() for _ in range(2)]
    for at, other in enumerate(others):
        urgent = replace(make_job(f"urgent{at}"), constraints=ON_SMALL, priority=5)
        other.register(urgent, run_id=f"r{at + 2}")
        other.place()
    assert place_status(patient.services, others[1].key).reason is not None
    reason = told_to_stop(patient, 1, 21)
    assert reason.code is ReasonCode.PREEMPTED
    assert "urgent1, whose priority is higher" in reason.sentence
    patient.end(1, STOPPED, last_step=22)
    assert place_status(patient.services, others[1].key).status is PlaceStatus.PLACED
    assert patient.decide().kind is VerdictKind.RETRY
    waiting = patient.place()
    assert waiting.status is PlaceStatus.WAITING
    assert waiting.reason is not None
    lines = explain(patient.services, patient.key).lines
    assert any(line.startswith("It waits: WAITING_FOR_GPUS") for line in lines)
    place, held = (next(at for at, each in enumerate(lines) if said in each) for said in ("It is number", " more)"))
    assert place < held < len(lines) - 1, "what would help comes last"
    assert lines[-1].startswith("What would help: ")
    others[0].launch(1)
    others[0].end(1, 0, last_step=100)
    again = place_status(patient.services, patient.key)
    assert again.status is PlaceStatus.PLACED
    second = run_view(patient.services, patient.key).attempts[1]
    assert second.next_attempt.checkpoint_step == 22
    assert run_view(patient.services, patient.key).run.num_reschedules == 0


def test_a_start_waits_until_the_job_that_gives_way_frees_the_team_s_quota(
    airflow: Airflow, scheduler: ScriptedScheduler
) -> None:
    services = replace(airflow.services, queues=FixedQueues(team_quotas(red=2)), elastic=ElasticRules(min_run_s=0.0))
    leaving = replace(airflow, services=replace(services, schedule=scheduler))
    run_on(leaving, scheduler, replace(on_small("leaving"), team="red"), 2, step=20)
    leaving.clock.advance(60)
    urgent = leaving.another()
    elsewhere = ConstraintsSpec(gpu_types=("large",))
    urgent.register(replace(make_job("urgent"), team="red", priority=5, constraints=elsewhere), run_id="r2")
    waiting = urgent.place()
    assert waiting.status is PlaceStatus.WAITING
    assert waiting.reason is not None
    assert waiting.reason.code is ReasonCode.WAITING_FOR_MOVE
    assert "job leaving has saved a checkpoint and given its GPUs back" in waiting.reason.sentence
    assert "team red may hold 2" in waiting.reason.sentence
    reason = told_to_stop(leaving, 1, 21)
    assert "urgent, whose priority is higher" in reason.sentence
    leaving.end(1, STOPPED, last_step=22)
    assert place_status(urgent.services, urgent.key).status is PlaceStatus.PLACED


def test_a_job_leaves_a_node_once_it_is_drained(airflow: Airflow, scheduler: ScriptedScheduler) -> None:
    patient = patient_job(airflow, scheduler, ConstraintsSpec(max_gpus=1))
    set_node(patient, NodeState.DRAINING)
    a_pass(patient)
    reason = told_to_stop(patient, 1, 21)
    assert reason.code is ReasonCode.MOVED_TO_OTHER_GPUS
    assert "a is being drained" in reason.sentence
    patient.end(1, STOPPED, last_step=22)
    assert patient.decide().kind is VerdictKind.RETRY
    spec = patient.place().spec
    assert spec is not None
    assert [each.node for each in spec.placement.allocations] == ["b"]
