"""Runs as they are recorded, shown and sent, and who may see or change them."""
