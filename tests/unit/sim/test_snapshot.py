"""A captured queue goes on in the simulator as it would in the product; other clusters are tried on it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.unit.app.playing import make_job
from tests.unit.core.has_world import facts, node, plan, running, waiting
from tests.unit.installation import CONFIG

from frenzy.core.runs.views import PlanningFacts, QueueSnapshot
from frenzy.core.scheduling import HasPolicy, schedule
from frenzy.core.values.cluster import NodeState
from frenzy.core.values.codec import dumps
from frenzy.core.values.errors import SpecError
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.job import ConstraintsSpec
from frenzy.core.values.scheduling_facts import Start
from frenzy.sim.answer import answer
from frenzy.sim.cluster_changes import Changed, what_if
from frenzy.sim.engine import simulate
from frenzy.sim.replan import all_plans
from frenzy.sim.results import SimResult
from frenzy.sim.snapshot import product_scheduler, read_snapshot, scenario_of

NOW_S = 5000.0
T4 = CATALOGUE["t4"].gpu


def snapshot(*, planning: dict[str, PlanningFacts] | None = None) -> QueueSnapshot:
    """Two nodes of two T4s; three jobs run on them, two wait."""
    one = plan("t4", 1, run_s=600.0, gpu_memory_gib=14)
    two = plan("t4", 2, run_s=400.0, gpu_memory_gib=14)
    held = [
        running("r1", two, ("a", 2), end_s=NOW_S + 100, started_s=NOW_S - 300),
        running("r2", one, ("b", 1), end_s=NOW_S + 300, started_s=NOW_S - 300),
        running("r3", one, ("b", 1), end_s=NOW_S + 500, started_s=NOW_S - 100),
    ]
    queued = [waiting("q1", two, one, submitted_s=NOW_S - 50), waiting("q2", two, submitted_s=NOW_S - 20)]
    return QueueSnapshot(
        taken_s=NOW_S,
        policy="has",
        marp_policy="paper",
        facts=facts([node("a", "t4", 2), node("b", "t4", 2)], queued, held, (T4,)),
        planning=planning or {},
    )


def play(found: QueueSnapshot) -> SimResult:
    return simulate(scenario_of(found), product_scheduler(found))


def ends(result: SimResult) -> dict[str, float]:
    return {job.run_key: job.end_s - NOW_S for job in result.jobs if job.end_s is not None}


def num_gpus(found: Changed) -> dict[str, int]:
    return {node.name: node.num_gpus for node in found.snapshot.facts.cluster.nodes}


def test_running_jobs_end_when_expected_and_waiting_ones_follow() -> None:
    assert ends(play(snapshot())) == {
        "r1": 100.0,
        "r2": 300.0,
        "r3": 500.0,
        "q1": pytest.approx(500.0),
        "q2": pytest.approx(900.0),
    }


def test_replay_of_a_file_is_the_same_every_time(tmp_path: Path) -> None:
    (tmp_path / "taken.json").write_text(dumps(snapshot()))
    first, second = (play(read_snapshot(tmp_path / "taken.json")) for _ in range(2))
    assert read_snapshot(tmp_path / "taken.json") == snapshot()
    assert replace(first, decision_s=()) == replace(second, decision_s=())


def test_first_decision_is_the_product_s() -> None:
    found = snapshot()
    free = replace(found, facts=replace(found.facts, running=found.facts.running[1:]))
    expected = [(each.run_key, NOW_S) for each in schedule(free.facts, NOW_S, HasPolicy()) if isinstance(each, Start)]
    starts = [(stay.run_key, stay.start_s) for stay in play(free).stays if stay.start_s == NOW_S]
    assert starts == expected != []


def test_file_of_another_form_or_release_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "taken.json"
    with pytest.raises(SpecError, match="frenzy queue --snapshot"):
        read_snapshot(file)
    file.write_text("{}")
    with pytest.raises(SpecError, match=r"taken\.json.*lacks the key 'taken_s'"):
        read_snapshot(file)
    file.write_text("[1, 2")
    with pytest.raises(SpecError, match=r"taken\.json.*not JSON"):
        read_snapshot(file)
    file.write_text(dumps(snapshot()).replace('"schema_version": 1', '"schema_version": 99'))
    with pytest.raises(SpecError, match="99"):
        read_snapshot(file)


def test_workers_take_the_cpus_that_they_took_where_the_snapshot_was_taken() -> None:
    found = replace(snapshot(), facts=replace(snapshot().facts, running=()))
    narrow = tuple(replace(each, num_cpus=8) for each in found.facts.cluster.nodes)
    found = replace(found, facts=replace(found.facts, cluster=replace(found.facts.cluster, nodes=narrow)))
    assert set(ends(play(replace(found, cpus_per_gpu=4)))) == {"q1", "q2"}
    assert ends(play(replace(found, cpus_per_gpu=9))) == {}


def test_added_gpus_are_on_nodes_like_those_there_are() -> None:
    assert num_gpus(what_if(snapshot(), "add 3 T4")) == {"a": 2, "b": 2, "what-if-1": 2, "what-if-2": 1}


@pytest.mark.parametrize(
    ("text", "gpu_type"),
    [("add 1 NVIDIA-T4", "t4"), ("add 1 RTX4090", "rtx-4090"), ("add 1 h100-80gb", "h100"), ("add 1 A40", "a40")],
)
def test_gpus_are_added_by_the_names_that_people_give_them(text: str, gpu_type: str) -> None:
    assert what_if(snapshot(), text).snapshot.facts.cluster.nodes[-1].gpu_type == gpu_type


def test_added_gpus_let_waiting_jobs_start_at_once() -> None:
    found = snapshot()
    changed = what_if(found, "add 4 T4")
    told = answer(found, "add 4 T4", changed, play(found), play(changed.snapshot))
    starts = {job.run_key: (job.start_before_s, job.start_after_s) for job in told.jobs}
    assert starts["q1"] == (100.0, 0.0)
    assert (told.num_sooner, told.num_later) == (2, 0)
    assert told.after.queue_mean_s < told.before.queue_mean_s


def test_type_that_jobs_were_not_planned_for_is_planned_or_named() -> None:
    told = what_if(snapshot(), "add 4 L40S")
    assert told.notes == ("These jobs have no plan on l40s, and none can be made from the snapshot: job-q1, job-q2.",)
    assert sum(node.gpu_type == "l40s" for node in told.snapshot.facts.cluster.nodes) == 1


def test_jobs_that_cannot_be_planned_anew_use_more_of_a_type_with_the_plans_they_have() -> None:
    changed = what_if(snapshot(), "add 4 T4")
    assert changed.notes == ("These jobs keep the plans on t4 that they have; others are not tried: job-q1, job-q2.",)
    assert ends(play(changed.snapshot))["q2"] < ends(play(snapshot()))["q2"]


def test_averages_are_of_the_jobs_that_end_both_times() -> None:
    found = snapshot()
    some, none = what_if(found, "remove 2 T4, drain a"), what_if(found, "remove 4 T4")
    before = play(found)
    told = answer(found, "less", some, before, play(some.snapshot))
    both = [each for each in told.jobs if each.end_before_s is not None and each.end_after_s is not None]
    assert 0 < told.means.num_jobs == len(both) < len(told.jobs)
    submitted_s = {job.run_key: job.submitted_s - NOW_S for job in before.jobs}
    then = [(each.end_after_s or 0.0) - submitted_s[each.run_key] for each in both]
    assert told.means.jct_after_s == pytest.approx(sum(then) / len(both))
    assert answer(found, "nothing left", none, before, play(none.snapshot)).means.num_jobs == 0


PLANNING = PlanningFacts(job=make_job(), model_config=CONFIG, total_steps=100)


def planned(found: QueueSnapshot, planning: PlanningFacts) -> QueueSnapshot:
    """``found`` with what is to be known of its waiting jobs; they have one plan, ten times slower than predicted."""
    made = all_plans(PLANNING, found.facts.cluster, "paper")
    known = replace(made[0], predicted_run_s=made[0].predicted_run_s * 10)
    queued = tuple(replace(job, plans=(known,)) for job in found.facts.queued)
    return replace(found, facts=replace(found.facts, queued=queued), planning={"q1": planning, "q2": planning})


def test_jobs_are_planned_for_an_added_type_on_the_scale_of_their_plans() -> None:
    changed = what_if(planned(snapshot(), PLANNING), "add 8 A100-80")
    assert changed.notes == ()
    job = changed.snapshot.facts.queued[0]
    assert {plan.gpu_type for plan in job.plans} == {"t4", "a100-80"}
    assert [plan.predicted_run_s for plan in job.plans] == sorted(plan.predicted_run_s for plan in job.plans)


def test_what_has_begun_is_planned_after_its_deadline_and_what_waits_to_begin_is_not() -> None:
    past = datetime.fromtimestamp(NOW_S - 60, UTC).isoformat()
    late = replace(PLANNING, job=replace(make_job(), constraints=ConstraintsSpec(deadline=past)))
    found = planned(snapshot(), late)
    first, second = found.facts.queued
    found = replace(found, facts=replace(found.facts, queued=(replace(first, work_done=0.1), second)))
    changed = what_if(found, "add 8 A100-80")
    begun, waits = changed.snapshot.facts.queued
    assert {plan.gpu_type for plan in begun.plans} == {"t4", "a100-80"}
    assert {plan.gpu_type for plan in waits.plans} == {"t4"}
    assert changed.notes == ("These jobs have no plan on a100-80, and none can be made from the snapshot: job-q2.",)


def test_removed_gpus_are_idle_ones_first_then_those_of_the_job_that_ran_least() -> None:
    found = snapshot()
    idle = replace(found, facts=replace(found.facts, running=found.facts.running[1:], queued=()))
    assert (num_gpus(what_if(idle, "remove 2 t4")), what_if(idle, "remove 2 t4").notes) == ({"b": 2}, ())
    told = what_if(found, "remove 1 T4")
    assert num_gpus(told) == {"a": 2, "b": 1}
    assert told.notes == ("job-r3 gives its 1 t4 up and waits again.",)
    again = next(job for job in told.snapshot.facts.queued if job.run_key == "r3")
    assert (again.work_left, again.work_done) == (pytest.approx(1 - 100 / 600), pytest.approx(100 / 600))
    assert set(ends(play(told.snapshot))) == {"r1", "r2", "r3", "q1", "q2"}


def test_a_type_whose_nodes_have_no_gpus_now_gets_nodes_of_the_usual_size() -> None:
    found = snapshot()
    empty = replace(found, facts=facts([node("e", "t4", 0)], [], [], found.facts.cluster.gpu_types))
    assert num_gpus(what_if(empty, "add 4 T4")) == {"e": 0, "what-if-1": 4}


def test_a_type_without_nodes_gets_those_that_are_sold() -> None:
    grown = num_gpus(what_if(replace(snapshot(), planning={}), "add 8 GB200"))
    assert {name: count for name, count in grown.items() if name.startswith("what-if")} == {
        "what-if-1": 4,
        "what-if-2": 4,
    }


def test_removed_gpus_are_those_that_jobs_could_have() -> None:
    found = snapshot()
    nodes = [node("ready", "t4", 4), node("lost", "t4", 8, state=NodeState.LOST)]
    nodes.append(replace(node("taken", "t4", 8), num_taken=8))
    mixed = replace(found, facts=facts(nodes, [], [], found.facts.cluster.gpu_types))
    assert num_gpus(what_if(mixed, "remove 2 T4")) == {"ready": 2, "lost": 8, "taken": 8}
    assert num_gpus(what_if(mixed, "remove 5 T4")) == {"lost": 7, "taken": 8}
    with pytest.raises(SpecError, match="at most 12"):
        what_if(mixed, "remove 13 T4")


def test_drained_node_takes_no_new_work_until_it_is_undrained() -> None:
    drained = what_if(snapshot(), "drain a")
    assert drained.snapshot.facts.cluster.nodes_by_name["a"].state is NodeState.DRAINING
    assert ends(play(drained.snapshot))["q1"] > ends(play(snapshot()))["q1"]
    assert what_if(snapshot(), "drain a, undrain a").snapshot == snapshot()


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("buy a cluster", "add N TYPE"),
        ("add 0 T4", "add N TYPE"),
        ("add 2 Z80", "t4 of the cluster"),
        ("add 2 NVIDIA-A100", "one GPU type: a100-80, a100-40"),
        ("drain nowhere", "a, b"),
        ("remove 9 T4", "at most 4"),
        ("", "add N TYPE"),
    ],
)
def test_change_that_is_not_understood_is_refused_with_what_is(text: str, allowed: str) -> None:
    with pytest.raises(SpecError, match=allowed):
        what_if(snapshot(), text)
