"""Raw text to cleaned parquet with pandas; its statistics feed the plan; then training and evaluation."""

import os

from airflow.sdk import DAG, get_current_context, task

from frenzy import frenzy_evaluation, frenzy_training
from frenzy.core.values.resource_plan import short_hash
from frenzy.settings import CHECKOUT, load_settings

with DAG("example_etl_then_train", schedule=None, tags=["frenzy", "example"], doc_md=__doc__) as dag:

    @task(multiple_outputs=True)
    def clean(source: str, base: str) -> dict:
        from frenzy.airflow.dags.example_etl import clean_text

        folder = load_settings(os.environ).home / "etl" / short_hash(get_current_context()["run_id"])
        return clean_text(CHECKOUT / source, folder, base=CHECKOUT / base)

    cleaned = clean("include/data/tinyshakespeare.txt", "include/jobs/tiny-shakespeare.yaml")
    frenzy_training(cleaned["job"], data_facts=cleaned["data_facts"]) >> frenzy_evaluation()
