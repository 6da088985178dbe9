"""Objects of an API server as a source of reflections, with the client library's many errors as ours."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from frenzy.adapters.k8s.reflection import AbsentError, ForbiddenError, GoneError, Json, ListFailedError

_PAGE: Final = 500
_WATCH_S: Final = 240
_CONNECT_S: Final = 10.0
# Longer than the server lets a watch last: a connection that died without a word is noticed then.
_SILENCE_S: Final = 10.0
_LIST_S: Final = 30.0
_FORBIDDEN: Final = 403
_ABSENT: Final = 404
_GONE: Final = 410


class Listing:
    """Lists and watches with one client, made when it is first needed.

    lister: the method of the client that lists. watch_s: after which the server ends a watch. options: of each call.
    """

    def __init__(
        self,
        make_api: Callable[[], Any],
        lister: Callable[[Any], Callable[..., Any]],
        *,
        watch_s: int = _WATCH_S,
        **options: str,
    ) -> None:
        self._make, self._lister, self._watch_s, self._options = make_api, lister, watch_s, options
        self._api: Any = None
        self._answer: Any = None
        self.closed = threading.Event()

    def list(self) -> tuple[Iterable[Json], str]:
        """All objects as parsed JSON (models of thousands take seconds), and their version, which all pages have.

        One page at a time is in memory: those after the first are asked for as they are needed.
        """
        first = self._page(None)
        return self._objects(first), str(first["metadata"]["resourceVersion"])

    def watch(self, version: str) -> Iterator[Json]:
        with _translated():
            answer = self._list_objects()(
                watch=True,
                resource_version=version,
                allow_watch_bookmarks=True,
                timeout_seconds=self._watch_s,
                _preload_content=False,
                _request_timeout=(_CONNECT_S, self._watch_s + _SILENCE_S),
                **self._options,
            )
        return self._events(answer)

    def _events(self, answer: Any) -> Iterator[Json]:
        self._answer = answer
        try:
            with _translated():
                if not self.closed.is_set():
                    yield from map(json.loads, _lines(answer))
        finally:
            answer.close()
            self._answer = None

    def close(self) -> None:
        self.closed.set()
        answer = self._answer
        with suppress(ValueError, RuntimeError, OSError):  # it has ended meanwhile
            if answer is not None:
                answer.shutdown()

    def _list_objects(self) -> Callable[..., Any]:
        if self._api is None:
            self._api = self._make()
        return self._lister(self._api)

    def _objects(self, page: Json) -> Iterator[Json]:
        while True:
            yield from page["items"]
            token = page["metadata"].get("continue")
            if not token:
                return
            page = self._page(token)

    def _page(self, token: str | None) -> Json:
        with _translated():
            answer = self._list_objects()(
                limit=_PAGE,
                _continue=token,
                _preload_content=False,
                _request_timeout=(_CONNECT_S, _LIST_S),
                **self._options,
            )
            page: Json = json.loads(answer.data)
        return page


def _lines(answer: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in answer.stream(amt=None, decode_content=False):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        if error.status == _GONE:
            raise GoneError(str(error.reason)) from error
        refusal = {_FORBIDDEN: ForbiddenError, _ABSENT: AbsentError}.get(error.status, ListFailedError)
        raise refusal(f"{error.status} {error.reason}") from error
    except (HTTPError, OSError, ValueError) as error:
        raise ListFailedError(f"{type(error).__name__}: {error}") from error
