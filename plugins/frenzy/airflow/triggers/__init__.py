"""Waiting without a worker slot: for a placement, for an attempt's end. Airflow stores triggers by these names."""

from frenzy.airflow.triggers.triggers import LaunchTrigger, MonitorTrigger, PlaceTrigger

__all__ = ["LaunchTrigger", "MonitorTrigger", "PlaceTrigger"]
