"""A DAG ``job_<name>`` for each specification in include/jobs."""

import os
from pathlib import Path

from frenzy.airflow.dags import job_dags_of_folder
from frenzy.settings import load_settings

FOLDER = Path(__file__).resolve().parents[1] / "include/jobs"
globals().update(job_dags_of_folder(FOLDER, __file__, jobs_folder=load_settings(os.environ).jobs_folder))
