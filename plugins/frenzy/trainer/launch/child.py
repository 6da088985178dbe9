"""Forked children: one that prepares, one for each rank. None outlives the launcher."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from frenzy.core.values import codec
from frenzy.core.values.run_files import how_ended
from frenzy.trainer.outcome import CRASHED, RankReport, describe_death, describe_failure
from frenzy.trainer.telemetry.process_memory import num_oom_kills

_PR_SET_PDEATHSIG: Final = 1
# The watchdog of NCCL writes stacks of every thread after the line that says what happened.
_TAIL_BYTES: Final = 64 * 1024
_libc: Final = ctypes.CDLL(None, use_errno=True)


def fork(main: Callable[[], int], *, log_file: Path | None = None) -> int:
    """Run ``main`` in a child that ends with its result as exit code; the child's pid.

    The child dies with its parent (Linux), and writes to ``log_file`` if one is given.
    """
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    # Pages of objects alive now are shared with the children as long as nobody touches them.
    gc.freeze()
    pid = os.fork()
    if pid:
        return pid
    code = CRASHED
    try:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(CRASHED)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if log_file is not None:
            _write_to(log_file)
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """From now on this process gets the signal ``number`` when its parent ends (Linux)."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def call_in_child(work: Callable[[], Any], result_file: Path, *, log_file: Path) -> Any:
    """What ``work`` returns, computed in a child; a RankReport when it failed.

    A child that was killed gives a report with 128 + the signal's number.
    """

    def main() -> int:
        try:
            result_file.write_bytes(pickle.dumps(work()))
        except BaseException as error:
            traceback.print_exc()
            code, detail = describe_failure(error, virtual=False)
            result_file.write_bytes(pickle.dumps(RankReport(exit_code=code, detail=detail)))
        return 0

    kills_before = num_oom_kills()
    code = exit_code_of(os.waitpid(fork(main, log_file=log_file), 0)[1])
    if code != 0:
        return _died(code, log_file, oom_killed=num_oom_kills() > kills_before)
    return pickle.loads(result_file.read_bytes())  # noqa: S301  # of our own child, from a private folder


def _died(code: int, log_file: Path, *, oom_killed: bool) -> RankReport:
    said = describe_death(code, log_tail(log_file), virtual=False, oom_killed=oom_killed) or (code, how_ended(code))
    return RankReport(exit_code=said[0], detail=f"the preparation {said[1]}")


def log_tail(file: Path) -> str:
    """The end of what a child wrote; empty where it wrote nothing."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def exit_code_of(status: int) -> int:
    """The exit code in a wait status; 128 + n for signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def read_report(file: Path) -> RankReport | None:
    """A rank's last words; None when it had no time for any."""
    try:
        return codec.loads(RankReport, file.read_text())
    except FileNotFoundError:
        return None


def _write_to(log_file: Path) -> None:
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
