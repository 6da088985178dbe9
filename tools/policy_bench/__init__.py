"""Rivals of the scheduler and published traces: what the product's policies are compared with.

``python -m tools.policy_bench`` is ``frenzy simulate`` with the rivals among its policies; the comparisons
themselves are in tests/bench.
"""
