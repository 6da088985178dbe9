"""How a rank ends: its errors, the exit codes they become, and the sentence that says why."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.launch import ExitCode

CRASHED: Final = 1
TERMINATION_MESSAGE_BYTES: Final = 4096
_OUT_OF_MEMORY_TEXTS: Final = (
    "can't allocate memory",
    "cannot allocate memory",
    "std::bad_alloc",
    "could not create a primitive",
    "could not create a memory",
    "can't start new thread",
)


class BadInputError(PermanentError):
    """The configuration or the data cannot be trained on; the sentence names the remedy."""

    def __init__(self, path: str, value: object, allowed: str) -> None:
        super().__init__(
            Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=f"{path}: {_short(value)} is refused; {allowed}")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """The last words of one rank, a small file in the launcher's scratch folder."""

    exit_code: int
    detail: str = ""
    last_step: int = 0
    total_steps: int = 0
    resumed_from_step: int | None = None
    checkpoint_step: int | None = None
    final_loss: float | None = None


def describe_failure(error: BaseException, *, virtual: bool) -> tuple[int, str]:
    """Exit code and one sentence for ``error``."""
    sentence = _first_line(error)
    if isinstance(error, PermanentError):
        return ExitCode.BAD_CONFIG_OR_DATA, error.reason.sentence
    if type(error).__name__ == "OutOfMemoryError" or "CUDA out of memory" in str(error):
        return ExitCode.CUDA_OUT_OF_MEMORY, sentence
    if virtual and is_host_out_of_memory(error):
        return ExitCode.BUDGET_EXCEEDED, sentence
    return CRASHED, f"{type(error).__name__}: {sentence}"


def is_host_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` is how a refused request for memory of the process shows itself."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == 12:
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(each in text for each in _OUT_OF_MEMORY_TEXTS)


def says_out_of_memory(log_tail: str) -> bool:
    """Whether the last words of a process that died by a signal speak of refused memory."""
    return "std::bad_alloc" in log_tail or "can't allocate memory" in log_tail


def write_termination_message(place: Path, *, exit_code: int, detail: str, last_step: int) -> None:
    """Why the trainer ended, as JSON that fits Kubernetes' limit of 4 KiB."""
    room = TERMINATION_MESSAGE_BYTES - 256
    clipped = detail.encode()[:room].decode(errors="ignore")
    while len(json.dumps(clipped)) > room:
        clipped = clipped[: len(clipped) // 2]
    place.write_text(json.dumps({"exit_code": exit_code, "last_step": last_step, "detail": clipped}))


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
