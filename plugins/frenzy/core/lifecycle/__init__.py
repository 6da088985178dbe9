"""What becomes of a run once it is placed: watched, moved, disrupted, resumed, ended."""
