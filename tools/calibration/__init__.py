"""Generates the memory model's coefficients: traces of tiny models, and one linear system for each case."""
