"""Asking a library in a process of its own: bounded in time and memory, without Airflow's variables.

What it says of a user's config is an answer, however it ends; nothing of the library stays in the caller.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from frenzy.adapters.local.worker_environment import helper_environment
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError

# A config may have layers without number, and each is a Python object at least.
# What the process holds is counted, not what it maps: the libraries of a GPU alone map more.
MOST_MEMORY_BYTES: Final = 4 * 1024**3
TIMEOUT_S: Final = 60.0
Told = Callable[[int, int], None]


def ask(program: str, asked: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S, told: Told | None = None) -> Any:
    """The answer of ``program``, the last line of JSON that it prints, or ``{"error": why there is none}``.

    told: called with how much is done, and of how much, as often as the program says so in a line of its own.
    Raises TemporaryError when it did not answer in time: that says more of the machine than of what was asked.
    """
    allowed = [each for each in resource.getrlimit(resource.RLIMIT_DATA) if each != resource.RLIM_INFINITY]
    limit = min([MOST_MEMORY_BYTES, *allowed])
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({limit},) * 2)\n"
    # Imports are most of its time, and Python's usual search for garbage a fifth of theirs.
    seldom = "import gc; gc.set_threshold(100_000, 20, 20)\n"
    command = [sys.executable, "-W", "ignore", "-c", limited + seldom + program]
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            command,
            env=helper_environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
        with process:
            answer, is_late = _conversation(process, json.dumps(asked, default=str), timeout_s, told)
        complaints.seek(0)
        words = " ".join(complaints.read().split())[-300:]
    if answer is not None and process.returncode == 0:
        return answer
    if is_late:
        raise _late(timeout_s)
    return {"error": f"transformers could not be asked: {words or 'its process was ended'}"}


def _late(timeout_s: float) -> TemporaryError:
    detail = f"transformers could not be asked: it did not answer within {timeout_s:g} s."
    remedy = (
        "Try again: the next try has up to twice the time. Where the machine always has much to do, run `frenzy plan` "
        "with this job once while it has less; the answer is kept."
    )
    return TemporaryError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))


def _conversation(process: subprocess.Popen[str], asked: str, timeout_s: float, told: Told | None) -> tuple[Any, bool]:
    """(the last line of JSON that it says, None where there is none; whether its time was over before it ended)."""
    assert process.stdin is not None and process.stdout is not None
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    watch = threading.Timer(timeout_s, end)
    watch.start()
    answer: dict[str, Any] | None = None
    try:
        with suppress(BrokenPipeError), process.stdin:  # it may have answered without a look at the question
            process.stdin.write(asked)
        for line in process.stdout:
            answer = _object(line) or answer
            if told is not None and answer is not None and answer.keys() == {"done", "of"}:
                told(answer["done"], answer["of"])
        process.wait()
    finally:
        watch.cancel()
        process.kill()  # where it goes on although nobody listens
    return answer, late.is_set()


def _object(line: str) -> dict[str, Any] | None:
    """None for a library's own words."""
    with suppress(ValueError):
        said = json.loads(line)
        return said if isinstance(said, dict) else None
    return None
