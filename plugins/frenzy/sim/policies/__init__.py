"""Rivals of the product's scheduler, for comparison in the simulator only."""
