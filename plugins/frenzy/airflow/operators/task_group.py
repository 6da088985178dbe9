"""One training run as a task group, and its evaluation as a task: what every DAG here is made of.

with DAG("nightly"):
    text = clean()
    frenzy_training("include/jobs/small.yaml", data_facts=text) >> frenzy_evaluation()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import BaseOperator, TaskGroup, chain, get_parsing_context

from frenzy.adapters.connection_settings import settings_at_hand, settings_of_airflow
from frenzy.airflow.connection import DEFAULT_CONN_ID
from frenzy.airflow.operators.notifiers import Notifiers
from frenzy.airflow.operators.operators import (
    MANY_RETRIES,
    NO_DELAY,
    PREPARE_TASK,
    DecideOperator,
    EvaluateOperator,
    LaunchOperator,
    MonitorOperator,
    PlaceOperator,
    PrepareOperator,
    ProfileOperator,
    PublishOperator,
)
from frenzy.airflow.tasks.model_asset import model_outlets
from frenzy.core.values.job import TrainingJob
from frenzy.settings import LauncherKind

DEFAULT_GROUP: Final = "train"
LAUNCH_TASK: Final = "launch"
ATTEMPT_TASKS: Final = ("place", LAUNCH_TASK, "monitor")

# Asking the API again is harmless; an Airflow that has just started may lose a first task.
_ASKING: Final[dict[str, Any]] = {"retries": 3, "retry_delay": timedelta(seconds=2)}


def frenzy_training(
    job: TrainingJob | Mapping[str, Any] | str | Callable[[Mapping[str, Any]], TrainingJob] | Any,
    *,
    group_id: str = DEFAULT_GROUP,
    data_facts: Any = None,
    frenzy_conn_id: str = DEFAULT_CONN_ID,
    notifiers: Notifiers | None = None,
) -> TaskGroup:
    """The task group that trains ``job``: profile, prepare, place, launch and monitor, decide, publish.

    job: the specification as a value, a mapping, the path of its YAML file, a function that makes the value of the
    DAG run's params, or the XCom of a task that returns a mapping or a path. The texts of a mapping, and a path, are
    templates of the DAG's author; all else never is.
    data_facts: what is known of the data already (num_rows, longest_sequence_tokens, num_tokens,
    vocab_size), or the XCom of a task that returns it; the plan is made from it.
    notifiers: who is told of a long wait, a move, a shortage of memory, the end.
    The group's tasks are named ``<group_id>.<task>``; two groups in one DAG share nothing, and
    neither do the mapped instances of one.
    """
    common: dict[str, Any] = {"frenzy_conn_id": frenzy_conn_id}
    given = dict(job) if isinstance(job, Mapping) else job
    with TaskGroup(group_id=group_id) as group:
        profile = ProfileOperator(task_id="profile", job=given, data_facts=data_facts, **_ASKING, **common)
        prepare = _prepare_task(**common)
        # Where the data are small, ``prepare`` is skipped; where ``profile`` is, all is.
        place = PlaceOperator(
            task_id="place",
            notifiers=notifiers,
            trigger_rule="none_failed_min_one_success",
            **_ASKING,
            **common,
        )
        launch = _launch_task(**common)
        monitor = MonitorOperator(task_id="monitor", **_ASKING, **common)
        decide = DecideOperator(
            task_id="decide",
            attempt_tasks=ATTEMPT_TASKS,
            notifiers=notifiers,
            trigger_rule="all_done",
            retries=MANY_RETRIES,
            retry_delay=NO_DELAY,
            **common,
        )
        publish = PublishOperator(task_id="publish", outlets=model_outlets(_name_of(given)), **_ASKING, **common)
        chain(profile, prepare, place, [launch, monitor], decide, publish)
        profile >> place
    return group


def _launch_task(**common: Any) -> BaseOperator:
    """The launch task of the launcher that the settings name.

    On Kubernetes it is a KubernetesPodOperator, whose import costs much: a process that runs another
    task of the DAG has the plain operator in its place, which it never runs, and asks for no settings.
    A DAG file is parsed also while the Connection cannot be read; its launch task is then not run.
    """
    conn_id = _conn_id_of_pods(LAUNCH_TASK)
    if conn_id is None:
        return LaunchOperator(task_id=LAUNCH_TASK, retries=0, **common)
    from frenzy.airflow.operators.pod_operator import PodLaunchOperator

    return PodLaunchOperator(task_id=LAUNCH_TASK, retries=0, kubernetes_conn_id=conn_id, **common)


def _prepare_task(**common: Any) -> BaseOperator:
    """The same for the task that prepares the data. Each of its tries goes on with what is there."""
    conn_id = _conn_id_of_pods(PREPARE_TASK)
    again: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=10)}
    if conn_id is None:
        return PrepareOperator(task_id=PREPARE_TASK, **again, **common)
    from frenzy.airflow.operators.pod_operator import PodPrepareOperator

    return PodPrepareOperator(task_id=PREPARE_TASK, kubernetes_conn_id=conn_id, **again, **common)


def _conn_id_of_pods(task: str) -> str | None:
    """The Connection by which ``task`` makes pods; None where it makes none, or is not what this process runs."""
    running = get_parsing_context().task_id
    if running is not None and running.rpartition(".")[2] != task:
        return None
    settings = settings_at_hand() if running is None else settings_of_airflow()
    return None if settings.launcher is LauncherKind.LOCAL else settings.kubernetes_conn_id


def frenzy_evaluation(
    *,
    group_id: str = DEFAULT_GROUP,
    task_id: str = "evaluate",
    frenzy_conn_id: str = DEFAULT_CONN_ID,
) -> EvaluateOperator:
    """The task that scores the model of the group ``group_id`` on its held-out text and samples from it."""
    return EvaluateOperator(task_id=task_id, training_group=group_id, frenzy_conn_id=frenzy_conn_id, retries=1)


def _name_of(job: Any) -> str | None:
    """The job's name, where it is known before the run."""
    if isinstance(job, TrainingJob):
        return job.name
    name = job.get("name") if isinstance(job, Mapping) else None
    return name if isinstance(name, str) else None
