"""Proves the product on one real GPU in half an hour, part by part, with the trainer's own launcher and MARP's plans.

It imports ``frenzy.core`` and ``frenzy.trainer`` alone, as the trainer's image does: no Airflow is needed.
"""
