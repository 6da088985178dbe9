"""The published algorithm, where it is more than the engine does."""
