"""File systems whose failures are OSErrors, whichever library talks to the store.

fsspec hands on what its clients raise. Much of that is no OSError: botocore's EndpointConnectionError, gcsfs's
HttpError, all of azure.core's errors, aiohttp's disconnects. Who reads and writes files expects OSErrors alone.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

# Libraries by which fsspec's file systems talk to their stores; they are not imported here, for few are installed.
_CLIENTS: Final = frozenset(
    {"adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "gcsfs", "google", "httpx", "ossfs", "requests", "urllib3"}
)


def opened(place: str) -> tuple[Any, str]:
    """The file system of ``place``, whose calls fail with OSErrors, and its name there."""
    import fsspec

    fs, key = fsspec.core.url_to_fs(place)
    return _OsErrors(fs), str(key)


def is_of_store(error: BaseException) -> bool:
    """Whether ``error`` tells of a disk or a store, so that a later try may well succeed."""
    if isinstance(error, OSError):
        return error.errno != errno.ENOMEM
    return any(each.__module__.partition(".")[0] in _CLIENTS for each in type(error).__mro__)


@contextmanager
def os_errors() -> Iterator[None]:
    """Raise what a store's client raises as OSError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or not is_of_store(error):
            raise
        raise OSError(errno.EREMOTEIO, f"{type(error).__name__}: {error}") from error


class _OsErrors:
    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._fs, name)
        return os_errors()(found) if callable(found) else found
