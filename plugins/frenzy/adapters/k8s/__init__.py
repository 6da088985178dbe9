"""Kubernetes: pods of the workers, and the inventory from node labels.

Only ``kubernetes_inventory``, ``kubernetes_launcher`` and ``reflection`` talk to an API server; all else is pure.
"""
