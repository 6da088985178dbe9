"""``frenzy marp``: measure, trace, evaluate."""
