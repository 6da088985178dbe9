"""The jobs folder: one YAML file for each job that has a DAG of its own, in shards.

    <root>/shard_07/nightly-llama.yaml
    <root>/archive/old-job.3f2a91c0.yaml     removed ones

A shard is what one DAG file loads: few enough jobs to parse in time, found by name alone.
"""

from __future__ import annotations

import hashlib
import re
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import NAME_PATTERN

NUM_SHARDS: Final = 64
ARCHIVE: Final = "archive"
_SUFFIX: Final = ".yaml"
_NAME: Final = re.compile(NAME_PATTERN)


def shard_of(name: str) -> str:
    """The shard folder of the job called ``name``."""
    return f"shard_{zlib.crc32(name.encode()) % NUM_SHARDS:02d}"


class FolderJobStore:
    """JobStore below the folder ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, name: str, yaml_text: str) -> bool:
        """Store or replace the job's spec; True when the content changed. Raises SpecError for a bad name."""
        target = self._file(name)
        if self.get(name) == yaml_text:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{name}.{uuid.uuid4().hex}")
        temporary.write_bytes(yaml_text.encode())
        temporary.replace(target)
        return True

    def get(self, name: str) -> str | None:
        """The stored text, None when there is no such job. Raises SpecError for a bad name."""
        try:
            return self._file(name).read_bytes().decode()
        except FileNotFoundError:
            return None

    def names(self) -> Sequence[str]:
        """Ascending."""
        return sorted(path.stem for path in self._root.glob(f"shard_*/*{_SUFFIX}") if _NAME.match(path.stem))

    def remove(self, name: str) -> bool:
        """Move the job's spec to the archive; False when there is none. Raises SpecError for a bad name."""
        text = self.get(name)
        if text is None:
            return False
        archive = self._root / ARCHIVE
        archive.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        self._file(name).replace(archive / f"{name}.{digest}{_SUFFIX}")
        return True

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            allowed = "use lower-case letters, digits, - and _, at most 63"
            raise SpecError([Violation(path="name", value=repr(name), allowed=allowed)])
        return self._root / shard_of(name) / f"{name}{_SUFFIX}"
