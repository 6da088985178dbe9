"""The demos as scenarios, played on a real Airflow and judged by all that they leave behind.

``frenzy demo`` plays the same jobs and checks what the ledger recorded; here a control run that is never
interrupted, the run directory and Airflow's own records are evidence, too.
"""
