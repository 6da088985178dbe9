"""How much host memory a process may still take, and how much a stored model takes in fp32."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import fsspec

_FP32_BYTES: Final = 4
_LENGTH_BYTES: Final = 8
# No safetensors file has a longer header.
_MOST_HEADER_BYTES: Final = 100_000_000
_KIB: Final = 1024
# The files of both generations of control groups: limit, use, and the cached part of it that can be given back.
_GROUP_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def fp32_bytes(model_dir: str) -> int:
    """What all weights of the safetensors files at the URL or path ``model_dir`` take in fp32; reads headers only."""
    system, path = fsspec.core.url_to_fs(model_dir)
    files = [each for each in system.ls(path, detail=False) if str(each).endswith(".safetensors")]
    return _FP32_BYTES * sum(_num_weights(system, each) for each in files)


def _num_weights(system: fsspec.AbstractFileSystem, file: str) -> int:
    with system.open(file, "rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        header = json.loads(stream.read(min(length, _MOST_HEADER_BYTES)))
    return sum(math.prod(each["shape"]) for name, each in header.items() if name != "__metadata__")


def free_host_bytes(root: Path = Path("/")) -> float:
    """The least that the machine and each control group around this process leave; infinite where nothing tells.

    root: where ``proc`` and ``sys`` are.
    """
    rooms = [_of_machine(root), *(_of_group(each) for each in _groups(root))]
    return min((each for each in rooms if each is not None), default=math.inf)


def _of_machine(root: Path) -> float | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * _KIB
    return None


def _groups(root: Path) -> Iterator[Path]:
    """Folders of our control groups up to the outermost; in a container the mount itself is the innermost."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        own = mount / path.lstrip("/")
        yield from (own, *(each for each in own.parents if each == mount or mount in each.parents))


def _of_group(folder: Path) -> float | None:
    for limit, used, cached in _GROUP_FILES:
        most, now = _text(folder / limit).strip(), _text(folder / used).strip()
        if most.isdecimal() and now.isdecimal():
            stat = dict(line.split(maxsplit=1) for line in _text(folder / "memory.stat").splitlines())
            return max(0.0, float(most) - float(now) + float(stat.get(cached, 0)))
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
