"""A module for each command of ``frenzy``."""
