"""A remote store in a folder: put, get, list and delete, with neither append nor rename."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.local import LocalFileSystem


class PutOnlyStore(LocalFileSystem):  # type: ignore[misc]
    """Addressed as ``putonly:///folder``. Objects appear whole; anything else is refused."""

    protocol = "putonly"
    cachable = False

    def mv(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError("this store cannot rename")

    mv_file = mv

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            raise NotImplementedError("this store has no files to write into, only objects to put")
        return super().open(path, mode, **options)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(value)


class DeadlyStore(PutOnlyStore):
    """Addressed as ``deadly:///folder``; kills the process that puts the object named in ``victim``."""

    protocol = "deadly"
    victim: ClassVar[str] = ""

    def put_file(self, local: str, remote: str, **options: Any) -> None:
        if DeadlyStore.victim and DeadlyStore.victim in remote:
            os.kill(os.getpid(), signal.SIGKILL)
        super().put_file(local, remote, **options)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        if DeadlyStore.victim and DeadlyStore.victim in path:
            os.kill(os.getpid(), signal.SIGKILL)
        super().pipe_file(path, value, **options)


for store in (PutOnlyStore, DeadlyStore):
    fsspec.register_implementation(store.protocol, store, clobber=True)
