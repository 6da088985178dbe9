"""Implementations of the ports. An adapter knows one outside thing and no use case.

Each port has an in-memory implementation in ``memory``; one contract test runs against all
implementations of a port.
"""
