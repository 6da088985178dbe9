"""Builds the tests' Kubernetes once, and keeps it outside the checkout.

    python -m tests.kubernetes.build [api|full]

``api`` is etcd, kube-apiserver, kube-scheduler, kube-controller-manager and kubectl; ``full`` adds kubelet,
containerd, runc, CNI plugins and two small images. It takes two to four minutes on two cores, once.

The result lies in ``${XDG_CACHE_HOME:-~/.cache}/frenzy`` (or FRENZY_TEST_KUBERNETES_CACHE) under a name that
carries the version and a digest of the recipe, so a changed recipe is built anew. It appears by a rename
when it is complete, and one build runs at a time: a second one waits for the first and takes its result.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.kubernetes import debian, go_build, images
from tests.kubernetes.debian import CannotBuildError, DebianArchive, mirror
from tests.kubernetes.go_build import GO_PACKAGES, VERSION, GoTree

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


def built(part: Part) -> Path:
    """The folder of the build, made now if it is not there; ``bin``, ``cni`` and ``images`` lie in it.

    Raises CannotBuildError.
    """
    home = _cache()
    for wide_enough in Part.FULL, part:
        place = home / _name(wide_enough)
        if place.exists():
            return place
    with _only_one(home / f"{place.name}.lock"):
        if not place.exists():
            _build(part, place)
    return place


def _cache() -> Path:
    given = os.environ.get("FRENZY_TEST_KUBERNETES_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frenzy"
    return Path(given) if given else home


def _name(part: Part) -> str:
    recipe = hashlib.sha256()
    modules = (Path(module.__file__ or "") for module in (debian, go_build, images))
    for file in (Path(__file__), *modules, *sorted((Path(__file__).parent / "go").rglob("*.go"))):
        recipe.update(file.read_bytes())
    return f"kubernetes-{VERSION}-{part}-{recipe.hexdigest()[:12]}"


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Waits for other processes that build the same; the kernel ends the wait also when one is killed."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _build(part: Part, place: Path) -> None:
    source_of_packages = mirror()
    for unfinished in place.parent.glob(f"{place.name}.unfinished-*"):
        shutil.rmtree(unfinished)
    work = Path(tempfile.mkdtemp(prefix=f"{place.name}.unfinished-", dir=place.parent))
    try:
        result = _made(part, DebianArchive(work / "apt", source_of_packages), work)
        result.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _made(part: Part, archive: DebianArchive, work: Path) -> Path:
    """The result below ``work``, complete."""
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


def main() -> int:
    try:
        print(built(Part(sys.argv[1] if len(sys.argv) > 1 else Part.API)))
    except CannotBuildError as error:
        print(f"cannot build Kubernetes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
