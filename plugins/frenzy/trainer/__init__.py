"""What runs on the GPUs: one launcher per node, one forked process per GPU, DeepSpeed inside.

Imports only ``frenzy.core`` and itself, so that its image carries no Airflow. The environment is
read in ``env``; every effect outside the process goes through ``files``.
"""
