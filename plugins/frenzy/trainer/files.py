"""Reading and writing places of a run directory: local paths directly, URLs through fsspec.

Writes are all-or-nothing: a local file is renamed into place, an object store puts whole objects.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Final, TypeVar

from frenzy.core.values.errors import ContractError
from frenzy.trainer import stores

T = TypeVar("T")
OnProgress = Callable[[int], None]
_FILE_SCHEME: Final = "file://"
_WAITS_S: Final = (0.1, 1.0, 5.0, 15.0, 30.0, 60.0)
_SETTLED: Final = (FileNotFoundError, PermissionError)
_SETTLED_S: Final = 5.0

logger = logging.getLogger(__name__)


def local_path(place: str) -> Path | None:
    """``place`` as a path of this machine, or None for a URL of another file system."""
    if place.startswith(_FILE_SCHEME):
        return Path(place.removeprefix(_FILE_SCHEME))
    return None if "://" in place else Path(place)


def exists(place: str) -> bool:
    path = local_path(place)
    if path is not None:
        return path.exists()
    fs, key = stores.opened(place)
    return bool(fs.exists(key))


def read_bytes(place: str, *, most_bytes: int | None = None, links: bool = True) -> bytes:
    """The content of ``place``. Raises FileNotFoundError, and ContractError for more than ``most_bytes``.

    links: whether ``place`` or its folder may be a link; where it may not, one is not found.
    """
    path, most = local_path(place), None if most_bytes is None else most_bytes + 1
    if path is not None:
        with path.open("rb") if links else _opened_plain(path) as file:
            found = file.read() if most is None else file.read(most)
    else:
        fs, key = stores.opened(place)
        found = bytes(fs.cat_file(key, end=most))
    if most_bytes is not None and len(found) > most_bytes:
        raise ContractError(f"{place} has more than {most_bytes} bytes")
    return found


def open_folder(path: Path) -> int:
    """A descriptor of the folder itself, whatever is put in its place. Raises FileNotFoundError for a link too."""
    return _descriptor(path, os.O_DIRECTORY)


def open_file(name: str, folder: int) -> int:
    """A descriptor of a file in ``folder``, to be read. Raises FileNotFoundError for a link too."""
    return _descriptor(name, os.O_NONBLOCK, folder)  # a pipe in its place keeps nobody waiting


def _descriptor(path: Path | str, flags: int, folder: int | None = None) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise FileNotFoundError(errno.ENOENT, "A link is no plain file or folder", str(path)) from error


def _opened_plain(path: Path) -> IO[bytes]:
    folder = open_folder(path.parent)
    try:
        return os.fdopen(open_file(path.name, folder), "rb")
    finally:
        os.close(folder)


def size(place: str) -> int | None:
    """Bytes of the file at ``place``; None where there is none."""
    path = local_path(place)
    try:
        if path is not None:
            return path.stat().st_size
        fs, key = stores.opened(place)
        return int(fs.size(key))
    except FileNotFoundError:
        return None


def sizes(folder: str) -> dict[str, int]:
    """Names and sizes of the files in ``folder``; none where there is no such folder."""
    path = local_path(folder)
    if path is not None:
        return _plain_sizes(path)
    fs, key = stores.opened(folder)
    fs.invalidate_cache(key)
    if not fs.exists(key):
        return {}
    return {each["name"].rpartition("/")[2]: int(each["size"] or 0) for each in fs.ls(key, detail=True)}


def _plain_sizes(folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):  # others rename and remove their files meanwhile
            if each.is_file():
                found[each.name] = each.lstat().st_size
    return found


def read_text(place: str) -> str:
    """The UTF-8 content of ``place``. Raises FileNotFoundError."""
    return read_bytes(place).decode()


def read_ranges(ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Bytes [start, stop) of each place, all on one store that is not local, asked for together. Raises OSError."""
    if not ranges:
        return []
    fs, _ = stores.opened(ranges[0][0])
    places = [str(fs._strip_protocol(place)) for place, _, _ in ranges]
    starts, stops = [start for _, start, _ in ranges], [stop for _, _, stop in ranges]
    found = [bytes(each) for each in fs.cat_ranges(places, starts, stops, on_error="raise")]
    for each, (place, start, stop) in zip(found, ranges, strict=True):
        if len(each) != stop - start:
            raise OSError(f"{place} gave {len(each)} bytes from {start} on, not {stop - start}")
    return found


