from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from frenzy.cli.embedded.tcp_ports import NoFreePortError, reserved_port

HOST = "127.0.0.1"


@pytest.fixture
def listener() -> Iterator[int]:
    """A port on which some other program listens."""
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen(1)
        yield server.getsockname()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def test_a_wanted_port_is_given_when_free() -> None:
    wanted = free_port()

    with reserved_port(HOST, wanted) as port:
        assert port == wanted


def test_a_wanted_port_in_use_is_refused_by_name(listener: int) -> None:
    with pytest.raises(NoFreePortError, match=str(listener)), reserved_port(HOST, listener):
        pass


def test_the_port_of_the_last_start_is_preferred() -> None:
    preferred = free_port()

    with reserved_port(HOST, None, preferred=preferred) as port:
        assert port == preferred


def test_another_port_is_taken_when_the_preferred_one_is_in_use(listener: int) -> None:
    with reserved_port(HOST, None, preferred=listener) as port:
        assert port != listener


def test_two_starts_at_the_same_time_get_two_ports() -> None:
    with reserved_port(HOST, None) as first, reserved_port(HOST, None) as second:
        assert first != second


def test_a_reserved_port_can_be_listened_on() -> None:
    with reserved_port(HOST, None) as port, socket.socket() as server:
        # As Airflow's server does: connections of an earlier server on the port may linger.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, port))
        server.listen(1)


def test_a_port_is_free_again_after_the_block() -> None:
    wanted = free_port()
    with reserved_port(HOST, wanted):
        pass

    with reserved_port(HOST, wanted) as port:
        assert port == wanted
