"""The Airflow DAG that reconciles leases, workers and Airflow once a minute."""

from frenzy.airflow.dags import reconcile_dag

dag = reconcile_dag()
