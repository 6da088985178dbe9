"""Programs in forks of one process that has imported torch, which takes each start of Python three seconds."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from multiprocessing.connection import Connection
from typing import Final

_CONTEXT: Final = multiprocessing.get_context("forkserver")
# Not the hub's client, which looks at its environment when it is imported.
_CONTEXT.set_forkserver_preload(["frenzy.trainer.model.hub"])


def printed(program: str, given: str, environment: Mapping[str, str]) -> str:
    """What ``program`` prints; given: its input; environment: all of its variables. Raises EOFError where it fails."""
    here, there = _CONTEXT.Pipe(duplex=False)
    child = _CONTEXT.Process(target=_run, args=(there, program, given, dict(environment)))
    child.start()
    there.close()
    try:
        said: str = here.recv()
        return said
    finally:
        child.join()
        here.close()


def _run(answer: Connection, program: str, given: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # else the folder that an earlier program found
    warnings.simplefilter("ignore")
    sys.stdin = io.StringIO(given)
    with redirect_stdout(io.StringIO()) as said:
        exec(program, {})
    answer.send(said.getvalue())
