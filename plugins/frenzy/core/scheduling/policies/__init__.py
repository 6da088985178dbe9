"""Policies beside the engine's own: first come first served, backfill, the paper's, and a rival."""
