"""Policies beside the engine's own: first come first served, backfill and the paper's."""
