"""The task group by its earlier name; new DAG files import it from ``frenzy``."""

from frenzy.airflow.operators.task_group import frenzy_evaluation, frenzy_training

__all__ = ["frenzy_evaluation", "frenzy_training"]
