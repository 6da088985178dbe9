"""The last task of a sweep: the runs of a mapped training group side by side, best first."""

from __future__ import annotations

from typing import Any

from frenzy.airflow.connection import DEFAULT_CONN_ID
from frenzy.airflow.operators.operators import FrenzyOperator
from frenzy.airflow.operators.task_group import DEFAULT_GROUP


class CompareOperator(FrenzyOperator):
    """Compares the runs of one task group of its DAG run by what their evaluations found, or by their last loss.

    training_group: id of the task group, mapped or not. Fails when none of its runs has a model.
    """

    def __init__(self, *, training_group: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.training_group = training_group

    def execute(self, context: Any) -> list[dict[str, Any]]:
        from airflow.sdk.exceptions import AirflowFailException

        from frenzy.airflow.failures import airflow_errors
        from frenzy.cli.render.console import log_lines
        from frenzy.cli.render.trials import trials_table
        from frenzy.core.runs.comparison import compared
        from frenzy.core.values.codec import encode

        with airflow_errors():
            views = self._views(context["ti"])
            models = {each.run.run_key: self._model(each.run.run_key) for each in views}
        trials = compared(views, self._evaluations(context["ti"], views), models)
        for line in log_lines(trials_table(trials)):
            self.log.info("%s", line)
        if not any(trial.model for trial in trials):
            raise AirflowFailException(f"No run of the group {self.training_group} has a model to compare.")
        found: list[dict[str, Any]] = encode(trials)
        return found

    def _views(self, ti: Any) -> list[Any]:
        from frenzy.api import endpoints as api

        views = self.api_client().send(api.runs_of_dag_run(ti.dag_id, ti.run_id))
        return [each for each in views if each.run.identity.task_group == self.training_group]

    def _model(self, run_key: str) -> str | None:
        from frenzy.api import endpoints as api

        return next((each.path for each in self.api_client().send(api.models(run_key=run_key))), None)

    def _evaluations(self, ti: Any, views: list[Any]) -> dict[str, Any]:
        """What the group's own task ``evaluate`` returned, by run key."""
        task_id = f"{self.training_group}.evaluate"
        found = {
            each.run.run_key: ti.xcom_pull(task_ids=task_id, map_indexes=each.run.identity.map_index) for each in views
        }
        return {run_key: evaluation for run_key, evaluation in found.items() if evaluation is not None}


def frenzy_comparison(
    *,
    group_id: str = DEFAULT_GROUP,
    task_id: str = "compare",
    frenzy_conn_id: str = DEFAULT_CONN_ID,
) -> CompareOperator:
    """The task that compares the runs of the mapped group ``group_id``, best first, once all of them have ended.

    It succeeds when one of them has a model; the others are shown with what became of them.
    """
    return CompareOperator(
        task_id=task_id, training_group=group_id, frenzy_conn_id=frenzy_conn_id, trigger_rule="all_done", retries=1
    )
