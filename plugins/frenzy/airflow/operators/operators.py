"""The tasks of one training run: decode what came in, ask once, encode what goes on.

The ledger knows the run; what a task leaves in its XCom is for people (and the tasks after it).
Heavy imports are inside ``execute``: a DAG file that uses these parses in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR

from frenzy.airflow.connection import DEFAULT_CONN_ID
from frenzy.airflow.identity import identity_of
from frenzy.core.runs.masking import NAMES_ONLY, masked_at
from frenzy.core.values.job import TrainingJob

if TYPE_CHECKING:
    from frenzy.adapters.api_client import ApiClient
    from frenzy.airflow.operators.notifiers import Notifiers
    from frenzy.core.runs.protocol import RunView
    from frenzy.core.values.errors import Reason


class FrenzyOperator(BaseOperator):
    """A task of the run of its own task group; ``frenzy_conn_id`` names the API's Connection."""

    ui_color = "#e8f0fe"

    def __init__(self, *, frenzy_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.frenzy_conn_id = frenzy_conn_id

    def api_client(self) -> ApiClient:
        from frenzy.airflow.connection import api_client

        return api_client(self.frenzy_conn_id)


class ProfileOperator(FrenzyOperator):
    """Reads model and data, registers the run, shows its plans. Fails at once when none can run.

    job: a mapping of the specification, or the path of its file: templates of the DAG's author. A TrainingJob is
    none: it was read from somewhere; nor is a function, which makes one of the DAG run's params. data_facts: what an
    earlier task already knows of the data (num_rows, longest_sequence_tokens, num_tokens, vocab_size).
    """

    template_fields: Sequence[str] = ("job", "data_facts")

    def __init__(self, *, job: Any, data_facts: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Airflow renders, stores and shows template fields: a job that is no template is not in one.
        self.job = None if isinstance(job, TrainingJob) or callable(job) else job
        self.data_facts = data_facts
        self._given = job
        self._masked: tuple[str, ...] = ()

    def _do_render_template_fields(self, *args: Any, **kwargs: Any) -> None:
        """Also called for a mapped task. Airflow then keeps and shows ``job``, which thus holds no secret."""
        from frenzy.airflow.failures import airflow_errors
        from frenzy.airflow.secret_texts import hide, secret_paths

        template = self.job
        super()._do_render_template_fields(*args, **kwargs)
        if template is not None:
            with airflow_errors():
                self._given, self._masked = self.job, secret_paths(template, self.job)
            hide(self.job, self._masked)
            self.job = masked_at(self.job, (*self._masked, *NAMES_ONLY))

    def execute(self, context: Any) -> dict[str, Any]:
        from frenzy.airflow.failures import airflow_errors
        from frenzy.airflow.tasks.profile import known_run, log_plans, refuse_if_over, registration, summary
        from frenzy.api import endpoints as api

        with airflow_errors():
            job = self._given(context["params"]) if callable(self._given) else self._given
            client, identity = self.api_client(), identity_of(context["ti"])
            is_first = context["ti"].try_number <= 1
            before = None if is_first else known_run(client, identity.run_key)
            request = registration(identity, job, self.data_facts, masked=self._masked, before=before)
            view = client.send(api.register(request))
        log_plans(self.log, view)
        refuse_if_over(view)
        found = summary(view)
        self._skip_preparing_if_small(context, view, found)
        return found

    def _skip_preparing_if_small(self, context: Any, view: RunView, found: dict[str, Any]) -> None:
        """Workers prepare small data sooner than another task begins. Its task then ends here, without a process.

        So does that of a script which loads its data itself. Conversations are prepared by the task, however few: what
        is wrong with a row is said before GPUs are held.
        """
        from airflow.sdk.exceptions import DownstreamTasksSkipped

        from frenzy.adapters.connection_settings import settings_of_airflow

        task_id = f"{identity_of(context['ti']).task_group}.{PREPARE_TASK}".lstrip(".")
        num_tokens = view.run.data_facts.num_tokens
        if task_id not in self.downstream_task_ids:
            return
        is_text = view.run.job.data.messages is None
        is_small = is_text and num_tokens is not None and num_tokens <= settings_of_airflow().prepare_above_tokens
        if is_small or view.run.job.brings_own_data:
            task = context["ti"]
            task.xcom_push(key="return_value", value=found)
            skipped = [(task_id, -1 if task.map_index is None else task.map_index)]
            raise DownstreamTasksSkipped(tasks=skipped)  # type: ignore[no-untyped-call]  # Airflow's


class PrepareOperator(FrenzyOperator):
    """Prepares the run's data before the run has GPUs; a new try goes on with what is there, or finds it at work.

    In a process that it watches, or in a pod, for whose end it waits deferred.
    """

    _preparation: Any = None

    def execute(self, context: Any) -> dict[str, Any] | None:
        from frenzy.airflow.tasks.workers import workers
        from frenzy.airflow.triggers.until_prepared import PrepareTrigger
        from frenzy.settings import LauncherKind

        preparation = self._begun()
        spec = preparation.begin(identity_of(context["ti"]).run_key)
        if spec is None:
            return None
        if workers().settings.launcher is LauncherKind.LOCAL:
            return self._settled(context, preparation.watch(spec))
        trigger = PrepareTrigger(run_key=spec.run_key, number=spec.number, conn_id=self.frenzy_conn_id)
        self.defer(trigger=trigger, method_name="resume")

    def resume(self, context: Any, event: Any) -> dict[str, Any]:
        """The pod has ended, or was ended; event: its PreparingResult."""
        from frenzy.core.values.codec import decode
        from frenzy.core.values.prepared_data import PreparingResult

        self._begun()
        return self._settled(context, decode(PreparingResult, event))

    def on_kill(self) -> None:
        """The task was ended while it ran: nothing that it started is left. Once it waits, its trigger sees to that."""
        if self._preparation is not None:
            self._preparation.stop()

    def _begun(self) -> Any:
        from frenzy.airflow.tasks.preparation import Preparation
        from frenzy.airflow.tasks.workers import workers

        self._preparation = Preparation(client=self.api_client(), workers=workers(), log=self.log)
        return self._preparation

    def _settled(self, context: Any, result: Any) -> dict[str, Any]:
        task = context["ti"]
        is_last_try = getattr(task, "try_number", 1) > getattr(task, "max_tries", 0)
        settled: dict[str, Any] = self._preparation.settle(identity_of(task).run_key, result, is_last_try=is_last_try)
        return settled


class NotifyingOperator(FrenzyOperator):
    """A task that tells people of the run: by its own notifiers, or where it has None by the installation's."""

    def __init__(self, *, notifiers: Notifiers | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.notifiers = notifiers

    def told(self) -> Notifiers:
        """Whom to tell. Those of the installation that cannot be had are in the log, and keep nothing from going on."""
        from frenzy.adapters.connection_settings import settings_at_hand
        from frenzy.airflow.operators.notifiers import NoNotifiersError, Notifiers, notifiers_at

        if self.notifiers is not None:
            return self.notifiers
        path = settings_at_hand().notifiers
        try:
            return Notifiers() if path is None else notifiers_at(path)
        except NoNotifiersError as error:
            self.log.error("Nobody is told: %s", error)
            return Notifiers()


class PlaceOperator(NotifyingOperator):
    """Queues the run for its next attempt and waits, deferred, until it has its GPUs."""

    def execute(self, context: Any) -> dict[str, Any]:
        from frenzy.airflow.failures import airflow_errors, fail
        from frenzy.airflow.triggers.triggers import PlaceTrigger, placed
        from frenzy.api import endpoints as api
        from frenzy.core.runs.protocol import PlaceStatus

        run_key = identity_of(context["ti"]).run_key
        with airflow_errors():
            view = self.api_client().send(api.enqueue(run_key))
        if view.status is PlaceStatus.WAITING:
            after_s = self.told().notice_after_s
            trigger = PlaceTrigger(run_key=run_key, conn_id=self.frenzy_conn_id, notice_after_s=after_s)
            self.defer(trigger=trigger, method_name="resume")
        if view.status is not PlaceStatus.PLACED or view.spec is None:
            fail(view.reason, f"The run is {view.status}.")
        self.log.info("Placed: %s.", placed(view.spec))
        return placed(view.spec)

    def resume(self, context: Any, event: Any) -> dict[str, Any] | None:
        """The wait is over without a place, or (under ``dag.test``) with one; or it is long, and goes on."""
        from frenzy.airflow.failures import airflow_errors, fail
        from frenzy.airflow.triggers.triggers import PlaceTrigger, placed
        from frenzy.api import endpoints as api
        from frenzy.core.runs.protocol import PlaceStatus

        with airflow_errors():
            run_key = identity_of(context["ti"]).run_key
            view = self.api_client().send(api.place(run_key))
        if view.status is PlaceStatus.WAITING:
            _tell(self, self.told().waiting_long, context, run_key)
            self.defer(trigger=PlaceTrigger(run_key=run_key, conn_id=self.frenzy_conn_id), method_name="resume")
        if view.status is not PlaceStatus.PLACED or view.spec is None:
            fail(view.reason, f"The run is {view.status}.")
        return placed(view.spec)


def _tell(task: FrenzyOperator, those: Sequence[Any], context: Any, run_key: str) -> None:
    """Whoever is to be told; that nobody could be is no reason to fail a training."""
    from frenzy.airflow.operators.notifiers import tell
    from frenzy.api import endpoints as api
    from frenzy.core.values.errors import FrenzyError

    if not those:
        return
    try:
        view = task.api_client().send(api.run_view(run_key))
    except FrenzyError as error:
        task.log.warning("Nobody is told, since the run could not be read: %s", error)
        return
    tell(those, context, view, task.log)


class LaunchWait(BaseOperator):
    """What becomes of a launch task that waits, whichever operator it is."""

    frenzy_conn_id: str

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """The trigger ends the task, so that Airflow resumes it to fail it: its time is up, or its trigger is broken.

        Nobody else would end the workers then.
        """
        if next_method == TRIGGER_FAIL_REPR:
            from frenzy.airflow.connection import api_client
            from frenzy.airflow.failures import airflow_errors
            from frenzy.airflow.tasks.settle import end_unwatched

            with airflow_errors():
                end_unwatched(api_client(self.frenzy_conn_id), identity_of(context["ti"]).run_key, self.log)
        return super().resume_execution(next_method, next_kwargs, context)

    def resume(self, context: Any, event: Any) -> None:
        """Never called by the scheduler. ``dag.test`` calls it nevertheless."""
        if event != "success":
            from airflow.sdk.exceptions import AirflowFailException

            raise AirflowFailException("The workers ended without finishing the training.")


class LaunchOperator(LaunchWait, FrenzyOperator):
    """Starts the attempt's workers and ends, deferred, when they are gone. Holds the GPU type's pool.

    Starting again an attempt that runs already finds its workers.
    """

    def execute(self, context: Any) -> None:
        from frenzy.airflow.tasks.starting import AttemptStart
        from frenzy.airflow.tasks.workers import workers
        from frenzy.airflow.triggers.triggers import LaunchTrigger

        start = AttemptStart(client=self.api_client(), workers=workers(), log=self.log)
        spec = start.run(identity_of(context["ti"]).run_key)
        trigger = LaunchTrigger(run_key=spec.run_key, attempt=spec.attempt, conn_id=self.frenzy_conn_id)
        self.defer(trigger=trigger, method_name="resume")


class MonitorOperator(FrenzyOperator):
    """Watches the attempt's memory and progress, deferred; its reports keep the lease alive."""

    def execute(self, context: Any) -> None:
        from frenzy.airflow.triggers.triggers import MonitorTrigger

        run_key = identity_of(context["ti"]).run_key
        self.defer(trigger=MonitorTrigger(run_key=run_key, conn_id=self.frenzy_conn_id), method_name="resume")

    def resume(self, context: Any, event: Any) -> None:
        """As for the launch task: only ``dag.test`` comes here."""


class DecideOperator(NotifyingOperator):
    """After an attempt: done, failed, or once more; then it clears the attempt's tasks and tries again.

    It is rescheduled, and its trigger rule lets it wait until the tasks it cleared are through. Tasks after it see the
    real end only.
    """

    def __init__(self, *, attempt_tasks: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attempt_tasks = tuple(attempt_tasks)

    def execute(self, context: Any) -> dict[str, Any]:
        from frenzy.adapters.api_client import NotFoundError
        from frenzy.airflow.failures import airflow_errors, fail, said
        from frenzy.airflow.tasks.settle import settled_verdict
        from frenzy.core.runs.protocol import VerdictKind

        identity = identity_of(context["ti"])
        with airflow_errors():
            try:
                verdict = settled_verdict(self.api_client(), identity.run_key, self.log)
            except NotFoundError:
                self._end_if_none_began(identity)
                raise
        told = self.told().of_verdict(verdict)
        if verdict.kind is VerdictKind.RETRY:
            self.log.info("The run goes on in another attempt; this is no error. %s", said(verdict.reason))
            self._clear_attempt(identity)
            _tell(self, told, context, identity.run_key)
            _wait_within_this_try()
        self.log.info("Verdict: %s. %s", verdict.kind, said(verdict.reason))
        _tell(self, told, context, identity.run_key)
        if verdict.kind is VerdictKind.FAIL:
            fail(verdict.reason, "The run failed.")
        return {"run_key": identity.run_key, "reason": str(verdict.reason.code)}

    def _tasks(self, identity: Any) -> list[str]:
        group = f"{identity.task_group}." if identity.task_group else ""
        return [f"{group}{each}" for each in self.attempt_tasks]

    def _end_if_none_began(self, identity: Any) -> None:
        """Skipped where the group was. Not after a failure: Airflow would then call the DAG run a success."""
        from airflow.sdk.exceptions import AirflowSkipException

        from frenzy.core.values.errors import PermanentError

        first = self._tasks(identity)[0]
        state = self._state_of(identity, first)
        if state == "skipped":
            raise AirflowSkipException("The training was skipped.")
        if state == "upstream_failed":
            raise PermanentError(_failed_before(first, "no training began"))

    def _state_of(self, identity: Any, task: str) -> str | None:
        from frenzy.adapters.airflow_calls import task_instance

        call = task_instance(identity.dag_id, identity.run_id, task, identity.map_index)
        state: str | None = self.api_client().send(call)["state"]
        return state

    def _clear_attempt(self, identity: Any) -> None:
        from frenzy.adapters.airflow_calls import clear_tasks
        from frenzy.airflow.failures import airflow_errors

        tasks = self._tasks(identity)
        with airflow_errors():
            self._refuse_if_hopeless(identity, tasks[0])
            self.api_client().send(clear_tasks(identity.dag_id, identity.run_id, tasks, identity.map_index))

    def _refuse_if_hopeless(self, identity: Any, first_task: str) -> None:
        """Clearing a task whose own upstream failed changes nothing: it would be cleared for ever."""
        from frenzy.adapters.api_client import NotFoundError
        from frenzy.api import endpoints as api
        from frenzy.core.runs.protocol import CancelRun
        from frenzy.core.values.errors import PermanentError

        try:
            state = self._state_of(identity, first_task)
        except NotFoundError:
            return
        if state == "upstream_failed":
            reason = _failed_before(first_task, "the run cannot go on")
            self.api_client().send(api.cancel(identity.run_key, CancelRun(reason=reason)))
            raise PermanentError(reason)


def _failed_before(task: str, so: str) -> Reason:
    from frenzy.core.values.errors import Reason, ReasonCode

    detail = f"A task before {task} failed, so {so}; the failure is that task's."
    return Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy="See its log, and clear it.")


def _wait_within_this_try() -> NoReturn:
    """Airflow's own way for a task to come again later: neither its try nor its log shows a failure."""
    from airflow.sdk import timezone
    from airflow.sdk.exceptions import AirflowRescheduleException

    raise AirflowRescheduleException(timezone.utcnow())  # type: ignore[no-untyped-call]


class PublishOperator(FrenzyOperator):
    """Says that the model is there: an Asset event with what is worth knowing of it."""

    _published: tuple[RunView, dict[str, Any]] | None = None

    def execute(self, context: Any) -> dict[str, Any]:
        from frenzy.airflow.failures import airflow_errors
        from frenzy.airflow.tasks.model_asset import emit, model_facts
        from frenzy.airflow.tasks.workers import workers
        from frenzy.api import endpoints as api
        from frenzy.core.values.run_files import RunPaths

        run_key = identity_of(context["ti"]).run_key
        with airflow_errors():
            view = self.api_client().send(api.run_view(run_key))
            validates = view.run.job.validation.every_steps is not None
            memory = self.api_client().send(api.memory(run_key)) if validates else None
        facts = model_facts(view, memory, RunPaths(workers().runs.run_dir(run_key)).model_dir)
        emit(context["outlet_events"], self.outlets, view.run.job.name, facts)
        self._published = view, facts
        return facts

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Called by Airflow's OpenLineage provider, where there is one; the name is its own."""
        from frenzy.airflow.tasks.lineage import training_lineage

        return None if self._published is None else training_lineage(*self._published)


class EvaluateOperator(FrenzyOperator):
    """Perplexity on the held-out text and a sample from the model, in a process of its own.

    training_group: id of the task group that trained the model; None for the group that the task is in.
    """

    def __init__(self, *, training_group: str | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.training_group = training_group
        self._evaluation: Any = None

    def execute(self, context: Any) -> dict[str, Any]:
        from frenzy.airflow.failures import airflow_errors
        from frenzy.airflow.tasks.evaluation import Evaluation
        from frenzy.api import endpoints as api

        identity = identity_of(context["ti"], self.training_group)
        with airflow_errors():
            view: RunView = self.api_client().send(api.run_view(identity.run_key))
        self._evaluation = Evaluation(view, self.log)
        result: dict[str, Any] = self._evaluation.run()
        return result

    def on_kill(self) -> None:
        if self._evaluation is not None:
            self._evaluation.kill()


class ReconcileOperator(FrenzyOperator):
    """Looks at the workers behind every lease and lets the ledger put right what nobody else did."""

    def execute(self, context: Any) -> dict[str, Any]:
        from frenzy.airflow.failures import airflow_errors
        from frenzy.airflow.tasks.reconcile import reconcile_once
        from frenzy.airflow.tasks.statistics import send_statistics
        from frenzy.core.values.codec import encode

        with airflow_errors():
            summary = reconcile_once(self.api_client(), self.log)
        send_statistics(self.api_client(), self.log)
        encoded: dict[str, Any] = encode(summary)
        return encoded


PREPARE_TASK = "prepare"
NO_DELAY = timedelta(0)
MANY_RETRIES = 10_000
