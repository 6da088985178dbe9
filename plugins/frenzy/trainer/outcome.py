"""How a rank ends: its errors, the exit codes they become, and the sentence that says why."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.failure_classes import ECHOES, name_error, name_last_words, name_signal
from frenzy.core.values.run_files import EXIT_BY_REASON, REASON_BY_EXIT, ExitCode, how_ended

CRASHED: Final = 1
TERMINATION_MESSAGE_BYTES: Final = 4096
# A virtual GPU's memory is the process's: libraries word its end in more ways than a host's that is full.
_BUDGET_TEXTS: Final = (
    "could not create a primitive",
    "could not create a memory",
    "can't start new thread",
)


class BadInputError(PermanentError):
    """The configuration or the data cannot be trained on; the sentence names the remedy."""

    def __init__(self, path: str, value: object, allowed: str) -> None:
        self.path, self.value, self.allowed = path, value, allowed
        super().__init__(
            Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=f"{path}: {_short(value)} is refused; {allowed}")
        )

    def of_held_out(self) -> BadInputError:
        """The same of data that ``validation.path`` names, which are read as if they were ``data.path``."""
        path = "validation.path" if self.path == "data.path" else self.path
        return type(self)(path, self.value, self.allowed)


class DataNotHereError(BadInputError):
    """No data are at the place that is named, or they cannot be reached; another machine may have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """The last words of one rank, a small file in the launcher's scratch folder."""

    exit_code: int
    detail: str = ""
    last_step: int = 0


def describe_failure(error: BaseException, *, virtual: bool, device_is_full: bool | None = None) -> tuple[int, str]:
    """Exit code and one sentence for ``error``. device_is_full: None where nobody knows."""
    if isinstance(error, PermanentError):
        said = " ".join(filter(None, (error.reason.sentence, error.reason.remedy)))
        return EXIT_BY_REASON.get(error.reason.code, ExitCode.BAD_CONFIG_OR_DATA), said
    if virtual and _is_over_budget(error):
        return ExitCode.BUDGET_EXCEEDED, _first_line(error)
    named = name_error(error, device_is_full=device_is_full)
    if named is None:
        return CRASHED, f"{type(error).__name__}: {_first_line(error)}"
    return EXIT_BY_REASON[named.failure.code], named.line or _first_line(error)


def describe_death(exit_code: int, log_tail: str, *, virtual: bool, oom_killed: bool) -> tuple[int, str] | None:
    """Exit code and what happened, of a process that died by a signal; None where its last words say nothing.

    oom_killed: the kernel killed a process of this machine for its memory meanwhile. Who is killed has no last words.
    """
    if exit_code <= 128:
        return None
    if exit_code - 128 == signal.SIGKILL:
        killed = ExitCode.HOST_OUT_OF_MEMORY, "the kernel killed it for its host memory"
        return killed if oom_killed else None
    named = name_last_words(log_tail)
    failure = named.failure if named is not None else name_signal(exit_code - 128)
    if failure is None:
        return None
    if virtual and failure.code is ReasonCode.HOST_OUT_OF_MEMORY:
        return ExitCode.BUDGET_EXCEEDED, "the memory budget was exceeded in library code"
    how = how_ended(exit_code)
    return EXIT_BY_REASON[failure.code], how if named is None else f"{how}: {named.line}"


def budget_exceeded(log_tail: str) -> bool:
    """Whether a script on a virtual GPU ended for want of memory, by the last line that it wrote."""
    lines = [each for each in log_tail.splitlines() if each.strip()]
    last = lines[-1].lower() if lines else ""
    return last.startswith("memoryerror") or any(each in last for each in _BUDGET_TEXTS)


def says_little(exit_code: int) -> int:
    """How little an exit code explains: 0 for a cause, 1 for a crash, 2 for what ranks say whose peers were lost."""
    if exit_code == CRASHED:
        return 1
    return 2 if REASON_BY_EXIT.get(exit_code) in ECHOES else 0


def _is_over_budget(error: BaseException) -> bool:
    """Whether ``error`` is how a refused request for memory of the process shows itself."""
    named = name_error(error)
    if named is not None and named.failure.code is ReasonCode.HOST_OUT_OF_MEMORY:
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(each in text for each in _BUDGET_TEXTS)


def write_termination_message(place: Path, *, exit_code: int, detail: str, last_step: int) -> None:
    """Why the trainer ended, as JSON that fits Kubernetes' limit of 4 KiB."""
    room = TERMINATION_MESSAGE_BYTES - 256
    clipped = detail.encode()[:room].decode(errors="ignore")
    while len(json.dumps(clipped)) > room:
        clipped = clipped[: len(clipped) // 2]
    place.write_text(json.dumps({"exit_code": exit_code, "last_step": last_step, "detail": clipped}))


def one_line(error: BaseException) -> str:
    """The message of ``error`` on one line of at most 300 letters; its kind when it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
