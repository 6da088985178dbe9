"""Nodes and GPUs of a Kubernetes cluster, as the scheduler counts them."""
