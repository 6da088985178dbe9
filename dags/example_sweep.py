"""A sweep: six small trainings, each learning rate with each depth, compete for GPUs; the last task compares them."""

from airflow.sdk import DAG

from frenzy import combinations, frenzy_comparison, frenzy_training
from frenzy.settings import CHECKOUT

JOB = CHECKOUT / "include/jobs/sweep/tiny.yaml"
SETTINGS = {"training.learning_rate": [1e-3, 3e-3, 1e-2], "model.config.n_layer": [1, 2]}

with DAG("example_sweep", schedule=None, tags=["frenzy", "example"], doc_md=__doc__) as dag:
    frenzy_training.partial(evaluate=True).expand(job=combinations(JOB, SETTINGS)) >> frenzy_comparison()
