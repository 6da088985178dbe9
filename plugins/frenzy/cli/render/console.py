"""Where the command writes: tables and sentences to stdout, complaints to stderr.

Text of users (names, log lines, reasons) is printed as it is: markup is off.
"""

from __future__ import annotations

import json
import shutil
import sys
from typing import Final

from rich.console import Console

from frenzy.core.values.codec import encode

_PIPE_WIDTH: Final = 180


def _console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width, soft_wrap=False)


def out() -> Console:
    """For what was asked for."""
    return _console()


def err() -> Console:
    """For what went wrong, and for progress beside ``--json``."""
    return _console(stderr=True)


def print_json(value: object) -> None:
    """``value`` as indented JSON on stdout, and nothing else."""
    sys.stdout.write(json.dumps(encode(value), indent=2) + "\n")
