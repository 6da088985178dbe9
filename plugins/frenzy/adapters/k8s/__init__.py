"""Kubernetes: pods of the workers, and the inventory from node labels.

Only ``listing`` and the launcher's ``pods`` talk to an API server; all else is pure.
"""
