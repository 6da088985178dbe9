"""A DAG ``job_<name>`` for each specification in include/jobs."""

import os

from frenzy.airflow.dags import job_dags_of_folder
from frenzy.settings import CHECKOUT, load_settings

globals().update(
    job_dags_of_folder(CHECKOUT / "include/jobs", __file__, jobs_folder=load_settings(os.environ).jobs_folder)
)
