"""Which server the command speaks to, and as whom."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Final, TypeVar

from frenzy.adapters.api_client import ApiAddress, ApiClient
from frenzy.api.declaration import Call
from frenzy.core.values.errors import Reason, ReasonCode, SpecError, TemporaryError, Violation

T = TypeVar("T")

# A person waits at the terminal; a server that restarts is back within this.
PATIENCE_S: Final = 4.0
# One that is there, and has too much to do, is worth asking longer.
_BUSY_PATIENCE_S: Final = 30.0
# A large file is worth more of it.
FETCH_PATIENCE_S: Final = 60.0
_VARIABLES: Final = ("FRENZY_URL", "FRENZY_USER", "FRENZY_PASSWORD")


class Api:
    """One server's API. ``ask`` gives up after ``patience_s``; where the server is busy, after half a minute."""

    def __init__(self, address: ApiAddress, *, patience_s: float = PATIENCE_S) -> None:
        self._client = ApiClient(address)
        self.base_url, self.login = address.base_url, address.login
        self._patience_s = patience_s

    def ask(self, call: Call[T]) -> T:
        """The decoded reply. Raises PermanentError or TemporaryError."""
        return self._client.send(call, patience_s=self._patience_s, busy_s=_BUSY_PATIENCE_S)

    def fetch(self, call: Call[bytes], target: BinaryIO, tell: Callable[[int], None]) -> None:
        """Write what the call answers into ``target``; after an ``ask``. Raises PermanentError or TemporaryError."""
        self._client.fetch(call, target, patience_s=FETCH_PATIENCE_S, tell=tell)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def connect(environ: Mapping[str, str] | None = None) -> Api:
    """The server that FRENZY_URL names, else the one that runs in this home, as its user FRENZY_USER or administrator.

    Raises SpecError when FRENZY_URL comes without user or password, or the home has no such user, TemporaryError when
    no Airflow has been started here.
    """
    known = os.environ if environ is None else environ
    return Api(_named(known) if known.get("FRENZY_URL") else _local(known))


def _named(environ: Mapping[str, str]) -> ApiAddress:
    missing = [name for name in _VARIABLES if not environ.get(name)]
    if missing:
        raise SpecError(
            Violation(path=name, value="unset", allowed="set it, since FRENZY_URL names a server") for name in missing
        )
    url, user, password = (environ[name] for name in _VARIABLES)
    if not url.startswith(("http://", "https://")):
        raise SpecError([Violation(path="FRENZY_URL", value=repr(url), allowed="begin with http:// or https://")])
    return ApiAddress(base_url=url.rstrip("/"), login=user, password=password)


def _local(environ: Mapping[str, str]) -> ApiAddress:
    from frenzy.cli.embedded.airflow_env import ADMIN, secrets_of
    from frenzy.cli.embedded.stack import Stack, StackError
    from frenzy.settings import load_settings

    stack = Stack(load_settings(environ))
    try:
        base_url = stack.base_url
    except StackError as error:
        remedy = "Start it with 'frenzy up', or name a server: FRENZY_URL, FRENZY_USER, FRENZY_PASSWORD."
        reason = Reason(code=ReasonCode.API_UNREACHABLE, detail=error.reason.sentence, remedy=remedy)
        raise TemporaryError(reason, retry_after_s=5.0) from error
    login = environ.get("FRENZY_USER") or ADMIN
    known = secrets_of(stack.settings).passwords
    if login not in known:
        raise SpecError([Violation(path="FRENZY_USER", value=repr(login), allowed=f"one of {', '.join(known)}")])
    return ApiAddress(base_url=base_url, login=login, password=known[login])
