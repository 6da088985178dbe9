"""A model's shape: its parameters, modules and operations, by family; nothing of memory."""
