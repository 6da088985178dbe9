"""A free TCP port that two stacks starting at the same time cannot both take."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

FIRST_PORT: Final = 8080
_NUM_TRIED: Final = 200


class NoFreePortError(Exception):
    """None of the ports asked for is free; the message names them."""


@contextmanager
def reserved_port(host: str, wanted: int | None, *, preferred: int | None = None) -> Iterator[int]:
    """A free port, kept from other stacks until the block ends.

    ``wanted`` allows that one only; else ``preferred`` is tried first, then those from 8080 on. The
    reservation is an abstract Unix socket: Linux allows a name once in each network namespace, which
    is exactly a port's scope, and takes it back when the process ends. Raises NoFreePortError.
    """
    candidates: Iterable[int] = (wanted,) if wanted else _in_order(preferred)
    for port in candidates:
        with socket.socket(socket.AF_UNIX) as claim:
            if _claimed(claim, port) and _is_free(host, port):
                yield port
                return
    tried = f"port {wanted}" if wanted else f"ports {FIRST_PORT} to {FIRST_PORT + _NUM_TRIED - 1}"
    raise NoFreePortError(f"{tried} on {host}: in use")


def _in_order(preferred: int | None) -> Iterator[int]:
    if preferred is not None:
        yield preferred
    yield from (port for port in range(FIRST_PORT, FIRST_PORT + _NUM_TRIED) if port != preferred)


def _claimed(claim: socket.socket, port: int) -> bool:
    try:
        claim.bind(f"\0frenzy-port-{port}")
    except OSError:
        return False
    return True


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        # As the server does: a connection that lingers from the last stack does not block its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True
