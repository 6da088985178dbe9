"""``frenzy_training`` mapped: what Airflow expands, what it refuses, and the comparison after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization
from tests.unit.airflow.conftest import World
from tests.unit.airflow.operators.test_operators import spec_document
from tests.unit.web.conftest import registration

from frenzy.adapters.spec.job_spec import job_from_document, job_to_document
from frenzy.airflow.identity import identity_of
from frenzy.airflow.operators.compare_runs import CompareOperator, frenzy_comparison
from frenzy.airflow.operators.task_group import frenzy_training
from frenzy.app.observe import attempt_launching
from frenzy.app.place import enqueue
from frenzy.app.register import register_run
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.ledger import RunIdentity
from frenzy.core.runs.protocol import EndReport
from frenzy.core.values.launch import AttemptResult

JOBS = [{**spec_document("words.txt"), "name": f"words-{number}"} for number in range(3)]
TASKS = ["profile", "prepare", "place", "launch", "monitor", "decide", "publish"]
FACTS = [{"num_rows": 1}, {"num_rows": 2}, {"num_rows": 3}]


def mapped(make: Callable[[], Any]) -> DAG:
    """The DAG of one mapped group, as the DAG processor makes it."""
    with DAG("mine") as dag:
        make()
    return dag


def counts(dag: DAG) -> set[int]:
    """How many instances of each task the scheduler makes."""
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    return {stored.get_task(each).get_parse_time_mapped_ti_count() for each in dag.task_ids}


def given(dag: DAG, map_index: int, *names: str, xcom: Any = None) -> list[Any]:
    """What one mapped instance of the profile task is given."""
    profile: Any = dag.get_task("train.profile").prepare_for_execution()
    ti = SimpleNamespace(map_index=map_index, task=profile, task_id="train.profile", run_id="r", dag_id="mine")
    ti.xcom_pull = lambda **_: xcom
    return [
        each.resolve({"ti": ti, "expanded_ti_count": 3}) if hasattr(each, "resolve") else each
        for each in (profile._given if name == "job" else getattr(profile, name) for name in names)
    ]


def made() -> Any:
    @task
    def made() -> list[Any]:
        return []

    return made()


def rule(dag: DAG) -> str:
    return dag.get_task("train.place").trigger_rule.value


def test_each_job_is_an_instance_with_all_tasks_of_the_group() -> None:
    dag = mapped(lambda: frenzy_training.expand(job=JOBS))
    assert sorted(dag.task_ids) == sorted(f"train.{each}" for each in TASKS)
    assert [given(dag, index, "job")[0]["name"] for index in range(3)] == ["words-0", "words-1", "words-2"]
    assert counts(dag) == {3}


def test_a_job_as_a_value_is_stored_as_its_document() -> None:
    jobs = [job_from_document(each) for each in JOBS]
    dag = mapped(lambda: frenzy_training.expand(job=jobs))
    assert given(dag, 1, "job") == [job_to_document(jobs[1])]


def test_what_is_partial_all_instances_share() -> None:
    dag = mapped(lambda: frenzy_training.partial(job=JOBS[0]).partial(frenzy_conn_id="theirs").expand(data_facts=FACTS))
    assert given(dag, 2, "job", "data_facts", "frenzy_conn_id") == [JOBS[0], {"num_rows": 3}, "theirs"]


def test_kwargs_of_each_instance_may_leave_out_the_facts() -> None:
    listed = [{"job": JOBS[0]}, {"job": JOBS[1], "data_facts": FACTS[1]}]
    dag = mapped(lambda: frenzy_training.partial(group_id="train").expand_kwargs(listed))
    assert given(dag, 0, "job", "data_facts") == [JOBS[0], None]
    assert given(dag, 1, "job", "data_facts") == [JOBS[1], FACTS[1]]
    told = mapped(lambda: frenzy_training.expand_kwargs(made()))
    assert DagSerialization.to_dict(told)
    assert given(told, 0, "job", "data_facts", xcom=listed) == [JOBS[0], None]


def test_a_group_over_an_xcom_lets_no_instance_wait_for_another_ones_profile() -> None:
    """Airflow expands a task of a rule that one success fulfils only after all instances of the tasks before it."""
    assert rule(mapped(lambda: frenzy_training.expand(job=made()))) == "none_failed"
    assert rule(mapped(lambda: frenzy_training.expand(job=JOBS))) == "none_failed_min_one_success"
    assert rule(mapped(lambda: frenzy_training(JOBS[0]))) == "none_failed_min_one_success"


def test_the_evaluation_is_in_the_group_where_it_is_wanted() -> None:
    dag = mapped(lambda: frenzy_training.partial(evaluate=True).expand(job=JOBS) >> frenzy_comparison())
    assert dag.get_task("train.evaluate").upstream_task_ids == {"train.publish"}
    assert dag.get_task("compare").upstream_task_ids == {"train.evaluate"}
    ti = SimpleNamespace(task_id="train.evaluate", dag_id="mine", run_id="r", map_index=2)
    of_group = RunIdentity(dag_id="mine", run_id="r", task_group="train", map_index=2)
    assert identity_of(ti, dag.get_task("train.evaluate").training_group) == of_group


def test_runs_of_one_group_differ_by_map_index() -> None:
    found = {
        RunIdentity(dag_id="mine", run_id="r", task_group="train", map_index=each).run_key for each in range(-1, 9)
    }
    assert len(found) == 10


@pytest.mark.parametrize(
    "make",
    [
        lambda: frenzy_training.expand(),
        lambda: frenzy_training.expand(data_facts=FACTS),
        lambda: frenzy_training.expand(job=JOBS, notifiers=[]),
        lambda: frenzy_training.partial(jobs=JOBS),
        lambda: frenzy_training.partial(job=JOBS[0]).expand(job=JOBS),
        lambda: frenzy_training.expand_kwargs([{"job": JOBS[0], "group_id": "x"}]),
        lambda: frenzy_training.expand(job="include/jobs/words.yaml"),
    ],
)
def test_what_cannot_be_mapped_is_refused_when_the_dag_is_parsed(make: Callable[[], Any]) -> None:
    with DAG("mine"), pytest.raises(TypeError):
        make()


def ended(world: World, map_index: int, *, exit_code: int = 0, group: str = "train") -> str:
    """The run of one instance, over; with a model where its workers succeeded."""
    identity = RunIdentity(dag_id="mine", run_id="r", task_group=group, map_index=map_index)
    run_key = register_run(world.services, replace(registration(f"job-{map_index}"), identity=identity)).run.run_key
    enqueue(world.services, run_key)
    attempt_launching(world.services, run_key, 1)
    result = AttemptResult(exit_code=exit_code, last_step=100, total_steps=100)
    end_attempt(world.services, run_key, 1, EndReport(result=result))
    if exit_code == 0:
        world.runs.write_model(run_key, {"model.safetensors": bytes(1024)})
    return run_key


def trials_of(world: World, evaluations: dict[int, float]) -> list[dict[str, Any]]:
    def pulled(*, task_ids: str, map_indexes: int) -> Any:
        assert task_ids == "train.evaluate"
        loss = evaluations.get(map_indexes)
        return None if loss is None else {"loss": loss, "perplexity": 10 * loss}

    ti = SimpleNamespace(dag_id="mine", run_id="r", task_id="compare", map_index=-1, xcom_pull=pulled)
    return CompareOperator(task_id="compare", training_group="train").execute({"ti": ti})


def test_the_comparison_is_of_the_group_s_own_runs_each_with_its_own_evaluation(world: World) -> None:
    keys = [ended(world, index) for index in range(3)]
    ended(world, 0, group="other")
    trials = trials_of(world, {0: 2.0, 1: 3.0, 2: 1.0})
    assert [(each["run_key"], each["perplexity"]) for each in trials] == [
        (keys[2], 10.0),
        (keys[0], 20.0),
        (keys[1], 30.0),
    ]
    assert all(each["model"].startswith(world.runs.run_dir(each["run_key"])) for each in trials)


def test_a_run_that_failed_is_compared_last(world: World) -> None:
    failed, good = ended(world, 0, exit_code=2), ended(world, 1)
    trials = trials_of(world, {1: 2.0})
    assert [(each["run_key"], each["rank"]) for each in trials] == [(good, 1), (failed, None)]


def test_where_no_run_has_a_model_the_comparison_fails(world: World) -> None:
    ended(world, 0, exit_code=2)
    with pytest.raises(AirflowFailException, match="No run of the group train has a model"):
        trials_of(world, {})
