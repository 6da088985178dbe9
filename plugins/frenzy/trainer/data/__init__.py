"""Texts to token sequences, in a fixed order."""
