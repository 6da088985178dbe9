"""What one rank does: prepare, train step by step, obey."""
