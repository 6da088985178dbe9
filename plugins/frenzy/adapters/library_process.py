"""Asking a library in a process of its own: bounded in time and memory, without Airflow's variables.

What it says of a user's config is an answer, however it ends; nothing of the library stays in the caller.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from frenzy.adapters.local.worker_environment import helper_environment

# A config may have layers without number, and each is a Python object at least.
# What the process holds is counted, not what it maps: the libraries of a GPU alone map more.
MOST_MEMORY_BYTES: Final = 4 * 1024**3
_TIMEOUT_S: Final = 60.0
Told = Callable[[int, int], None]


def ask(program: str, asked: Mapping[str, Any], *, timeout_s: float = _TIMEOUT_S, told: Told | None = None) -> Any:
    """The answer of ``program``, the last line of JSON that it prints, or ``{"error": why there is none}``.

    told: called with how much is done, and of how much, as often as the program says so in a line of its own.
    """
    allowed = [each for each in resource.getrlimit(resource.RLIMIT_DATA) if each != resource.RLIM_INFINITY]
    limit = min([MOST_MEMORY_BYTES, *allowed])
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({limit},) * 2)\n"
    command = [sys.executable, "-W", "ignore", "-c", limited + program]
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
            answer = _conversation(process, json.dumps(asked, default=str), timeout_s, told)
        complaints.seek(0)
        words = complaints.read()[-300:].strip()
    if answer is not None and process.returncode == 0:
        return answer
    why = f"it did not answer within {timeout_s:g} s" if process.returncode == -signal.SIGKILL else words
    return {"error": f"transformers could not be asked: {why}"}


def _conversation(process: subprocess.Popen[str], asked: str, timeout_s: float, told: Told | None) -> Any:
    """The last line that it says; None where that is none of JSON, or it ends before it is asked."""
    assert process.stdin is not None and process.stdout is not None
    watch = threading.Timer(timeout_s, process.kill)
    watch.start()
    answer = None
    try:
        with process.stdin:
            process.stdin.write(asked)
        for line in process.stdout:
            answer = json.loads(line)
            if told is not None and answer.keys() == {"done", "of"}:
                told(answer["done"], answer["of"])
        process.wait()
    except (BrokenPipeError, ValueError):
        return None
    finally:
        watch.cancel()
        process.kill()  # where it goes on although nobody listens
    return answer
