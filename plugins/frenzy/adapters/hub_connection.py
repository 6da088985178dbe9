"""Whether a hub can be reached, asked before its client tries for half a minute to find out."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies

_HUB: Final = "https://huggingface.co"
_PORTS: Final = {"http": 80, "https": 443}
# A lost packet is sent again after 1 s; a name server may be away for a moment.
_CONNECT_S: Final = 3.0
_PATIENCE_S: Final = 4.0
_PAUSE_S: Final = 1.0


def why_away(environment: Mapping[str, str]) -> str | None:
    """Why the hub that ``environment`` names cannot be reached; None where it can, or only its client can tell.

    The client is to tell where a proxy leads to the hub, and where it is told to stay offline.
    """
    offline = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE")
    hub = urlsplit(environment.get("HF_ENDPOINT") or _HUB)
    if offline or {hub.scheme, "all"} & getproxies().keys():
        return None
    return _why_not(hub.hostname or "", hub.port or _PORTS.get(hub.scheme, 0))


def _why_not(host: str, port: int) -> str | None:
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            socket.create_connection((host, port), timeout=_CONNECT_S).close()
        except OSError as error:
            if time.monotonic() >= until_s:
                return f"{host}: {error.strerror or error}"
        else:
            return None
        time.sleep(_PAUSE_S)
