"""The Airflow DAG that reconciles leases, workers and Airflow once a minute."""

from frenzy.airflow.dags.dags import sweep_dag

dag = sweep_dag()
