"""The Airflow edge: operators, triggers and DAGs. An ``execute`` decodes, calls once, encodes.

Nothing heavy is imported by these modules at their top, and constructors do nothing but keep
their arguments, so that a DAG file parses in milliseconds.
"""
