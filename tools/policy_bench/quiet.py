"""Keeps what a C library prints off stdout, where a command's own output goes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def c_stdout_silenced() -> Iterator[None]:
    """Within it, what C code prints to stdout is lost; not for use beside threads that print.

    HiGHS has a stray debug print that none of its options turns off.
    """
    c_library = ctypes.CDLL(None)
    c_library.fflush(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        c_library.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