def patiently(read: Callable[[], T]) -> T:
    """What ``read`` gives, tried for two minutes: stores go away for a while, and many GPUs wait. Raises OSError.

    What is not there, or not allowed, is tried for a moment only.
    """
    began_s = time.monotonic()
    for wait_s in _WAITS_S:
        try:
            return read()
        except OSError as error:
            if isinstance(error, _SETTLED) and time.monotonic() - began_s > _SETTLED_S:
                raise
            logger.warning("tried again in %.0f s: %s", wait_s, error)
            time.sleep(wait_s)
    return read()


def told(works: Sequence[Callable[[OnProgress], T]], on_progress: OnProgress, *, num_threads: int = 1) -> list[T]:
    """The results of ``works``, done in other threads; the sizes that they tell arrive in this one."""
    heard: SimpleQueue[int | None] = SimpleQueue()
    with ThreadPoolExecutor(num_threads) as pool:
        futures = [pool.submit(each, heard.put) for each in works]
        for future in futures:
            future.add_done_callback(lambda _: heard.put(None))
        running = len(futures)
        while running:
            num_bytes = heard.get()
            if num_bytes is None:
                running -= 1
            else:
                on_progress(num_bytes)
        return [each.result() for each in futures]


def put_file(fs: Any, source: Path, key: str, on_progress: OnProgress) -> None:
    """Put a local file on the store ``fs``, of which the bytes are told as they go."""
    told([lambda tell: fs.put_file(str(source), key, callback=_telling(tell))], on_progress)


def _telling(tell: OnProgress) -> Any:
    from fsspec.callbacks import Callback

    class Telling(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            if inc:
                tell(inc)

    return Telling()


def download_file(place: str, target: Path, on_progress: OnProgress = lambda _: None) -> None:
    """Copy what is on another store to a local file, told by its bytes."""
    fs, key = stores.opened(place)
    told([partial(_get, fs, key, target)], on_progress)


def write_text(place: str, text: str) -> None:
    """Put ``text`` at ``place``; readers see the old content or the new, never a part."""
    path = local_path(place)
    if path is None:
        _put(place, lambda fs, key: fs.pipe_file(key, text.encode()))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with temporary.open("x") as file:
        file.write(text)
    temporary.replace(path)


def upload_file(source: Path, place: str) -> None:
    """Copy a local file to ``place``; a no-op when it is already there."""
    path = local_path(place)
    if path is None:
        _put(place, lambda fs, key: fs.put_file(str(source), key))
        return
    if path.absolute() == source.absolute():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes of different pods may have the same id.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    shutil.copyfile(source, temporary)
    temporary.replace(path)


def publish_folder(source: Path, place: str, *, last: str = "") -> None:
    """Put the files of ``source`` under ``place``, a file named ``last`` after all others.

    A reader that waits for ``last`` sees a complete folder, also on stores without rename.
    """
    files = sorted(each for each in source.rglob("*") if each.is_file())
    for each in sorted(files, key=lambda file: file.name == last):
        upload_file(each, f"{place}/{each.relative_to(source).as_posix()}")


def fetch_folder(place: str, scratch: Path, on_progress: OnProgress = lambda _: None) -> Path:
    """``place`` as a local folder: itself if it is local, else a download below ``scratch``, told by its bytes."""
    path = local_path(place)
    if path is not None:
        return path
    fs, key = stores.opened(place)
    for found in fs.find(key):
        target = scratch / found.removeprefix(key).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        told([partial(_get, fs, found, target)], on_progress)
    return scratch


def _get(fs: Any, key: str, target: Path, tell: OnProgress) -> None:
    fs.get_file(key, str(target), callback=_telling(tell))


def folder_bytes(place: str) -> int:
    """What ``fetch_folder`` would fetch of ``place``."""
    if local_path(place) is not None:
        return 0
    fs, key = stores.opened(place)
    return int(fs.du(key))


def remove_file(place: str) -> None:
    """Remove ``place`` if it is there."""
    path = local_path(place)
    if path is not None:
        path.unlink(missing_ok=True)
        return
    fs, key = stores.opened(place)
    if fs.exists(key):
        fs.rm_file(key)


def _put(place: str, put: Callable[[Any, str], None]) -> None:
    """``put`` at ``place``, making its folder on the stores that have such a thing."""
    fs, key = stores.opened(place)
    try:
        put(fs, key)
    except FileNotFoundError:
        fs.makedirs(fs._parent(key), exist_ok=True)
        put(fs, key)
