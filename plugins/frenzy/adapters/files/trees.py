"""The files below one root: a local folder, where no link leads anywhere else, or any other fsspec store.

The user's code writes run directories, and Airflow's processes read them with rights that the code may not have.
So a local path is walked folder by folder from the root, and none of its parts may be a symbolic link; what is
opened must be a plain file (a FIFO would block for ever). Paths are relative to the root, joined with ``/``.
"""

from __future__ import annotations

import logging
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

from frenzy.ports import StoredFile

logger = logging.getLogger(__name__)

# A file system may have more: what is looked at in one go is bounded, however much the user's code makes.
_MOST_NAMES: Final = 1_000_000
# Of these each is looked at, at every look: files and folders together, so many folders below the one asked for.
_MOST_SIZES: Final = 100_000
_MOST_DEPTH: Final = 32
# Of a file that is handed on, as much as is in memory at a time.
_PART_BYTES: Final = 4 * 1024**2
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITING: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Tree(Protocol):
    """What is not there, or is no plain file that belongs there, counts as absent."""

    def read(self, path: str, *, most_bytes: int, start: int = 0) -> bytes | None:
        """At most so many bytes of the file, from byte ``start`` on; None where there is no such file."""
        ...

    def size(self, path: str) -> int | None: ...
    def stored(self, path: str) -> StoredFile | None: ...
    def names(self, folder: str) -> Iterator[str]:
        """Names of what is in ``folder``, in no order."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """The size of every plain file below ``folder``, by its path; of very many not of all, with a warning."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Readers see the old content or the new, never a part."""
        ...

    def remove(self, path: str) -> None:
        """Remove the file, or the folder with all that is below it; links are removed, not followed."""
        ...


class LocalTree:
    """``root`` is a folder of this machine; it may itself be reached through links."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def read(self, path: str, *, most_bytes: int, start: int = 0) -> bytes | None:
        with suppress(OSError), self._folder_of(path) as (folder, name):
            opened = os.open(name, _READING, dir_fd=folder)
            try:
                found = os.fstat(opened)
                return _read(opened, start, most_bytes) if stat.S_ISREG(found.st_mode) else None
            finally:
                os.close(opened)
        return None

    def size(self, path: str) -> int | None:
        with suppress(OSError), self._folder_of(path) as (folder, name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            return found.st_size if stat.S_ISREG(found.st_mode) else None
        return None

    def stored(self, path: str) -> StoredFile | None:
        with suppress(OSError), self._folder_of(path) as (folder, name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                version = _version_of(found)
                return StoredFile(num_bytes=found.st_size, version=version, parts=partial(self._parts, path, version))
        return None

    def _parts(self, path: str, version: str, start: int, stop: int) -> Iterator[bytes]:
        """Of the file as it was opened: one that takes its place meanwhile is another."""
        with self._folder_of(path) as (folder, name):
            opened = os.open(name, _READING, dir_fd=folder)
        with os.fdopen(opened, "rb", buffering=0) as file:
            if _version_of(os.fstat(opened)) != version:
                raise _changed(path)
            file.seek(start)
            while start < stop and (part := file.read(min(_PART_BYTES, stop - start))):
                yield part
                start += len(part)

    def names(self, folder: str) -> Iterator[str]:
        with suppress(OSError), self._opened(folder) as opened, os.scandir(opened) as found:
            yield from (each.name for each in islice(found, _MOST_NAMES))

    def sizes(self, folder: str) -> dict[str, int]:
        found: dict[str, int] = {}
        left, num_seen = [str(PurePosixPath(folder))], 0
        deepest = left[0].count("/") + _MOST_DEPTH
        while left and num_seen < _MOST_SIZES:
            for path, size in self._entries(left.pop(), _MOST_SIZES - num_seen):
                num_seen += 1
                if size is not None:
                    found[path] = size
                elif path.count("/") <= deepest:
                    left.append(path)
        if num_seen >= _MOST_SIZES:
            _warn_of_too_many(folder)
        return found

    def _entries(self, folder: str, most: int) -> Iterator[tuple[str, int | None]]:
        """Path and size of what is in ``folder``, at most so many; a folder has no size."""
        with suppress(OSError), self._opened(folder) as opened, os.scandir(opened) as found:
            for each in islice(found, most):
                with suppress(FileNotFoundError):  # it went away just now
                    known = each.stat(follow_symlinks=False)
                    if stat.S_ISREG(known.st_mode) or stat.S_ISDIR(known.st_mode):
                        yield f"{folder}/{each.name}", known.st_size if stat.S_ISREG(known.st_mode) else None

    def write(self, path: str, data: bytes) -> None:
        """Raises OSError, also where a link stands in the way."""
        with self._folder_of(path, make=True) as (folder, name):
            draft = f".{name}.{uuid.uuid4().hex}"
            with os.fdopen(os.open(draft, _WRITING, 0o666, dir_fd=folder), "wb") as file:
                file.write(data)
            os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError), self._folder_of(path) as (folder, name):
            if not _is_folder(name, folder):
                os.unlink(name, dir_fd=folder)
                return
            opened = os.open(name, _FOLDER, dir_fd=folder)
            try:
                _empty(opened)
            finally:
                os.close(opened)
            os.rmdir(name, dir_fd=folder)

    @contextmanager
    def _folder_of(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The open folder that ``path`` lies in, and its name there."""
        above, _, name = path.rpartition("/")
        with self._opened(above, make=make) as folder:
            yield folder, name

    @contextmanager
    def _opened(self, folder: str, *, make: bool = False) -> Iterator[int]:
        """``folder``, opened part by part. Raises OSError where a part is absent, or is a link."""
        parts = PurePosixPath(folder).parts
        if {"/", ".."} & set(parts):
            raise PermissionError(f"{folder} leads out of {self._root}")
        if make:
            self._root.mkdir(parents=True, exist_ok=True)
        opened = os.open(self._root, _FOLDER & ~os.O_NOFOLLOW)
        try:
            for part in parts:
                if make:
                    _make_folder(part, opened)
                above, opened = opened, os.open(part, _FOLDER, dir_fd=opened)
                os.close(above)
            yield opened
        finally:
            os.close(opened)


