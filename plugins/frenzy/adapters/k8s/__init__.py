"""Kubernetes: pods of the workers, and the inventory from node labels.

``pod_rules``, ``labels``, ``manifest`` and ``nodes`` are pure: values in, values out. Only
``inventory`` talks to an API server.
"""
