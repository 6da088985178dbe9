"""``frenzy_agent``, a distribution of its own for users' scripts: imports nothing but the standard library."""
