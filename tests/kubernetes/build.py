"""Builds the tests' Kubernetes once, and keeps it outside the checkout.

    python -m tests.kubernetes.build [api|full]

``api`` is etcd, kube-apiserver, kube-scheduler, kube-controller-manager and kubectl; ``full`` adds kubelet,
containerd, runc, CNI plugins and two small images. It takes two to four minutes on two cores, once.

FRENZY_TEST_KUBERNETES_BINARIES names a folder of ready programs instead, of any version since 1.20: the flags follow
what its kube-apiserver says of itself. Nothing is built then. The programs lie in the folder or in its ``bin``;
``full`` needs ``cni`` and ``images`` beside them, as a build has.

The result lies in ``${XDG_CACHE_HOME:-~/.cache}/frenzy`` (or FRENZY_TEST_KUBERNETES_CACHE) under a name that
carries the version and a digest of the recipe, so a changed recipe is built anew. It appears by a rename
when it is complete, and one build runs at a time: a second one waits for the first and takes its result.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.kubernetes.debian import CannotBuildError, DebianArchive, mirror
from tests.kubernetes.go_build import VERSION
from tests.kubernetes.recipe import FILES, Part, make

BINARIES: Final = "FRENZY_TEST_KUBERNETES_BINARIES"
_API: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
PROGRAMS: Final = {Part.API: _API, Part.FULL: (*_API, "kubelet", "containerd", "ctr", "runc")}


def built(part: Part) -> Path:
    """The folder of the build, made now if it is not there; ``bin``, ``cni`` and ``images`` lie in it.

    Raises CannotBuildError.
    """
    ready = os.environ.get(BINARIES)
    if ready:
        return _given(Path(ready).absolute(), part)
    home = _cache()
    for wide_enough in Part.FULL, part:
        place = home / name_of(wide_enough)
        if place.exists():
            return place
    with _only_one(home / f"{place.name}.lock"):
        if not place.exists():
            _build(part, place)
    return place


def program_of(build: Path, name: str) -> Path:
    """Where the program ``name`` of a build, or of a folder of ready programs, should be."""
    return build / "bin" / name if (build / "bin").is_dir() else build / name


def version_of(build: Path) -> tuple[int, int]:
    """Major and minor version of Kubernetes, as its API server prints it."""
    command = (program_of(build, "kube-apiserver"), "--version")
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    if found is None:
        raise CannotBuildError(f"kube-apiserver --version says {said!r}, and no version")
    return int(found[1]), int(found[2])


def _given(folder: Path, part: Part) -> Path:
    places = {each: program_of(folder, each) for each in PROGRAMS[part]}
    if part is Part.FULL:
        places |= {each: folder / each for each in ("cni", "images")}
    missing = ", ".join(name for name, place in places.items() if not place.exists())
    if missing:
        raise CannotBuildError(f"the folder {folder} of {BINARIES} lacks {missing}")
    return folder


def _cache() -> Path:
    given = os.environ.get("FRENZY_TEST_KUBERNETES_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frenzy"
    return Path(given) if given else home


def name_of(part: Part) -> str:
    """The folder of a build of ``part`` by this recipe."""
    recipe = hashlib.sha256()
    for file in FILES:
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
        result = make(part, DebianArchive(work / "apt", source_of_packages), work)
        result.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> int:
    try:
        print(built(Part(sys.argv[1] if len(sys.argv) > 1 else Part.API)))
    except CannotBuildError as error:
        print(f"cannot build Kubernetes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
