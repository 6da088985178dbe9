"""Holds the memory and time models to published runs, and writes docs/accuracy.md."""
