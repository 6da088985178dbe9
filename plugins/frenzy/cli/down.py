"""``frenzy down``: end all that runs for this home."""

from __future__ import annotations

import os

from frenzy.cli.console import out


def down() -> int:
    """Stop Airflow here, and the trainings it runs (they write a checkpoint first)."""
    from frenzy.cli.stack import Stack
    from frenzy.settings import load_settings

    stack = Stack(load_settings(os.environ))
    stack.stop()
    out().print(f"Nothing runs for {stack.settings.home} any more.")
    return 0
