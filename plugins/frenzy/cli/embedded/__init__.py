"""Airflow on this machine: installed, started, supervised, stopped."""
