"""Writes the reference pages of docs/ that the code itself dictates."""
