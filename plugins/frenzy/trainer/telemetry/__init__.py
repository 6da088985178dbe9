"""What a rank tells of its steps and its memory, and where the figures come from."""
