"""What a person sees when something is refused or cannot be reached, and the exit status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.text import Text

from frenzy.cli.render.console import err
from frenzy.core.values.errors import FrenzyError, Reason, SpecError, TemporaryError, Violation
from frenzy.core.values.units import counted

FAILED: Final = 1
REFUSED: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130


def guarded(action: Callable[[], int]) -> int:
    """Run ``action``; the exit status, with every expected failure shown in words."""
    console = err()
    try:
        return action()
    except SpecError as error:
        show_violations(console, error.violations)
        return REFUSED
    except TemporaryError as error:
        show_reason(console, error.reason)
        return UNREACHABLE
    except FrenzyError as error:
        show_reason(console, error.reason)
        return REFUSED
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        return FAILED


def show_violations(console: Console, violations: tuple[Violation, ...]) -> None:
    """One row for each refused field: where, what it was, what is allowed."""
    from frenzy.cli.render.tables import grid

    console.print(f"Refused: {counted(len(violations), 'field')}.", style="bold red")
    rows = [(Text(each.path, style="bold"), each.value, each.allowed) for each in violations]
    console.print(grid("", ("field", "value", "allowed"), rows))


def show_reason(console: Console, reason: Reason) -> None:
    """The sentence with its code, and the remedy on a line of its own."""
    console.print(Text.assemble((f"{reason.code}: ", "bold red"), reason.sentence))
    if reason.remedy:
        console.print(Text.assemble(("Remedy: ", "bold"), reason.remedy))
