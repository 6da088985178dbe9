"""``frenzy down``: end all that runs for this home."""

from __future__ import annotations

import os

from frenzy.cli.render.console import out


def down() -> int:
    """Stop Airflow here, and the trainings it runs (they write a checkpoint first)."""
    from frenzy.cli.commands.up import told_while
    from frenzy.cli.embedded.left_jobs import left_jobs
    from frenzy.cli.embedded.stack import Stack
    from frenzy.core.values.errors import FrenzyError
    from frenzy.settings import load_settings

    stack, console = Stack(load_settings(os.environ)), out()
    with told_while(stack, "Airflow stops"):
        stack.stop()
    console.print(f"Nothing runs for {stack.settings.home} any more.")
    if not stack.was_started():
        return 0
    try:
        left = left_jobs(stack)
    except FrenzyError as error:
        console.print(f"Which jobs are left is not known: {error}", style="dim")
        return 0
    for line in left:
        console.print(f"  {line}")
    if left:
        console.print("They go on by themselves with: frenzy up")
    return 0
