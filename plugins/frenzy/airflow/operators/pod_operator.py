"""The launch task on Kubernetes: a KubernetesPodOperator whose pods are an attempt's.

Only the DAG processor and this task itself import this module: the operator's own imports cost
every process that makes them a good part of a second of CPU (``task_group`` chooses).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

from frenzy.airflow.connection import DEFAULT_CONN_ID, api_client
from frenzy.airflow.identity import identity_of
from frenzy.airflow.operators.operators import LaunchWait
from frenzy.airflow.tasks.starting import AttemptStart
from frenzy.airflow.tasks.workers import workers


class PodLaunchOperator(LaunchWait, KubernetesPodOperator):
    """Makes the attempt's pods through its Kubernetes connection and ends, deferred, when they are gone.

    What is a pod is not the operator's to say: manifests come from the launcher, one for each node of
    the placement, all under this one task instance. Pods of another attempt are never taken for its
    own: they are found by the attempt's labels, not by the task's. Its trigger ends the task.
    """

    ui_color = "#e8f0fe"
    template_fields: Sequence[str] = ("kubernetes_conn_id",)

    def __init__(self, *, frenzy_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(deferrable=True, durable=False, **kwargs)
        self.frenzy_conn_id = frenzy_conn_id
        self._start: AttemptStart | None = None

    def execute(self, context: Any) -> None:
        from frenzy.airflow.triggers.triggers import LaunchTrigger

        reach = workers(core_api=lambda: self.client)
        self._start = AttemptStart(client=api_client(self.frenzy_conn_id), workers=reach, log=self.log)
        spec = self._start.run(identity_of(context["ti"]).run_key)
        trigger = LaunchTrigger(run_key=spec.run_key, attempt=spec.attempt, conn_id=self.frenzy_conn_id)
        self.defer(trigger=trigger, method_name="resume")

    def on_kill(self) -> None:
        """The task was ended while it made its pods: none is left. Once it waits, its trigger sees to that."""
        if self._start is not None:
            self._start.stop()