class RemoteTree:
    """An object store, or whatever else fsspec reaches; it has no links."""

    def __init__(self, fs: Any, base: str) -> None:
        self._fs, self._base = fs, base

    def read(self, path: str, *, most_bytes: int, start: int = 0) -> bytes | None:
        size = self.size(path)
        if size is None or start >= size:
            return None if size is None else b""
        with suppress(FileNotFoundError):
            return bytes(self._fs.cat_file(self._at(path), start=start, end=min(size, start + most_bytes)))
        return None

    def size(self, path: str) -> int | None:
        self._fs.invalidate_cache(self._at(path).rpartition("/")[0])
        with suppress(FileNotFoundError):
            found = self._fs.info(self._at(path))
            return int(found["size"] or 0) if found["type"] == "file" else None
        return None

    def stored(self, path: str) -> StoredFile | None:
        size = self.size(path)
        if size is None:
            return None
        version = f"{size}-{self._fs.modified(self._at(path))}"
        return StoredFile(num_bytes=size, version=version, parts=partial(self._parts, path, version))

    def _parts(self, path: str, version: str, start: int, stop: int) -> Iterator[bytes]:
        """The last part only of a file that is as it was: nobody gets one made of two."""
        for first in range(start, stop, _PART_BYTES):
            part = bytes(self._fs.cat_file(self._at(path), start=first, end=min(stop, first + _PART_BYTES)))
            if first + _PART_BYTES >= stop:
                now = self.stored(path)
                if now is None or now.version != version:
                    raise _changed(path)
            yield part

    def names(self, folder: str) -> Iterator[str]:
        self._fs.invalidate_cache(self._at(folder))
        with suppress(FileNotFoundError):
            found = self._fs.ls(self._at(folder), detail=False)
            yield from (str(each).rpartition("/")[2] for each in found[:_MOST_NAMES])

    def sizes(self, folder: str) -> dict[str, int]:
        self._fs.invalidate_cache()
        found: dict[str, Any] = self._fs.find(self._at(folder), detail=True)
        if len(found) > _MOST_SIZES:
            _warn_of_too_many(folder)
        start = len(self._base) + 1
        return {path[start:]: int(info["size"] or 0) for path, info in islice(found.items(), _MOST_SIZES)}

    def write(self, path: str, data: bytes) -> None:
        self._fs.pipe_file(self._at(path), data)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm(self._at(path), recursive=True)

    def _at(self, path: str) -> str:
        return f"{self._base}/{path}"


def _warn_of_too_many(folder: str) -> None:
    logger.warning("%s holds %d files and folders or more; what is beyond is not counted.", folder, _MOST_SIZES)


def _version_of(found: os.stat_result) -> str:
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


def _changed(path: str) -> OSError:
    return OSError(f"{path} was replaced while it was read")


def _read(opened: int, start: int, most_bytes: int) -> bytes:
    with os.fdopen(os.dup(opened), "rb") as file:
        file.seek(start)
        return file.read(most_bytes)


def _is_folder(name: str, folder: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _empty(folder: int) -> None:
    """Remove what is in the open ``folder``, however deep: what a folder in it holds is moved up first."""
    while names := os.listdir(folder):
        for each in names:
            with suppress(FileNotFoundError):  # another call removes them, too
                if _is_folder(each, folder):
                    _move_up(each, folder)
                else:
                    os.unlink(each, dir_fd=folder)


def _move_up(name: str, folder: int) -> None:
    """Remove the folder ``name``; what it holds goes to the open ``folder``, under new names."""
    opened = os.open(name, _FOLDER, dir_fd=folder)
    try:
        for each in os.listdir(opened):  # noqa: PTH208  # an open folder has no path
            with suppress(FileNotFoundError):
                os.rename(each, uuid.uuid4().hex, src_dir_fd=opened, dst_dir_fd=folder)
    finally:
        os.close(opened)
    os.rmdir(name, dir_fd=folder)


def _make_folder(name: str, folder: int) -> None:
    """What stands in its way, a link for example, goes."""
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        if not _is_folder(name, folder):
            os.unlink(name, dir_fd=folder)
            os.mkdir(name, dir_fd=folder)
