"""Implementations of the ports. An adapter knows one outside thing and no use case.

One contract test runs against all implementations of a port; those in memory are in ``tests/in_memory``.
"""
