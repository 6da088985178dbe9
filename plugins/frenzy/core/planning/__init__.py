"""MARP: the plans a job can run by, their step time, and what to change when there is none."""
