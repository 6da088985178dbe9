"""Workers as processes of this machine, under a detached supervisor for each attempt.

A supervisor outlives the Airflow component that started it. It is found again by its pid and
start time; its workers by the run key and attempt in their environment, also when it is dead.
"""
