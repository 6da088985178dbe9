"""DAGs made of stored jobs and of files, and the form."""
