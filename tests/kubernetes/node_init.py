"""The first process in the namespaces of the real node: starts containerd and the kubelet, and reaps.

    python -m tests.kubernetes.node_init SETTINGS.json

SETTINGS: the commands ``containerd``, ``ctr`` and ``kubelet``, the archives of ``images``, and the ``path`` to
find runtimes in. When containerd or the kubelet ends, so does this process, and with it everything here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1
# What containerd and the kubelet write at places that cannot be set; here it goes with the namespace.
_OWN: Final = ("/var/log", "/run/containerd", "/run/netns")


def main(settings: dict[str, Any]) -> int:
    os.environ["PATH"] = settings["path"]
    for place in _OWN:
        Path(place).mkdir(parents=True, exist_ok=True)
        subprocess.run(("mount", "-t", "tmpfs", "tmpfs", place), check=True)
    containerd = subprocess.Popen(settings["containerd"])
    _wait_for_containerd(settings["ctr"])
    for archive in settings["images"]:
        subprocess.run((*settings["ctr"], "images", "import", archive), check=True, stdout=subprocess.DEVNULL)
    kubelet = subprocess.Popen(settings["kubelet"])
    return _reap_until_one_ends(containerd.pid, kubelet.pid)


def _wait_for_containerd(ctr: list[str]) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while subprocess.run((*ctr, "version"), capture_output=True, check=False).returncode != 0:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"containerd did not answer within {_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)


def _reap_until_one_ends(*needed: int) -> int:
    """Orphans of a PID namespace are its first process's children: it waits for whichever ends."""
    while True:
        ended, status = os.wait()
        if ended in needed:
            return os.waitstatus_to_exitcode(status) or 1


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
