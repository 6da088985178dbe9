"""This machine's Python, its packages and this checkout inside a pod, without building an image.

The pod's image is a bare busybox; the host's libraries, the interpreter, the virtual environment and the checkout
are mounted read-only at the paths they have here, so that everything in them finds everything else.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.kubernetes import images

from frenzy.settings import CHECKOUT

USER: Final = 65534
_HOME: Final = "/tmp"
# Where programs expect libraries and the dynamic linker; links into /usr on a merged system.
_SYSTEM: Final = ("/usr", "/lib", "/lib64")


_WRITABLE: Final = {"shm": "/dev/shm", "tmp": _HOME}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPython:
    """What a pod needs to run ``python`` as here: parts of a pod manifest, as the API's JSON."""

    image: str
    python: str
    env: tuple[dict[str, Any], ...]
    volumes: tuple[dict[str, Any], ...]
    mounts: tuple[dict[str, Any], ...]

    def pod(self, name: str, *command: str, env: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        """A pod that runs ``python *command`` with as few rights as the product's own pods."""
        container = {
            "name": "base",
            "image": self.image,
            "command": [self.python, *command],
            "env": [*self.env, *({"name": key, "value": value} for key, value in (env or {}).items())],
            "volumeMounts": list(self.mounts),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
        }
        restricted = {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "securityContext": restricted,
                "containers": [container],
                "volumes": list(self.volumes),
                **spec,
            },
        }


def python_of_this_machine() -> HostPython:
    """The interpreter that runs this, for pods on a node that is this machine."""
    prefix = os.path.realpath(sys.prefix)
    places = {path: os.path.realpath(path) for path in _SYSTEM if Path(path).exists()}
    for path in (prefix, os.path.realpath(sys.base_prefix), str(CHECKOUT)):
        if not path.startswith("/usr/"):
            places[path] = path
    shared = [
        ({"name": f"host-{index}", "hostPath": {"path": places[path]}}, path) for index, path in enumerate(places)
    ]
    own = [({"name": name, "emptyDir": {"medium": "Memory"}}, path) for name, path in _WRITABLE.items()]
    env = {
        "PYTHONPATH": str(CHECKOUT / "plugins"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": "/usr/bin:/bin",
        "HOME": _HOME,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    return HostPython(
        image=images.BUSYBOX,
        python=f"{prefix}/bin/python",
        env=tuple({"name": name, "value": value} for name, value in env.items()),
        volumes=tuple(volume for volume, _ in (*shared, *own)),
        mounts=(
            *({"name": volume["name"], "mountPath": path, "readOnly": True} for volume, path in shared),
            *({"name": volume["name"], "mountPath": path} for volume, path in own),
        ),
    )
