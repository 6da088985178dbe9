"""``frenzy plan``: the plans of a job, how it would fit, the pods it would get; without Airflow."""
