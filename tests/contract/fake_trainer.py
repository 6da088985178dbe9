"""A node launcher without training: does what the job's environment says.

FAKE_TRAINER: ``finish`` (leave a result), ``wait`` (until told to stop, then leave 98),
``stubborn`` (ignore requests to stop), ``silent`` (end with 3 and leave nothing).
FAKE_RANKS: how many child processes it has; FAKE_STARTS: file that gets a line at each start.
FAKE_CLEAN: the children become programs without an environment, in sessions of their own (``away``) or not (``here``).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from frenzy.core.values import codec
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.run_files import RunPaths


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    options = parser.parse_args()
    kind = os.environ["FAKE_TRAINER"]
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: kind == "stubborn" or stopped.set())
    ranks = [_rank(kind) for _ in range(int(os.environ.get("FAKE_RANKS", "0")))]
    with Path(os.environ["FAKE_STARTS"]).open("a") as starts:
        starts.write(f"{os.getpid()} {' '.join(map(str, ranks))}\n")
    if kind == "silent":
        return 3
    if kind != "finish":
        while not stopped.wait(3600):
            pass
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    code = 0 if kind == "finish" else 98
    place = Path(RunPaths(options.run_dir.removeprefix("file://")).result(options.attempt))
    place.write_text(codec.dumps(AttemptResult(exit_code=code, last_step=4 if code else 10, total_steps=10)))
    return code


def _rank(kind: str) -> int:
    """A rank with a session of its own that nobody's death takes along."""
    pid = os.fork()
    if pid == 0:
        clean = os.environ.get("FAKE_CLEAN")
        if clean != "here":
            os.setsid()
        if clean is not None:
            os.execve("/bin/sleep", ["sleep", "3600"], {})
        signal.signal(signal.SIGTERM, signal.SIG_IGN if kind == "stubborn" else signal.SIG_DFL)
        while True:
            signal.pause()
    return pid


if __name__ == "__main__":
    sys.exit(main())
