"""How the tests' Kubernetes is made: what is fetched, what is compiled, and what is kept of it."""

from __future__ import annotations

import shutil
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.kubernetes import debian, go_build, images
from tests.kubernetes.debian import DebianArchive
from tests.kubernetes.go_build import GO_PACKAGES, VERSION, GoTree

_HERE: Final = Path(__file__).parent
_MODULES: Final = (Path(module.__file__ or "") for module in (debian, go_build, images))
# What decides the result: a change of any of them is another build.
FILES: Final = (Path(__file__), *_MODULES, *sorted((_HERE / "go").rglob("*.go")))

_NODE_PACKAGES: Final = ("containerd", "runc", "containernetworking-plugins", "busybox-static")
_NODE_PROGRAMS: Final = (
    "usr/bin/containerd",
    "usr/bin/containerd-shim-runc-v2",
    "usr/bin/ctr",
    "usr/sbin/runc",
)
_CNI_PLUGINS: Final = ("bridge", "host-local", "loopback")


class Part(StrEnum):
    """How much of Kubernetes is built and run."""

    API = "api"
    FULL = "full"


def make(part: Part, archive: DebianArchive, work: Path) -> Path:
    """Fetch, compile and put together ``part`` below ``work``; the folder of the result. Raises CannotBuildError."""
    say = _Progress()
    root, result = work / "root", work / "result"
    node = _NODE_PACKAGES if part is Part.FULL else ()
    archive.unpack(("etcd-server", *GO_PACKAGES, *node), into=root)
    tree = GoTree(root=root, work=work / "go")
    tree.adopt(archive.source("kubernetes", into=work / "source"))
    say(f"sources of Kubernetes {VERSION} from Debian {debian.RELEASE}")
    tree.generate_openapi()
    say("the API's schema is generated")
    tree.compile(result / "bin", with_kubelet=part is Part.FULL)
    shutil.copy(root / "usr/bin/etcd", result / "bin")
    if part is Part.FULL:
        _add_node(tree, root, result)
    say("Kubernetes is built")
    return result


def _add_node(tree: GoTree, root: Path, result: Path) -> None:
    """What a node needs beside the kubelet."""
    for program in _NODE_PROGRAMS:
        shutil.copy(root / program, result / "bin")
    (result / "cni").mkdir()
    for plugin in _CNI_PLUGINS:
        shutil.copy(root / "usr/lib/cni" / plugin, result / "cni")
    (result / "images").mkdir()
    tree.compile_pause(result / "bin")
    images.write_pause(result / "images/pause.tar", result / "bin/pause")
    images.write_busybox(result / "images/busybox.tar", root / "bin/busybox")


class _Progress:
    """Lines with the seconds since the start, on standard error."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"{time.monotonic() - self._started_s:4.0f} s  {text}", file=sys.stderr, flush=True)
