"""The ledger in SQL, the run directory and the jobs folder on files.

The ledger lives in Airflow's metadata database, in tables of its own: nothing here imports
Airflow. ``airflow_tables`` names the few columns of Airflow's own tables that it touches.
"""
