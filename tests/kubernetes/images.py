"""Container images made of plain files, as archives that containerd imports: no registry, no Docker."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path
from typing import Final

BUSYBOX: Final = "frenzy.test/busybox:debian"
PAUSE: Final = "frenzy.test/pause:1"

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
# Pods run as a user without a name; root and nobody are there for programs that look names up.
_PASSWD: Final = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"


def write_busybox(archive: Path, busybox: Path) -> None:
    """A shell and its commands, from Debian's static busybox."""
    layer = _Layer()
    layer.program(busybox, "bin/busybox")
    commands = subprocess.run((str(busybox), "--list"), capture_output=True, text=True, check=True).stdout.split()
    for name in commands:
        if name != "busybox":
            layer.link(f"bin/{name}", "/bin/busybox")
    layer.text("etc/passwd", _PASSWD)
    layer.folder("tmp", mode=0o1777)
    _write(archive, BUSYBOX, layer, {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"]})


def write_pause(archive: Path, pause: Path) -> None:
    layer = _Layer()
    layer.program(pause, "pause")
    _write(archive, PAUSE, layer, {"Entrypoint": ["/pause"]})


class _Layer:
    """One layer: a tar file in memory. The same files give the same bytes."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._bytes, mode="w")  # noqa: SIM115 (closed by content)
        self._folders = {"."}

    def program(self, source: Path, path: str) -> None:
        self._file(path, source.read_bytes(), mode=0o755)

    def text(self, path: str, content: str) -> None:
        self._file(path, content.encode(), mode=0o644)

    def link(self, path: str, target: str) -> None:
        self.folder(str(Path(path).parent))
        entry = tarfile.TarInfo(path)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)

    def folder(self, path: str, *, mode: int = 0o755) -> None:
        """``path`` and the folders above it, each once."""
        if path in self._folders:
            return
        self.folder(str(Path(path).parent))
        self._folders.add(path)
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        self._tar.addfile(entry)

    def content(self) -> bytes:
        self._tar.close()
        return self._bytes.getvalue()

    def _file(self, path: str, content: bytes, *, mode: int) -> None:
        self.folder(str(Path(path).parent))
        entry = tarfile.TarInfo(path)
        entry.size, entry.mode = len(content), mode
        self._tar.addfile(entry, io.BytesIO(content))


def _write(archive: Path, name: str, layer: _Layer, configuration: dict[str, list[str]]) -> None:
    """An archive as `docker save` writes it: the layer, the image's configuration, and which belongs to what."""
    content = layer.content()
    digest = hashlib.sha256(content).hexdigest()
    image = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": configuration,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    described = json.dumps(image).encode()
    described_as = f"{hashlib.sha256(described).hexdigest()}.json"
    manifest = [{"Config": described_as, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add(tar, f"{digest}/layer.tar", content)
        _add(tar, described_as, described)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _add(tar: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
