"""Hostile inputs for every reader of text: a command for many, and a share that the unit tests run."""
