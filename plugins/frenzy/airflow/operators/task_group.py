"""One training run as a task group, and its evaluation as a task: what every DAG here is made of.

with DAG("nightly"):
    text = clean()
    frenzy_training("include/jobs/small.yaml", data_facts=text) >> frenzy_evaluation()

``frenzy_training.expand(job=[...])`` is a mapped group: a training of its own for each job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import BaseOperator, TaskGroup, chain, get_parsing_context, task_group

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


# A triggerer with too few places takes triggers by weight. By Airflow's own rule a task weighs more than those after
# it, so waiting runs would keep those that were placed from being watched. What the DAG's author weighs still counts.
_WAITING: Final[dict[str, Any]] = {"weight_rule": "absolute"}
# Each try goes on with what is there.
_PREPARING: Final[dict[str, Any]] = {"retries": 3, "retry_delay": timedelta(seconds=10), **_WAITING}


class TrainingGroup:
    """What ``frenzy_training`` is: called, it makes one task group; expanded, a mapped one."""

    __name__ = "frenzy_training"  # of its one instance, as of a function

    def __call__(
        self,
        job: TrainingJob | Mapping[str, Any] | str | Callable[[Mapping[str, Any]], TrainingJob] | Any,
        *,
        group_id: str = DEFAULT_GROUP,
        data_facts: Any = None,
        evaluate: bool = False,
        frenzy_conn_id: str = DEFAULT_CONN_ID,
        notifiers: Notifiers | None = None,
    ) -> TaskGroup:
        """The task group that trains ``job``: profile, prepare, place, launch and monitor, decide, publish.

        job: the specification as a value, a mapping, the path of its YAML file, a function that makes the value of the
        DAG run's params, or the XCom of a task that returns a mapping or a path. The texts of a mapping, and a path,
        are templates of the DAG's author; all else never is.
        data_facts: what is known of the data already (num_rows, longest_sequence_tokens, num_tokens,
        vocab_size), or the XCom of a task that returns it; the plan is made from it.
        evaluate: whether the group ends with the evaluation of its model, as a mapped group must.
        notifiers: who is told of a long wait, a move, a shortage of memory, the end.
        The group's tasks are named ``<group_id>.<task>``; two groups in one DAG share nothing, and
        neither do the mapped instances of one.
        """
        with TaskGroup(group_id=group_id) as group:
            _training_tasks(job, data_facts, evaluate, frenzy_conn_id, notifiers)
        return group

    def partial(self, **common: Any) -> PartialTraining:
        """What all mapped instances have in common: any argument of ``frenzy_training``. Then expand it."""
        return PartialTraining(common)

    def expand(self, **mapped: Any) -> TaskGroup:
        """A mapped task group: for each ``job`` an instance, and thus a run of its own.

        job, data_facts: a list, or the XCom of a task that returns one. No text of a mapped job is a template.
        Raises TypeError for any other argument: ``partial`` takes those.
        """
        return self.partial().expand(**mapped)

    def expand_kwargs(self, mapped: Any) -> TaskGroup:
        """The same of a list of mappings with ``job`` and ``data_facts``, or the XCom of a task that returns one."""
        return self.partial().expand_kwargs(mapped)


frenzy_training: Final = TrainingGroup()


class PartialTraining:
    """``frenzy_training`` with some of its arguments; expanded as it is."""

    def __init__(self, common: Mapping[str, Any]) -> None:
        _refuse_unknown(common, ["job", *_ARGUMENTS])
        self._common = dict(common)

    def partial(self, **common: Any) -> PartialTraining:
        return PartialTraining({**self._common, **common})

    def expand(self, **mapped: Any) -> TaskGroup:
        _refuse_unknown(mapped, self._open())
        for name, each in mapped.items():
            if isinstance(each, str | Mapping | TrainingJob):
                raise TypeError(f"frenzy_training is mapped over lists: put what {name} is into one.")
        plain = {name: _plain(each) for name, each in mapped.items()}
        group: TaskGroup = self._factory(mapped).expand(**plain)
        return group

    def expand_kwargs(self, mapped: Any) -> TaskGroup:
        if isinstance(mapped, Sequence):
            for each in mapped:
                _refuse_unknown(each, self._open())
            mapped = [_with_facts({name: _plain(value) for name, value in each.items()}) for each in mapped]
        else:
            mapped = mapped.map(_with_facts)
        group: TaskGroup = self._factory(self._open()).expand_kwargs(mapped)
        return group

    def _open(self) -> list[str]:
        """What may be mapped still."""
        return [each for each in _MAPPED if each not in self._common]

    def _factory(self, mapped: Collection[str]) -> Any:
        if not mapped or "job" not in {*mapped, *self._common}:
            raise TypeError("frenzy_training has no jobs: give a list of them to expand(), or one to partial().")
        arguments = {**_ARGUMENTS, **self._common}
        group_id = arguments.pop("group_id")
        given = {name: value for name, value in arguments.items() if name not in mapped}
        return task_group(group_id=group_id)(_training_tasks).partial(**given)


_MAPPED: Final = ("job", "data_facts")
_ARGUMENTS: Final[Mapping[str, Any]] = {
    "group_id": DEFAULT_GROUP,
    "data_facts": None,
    "evaluate": False,
    "frenzy_conn_id": DEFAULT_CONN_ID,
    "notifiers": None,
}


def _training_tasks(
    job: Any, data_facts: Any, evaluate: bool, frenzy_conn_id: str, notifiers: Notifiers | None
) -> None:
    """One training, from its profile to its model."""
    common: dict[str, Any] = {"frenzy_conn_id": frenzy_conn_id}
    given = dict(job) if isinstance(job, Mapping) else job
    profile = ProfileOperator(task_id="profile", job=given, data_facts=data_facts, **_ASKING, **common)
    prepare = PrepareOperator(task_id=PREPARE_TASK, **_PREPARING, **common)
    place = PlaceOperator(
        task_id="place",
        notifiers=notifiers,
        trigger_rule=_rule_of_place(profile.task_group),
        **_WAITING,
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
    if evaluate:
        publish >> EvaluateOperator(task_id="evaluate", training_group=None, retries=1, **common)


def _rule_of_place(group: Any) -> str:
    """Where the data are small, ``prepare`` is skipped; where ``profile`` is, all is.

    A group that is mapped over an XCom is expanded while it runs. By a rule that asks for one success Airflow would
    expand ``place`` only after every instance's ``profile``, and not at all if one of them failed.
    """
    maps_over_xcom = any(any(each.iter_mapped_dependencies()) for each in group.iter_mapped_task_groups())
    return "none_failed" if maps_over_xcom else "none_failed_min_one_success"


def _refuse_unknown(given: Mapping[str, Any], known: Iterable[str]) -> None:
    names = [*known]
    unknown = [each for each in given if each not in names]
    if unknown:
        raise TypeError(f"frenzy_training does not take {', '.join(unknown)} here; it takes {', '.join(names)}.")


def _plain(given: Any) -> Any:
    """``given`` as Airflow can store it in the DAG: a job as its document, in a list or alone."""
    if isinstance(given, TrainingJob):
        from frenzy.adapters.spec.job_spec import job_to_document

        return job_to_document(given)
    return [_plain(each) for each in given] if isinstance(given, list | tuple) else given


def _with_facts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Airflow asks each mapping for every argument."""
    return {"data_facts": None, **given}


def _launch_task(**common: Any) -> BaseOperator:
    """The launch task of the launcher that the settings name.

    On Kubernetes it is a KubernetesPodOperator, whose import costs much: a process that runs another
    task of the DAG has the plain operator in its place, which it never runs, and asks for no settings.
    A DAG file is parsed also while the Connection cannot be read; its launch task is then not run.
    """
    running = get_parsing_context().task_id
    if running is None or running.rpartition(".")[2] == LAUNCH_TASK:
        settings = settings_at_hand() if running is None else settings_of_airflow()
        if settings.launcher is not LauncherKind.LOCAL:
            from frenzy.airflow.operators.pod_operator import PodLaunchOperator

            conn_id = settings.kubernetes_conn_id
            return PodLaunchOperator(task_id=LAUNCH_TASK, retries=0, kubernetes_conn_id=conn_id, **common)
    return LaunchOperator(task_id=LAUNCH_TASK, retries=0, **common)


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
