"""``frenzy simulate``: options, the live queue, progress, output."""
