"""From an Airflow Connection to a client of the API."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from weakref import WeakKeyDictionary

from frenzy.adapters.api_client import ApiAddress, ApiClient, AsyncApiClient
from frenzy.settings import CONN_ID

DEFAULT_CONN_ID: Final = CONN_ID

# A client belongs to the event loop it was made in. Asking for a Connection goes through the
# triggerer's other process, which may be busy for long: it is asked once.
_clients: dict[ApiAddress, ApiClient] = {}
_async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AsyncApiClient]] = WeakKeyDictionary()


def api_client(conn_id: str = DEFAULT_CONN_ID) -> ApiClient:
    """A blocking client for the server that the Airflow Connection ``conn_id`` names."""
    from airflow.sdk import Connection

    address = _address(Connection.get(conn_id))
    if address not in _clients:
        _clients[address] = ApiClient(address)
    return _clients[address]


async def async_api_client(conn_id: str = DEFAULT_CONN_ID) -> AsyncApiClient:
    """The event loop's client for that server; all triggers of one process share it.

    A Connection that is changed takes effect when the triggerer is restarted.
    """
    from airflow.sdk import Connection

    clients = _async_clients.setdefault(asyncio.get_running_loop(), {})
    if conn_id not in clients:
        address = _address(await Connection.async_get(conn_id))
        clients[conn_id] = clients.get(conn_id) or AsyncApiClient(address)
    return clients[conn_id]


def close_clients() -> None:
    """Close every blocking client of this process."""
    while _clients:
        _clients.popitem()[1].close()


async def close_async_clients() -> None:
    """Close every client of the running event loop."""
    for client in _async_clients.pop(asyncio.get_running_loop(), {}).values():
        await client.aclose()


def _address(connection: Any) -> ApiAddress:
    scheme = connection.schema or "http"
    port = f":{connection.port}" if connection.port else ""
    return ApiAddress(
        base_url=f"{scheme}://{connection.host}{port}",
        login=connection.login or "",
        password=connection.password or "",
    )
