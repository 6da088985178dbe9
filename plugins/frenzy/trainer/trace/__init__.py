"""A training step's memory by tracing the model, without a GPU."""
