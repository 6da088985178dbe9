"""Trackers of experiments: each a process beside the ranks that is handed what rank 0 reports."""
