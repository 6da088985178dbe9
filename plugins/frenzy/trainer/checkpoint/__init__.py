"""Checkpoints that another number of GPUs can resume."""
