"""One training run from a form: Trigger, fill in, go. See ``job_<name>`` DAGs for what runs again and again."""

from functools import partial
from pathlib import Path

from airflow.sdk import DAG, get_current_context, task

from frenzy.airflow.dags.train_form import DAG_ID, SAVE_AS_JOB, form, job_of_form, save_job
from frenzy.airflow.operators.task_group import frenzy_evaluation, frenzy_training

PRESETS = Path(__file__).resolve().parents[1] / "include/jobs"

with DAG(DAG_ID, schedule=None, params=form(PRESETS), max_active_runs=1000, tags=["frenzy"], doc_md=__doc__) as dag:

    @task.short_circuit(ignore_downstream_trigger_rules=False)
    def wanted_as_job() -> bool:
        return bool(get_current_context()["params"][SAVE_AS_JOB])

    wanted_as_job() >> task(save_job)(str(PRESETS))
    frenzy_training(partial(job_of_form, presets=PRESETS)) >> frenzy_evaluation()
