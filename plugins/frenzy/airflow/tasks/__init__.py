"""What a task of the walk does when it runs."""
