"""Frenzy: serverless training of language models on mixed GPU clusters, as an Airflow project."""

__version__ = "0.1.0"
