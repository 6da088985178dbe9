"""Where the command writes: tables and sentences to stdout, complaints to stderr.

Text of users (names, log lines, reasons) is printed as it is: markup is off.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from io import StringIO
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from frenzy.cli.verbs import GROUP, VERBS
from frenzy.core.values.codec import encode

_PIPE_WIDTH: Final = 180
_LOG_WIDTH: Final = 320
# Before a verb, and not as the last part of a path.
_COMMAND: Final = re.compile(rf"(?<![\w./~-])frenzy(?= (?:{'|'.join((*VERBS, GROUP))})\b)")


class _Console(Console):
    """Prints commands of this project as they can be typed here, wherever their words come from."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*map(as_typed, objects), **options)


def as_typed(words: Any) -> Any:
    """``words``, each ``frenzy VERB`` in them with the path of the command where no ``PATH`` leads to it."""
    text = words.plain if isinstance(words, Text) else words
    found = list(_COMMAND.finditer(text)) if isinstance(text, str) else []
    if not found or shutil.which("frenzy") is not None:
        return words
    for each in reversed(found):
        parts = words[: each.start()], _path_of_command(), words[each.end() :]
        words = Text.assemble(*parts) if isinstance(words, Text) else "".join(parts)
    return words


def _path_of_command() -> str:
    """As it was typed; else of the one beside the interpreter."""
    if Path(sys.argv[0]).name == "frenzy":
        return shlex.quote(sys.argv[0])
    beside = Path(sys.executable).with_name("frenzy")
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


def _console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns
    return _Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width, soft_wrap=False)


def out() -> Console:
    """For what was asked for."""
    return _console()


def err() -> Console:
    """For what went wrong, and for progress beside ``--json``."""
    return _console(stderr=True)


def log_lines(printed: Any) -> list[str]:
    """What rich prints of ``printed``, a table for example, as lines of a task's log."""
    text = StringIO()
    Console(file=text, width=_LOG_WIDTH, no_color=True).print(printed)
    return [line.rstrip() for line in text.getvalue().rstrip().splitlines()]


def show_note(note: str | None) -> None:
    """Say what was assumed, or what nobody may expect: a line for each, beside the answer."""
    for each in (note or "").splitlines():
        err().print(f"Note: {each}", style="yellow", soft_wrap=True)


def print_json(value: object) -> None:
    """``value`` as indented JSON on stdout, and nothing else."""
    sys.stdout.write(json.dumps(encode(value), indent=2) + "\n")
