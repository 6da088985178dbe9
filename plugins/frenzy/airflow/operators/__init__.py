"""What a DAG's author writes: the operators and the task group."""
