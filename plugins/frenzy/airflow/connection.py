"""From an Airflow Connection to a client of the API."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any, Final
from weakref import WeakKeyDictionary

from frenzy.adapters.api_client import ApiAddress, ApiClient, AsyncApiClient

DEFAULT_CONN_ID: Final = "frenzy_default"

# A client belongs to the event loop it was made in. Asking for a Connection goes through the
# triggerer's other process, which may be busy for long: it is asked once.
_async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AsyncApiClient]] = WeakKeyDictionary()


def api_client(conn_id: str = DEFAULT_CONN_ID) -> ApiClient:
    """A blocking client for the server that the Airflow Connection ``conn_id`` names."""
    from airflow.sdk import Connection

    return _client(_address(Connection.get(conn_id)))


async def async_api_client(conn_id: str = DEFAULT_CONN_ID) -> AsyncApiClient:
    """The event loop's client for that server; all triggers of one process share it.

    A Connection that is changed takes effect when the triggerer is restarted.
    """
    from airflow.sdk import Connection

    clients = _async_clients.setdefault(asyncio.get_running_loop(), {})
    if conn_id not in clients:
        address = _address(await Connection.async_get(conn_id))
        clients.setdefault(conn_id, AsyncApiClient(address))
    return clients[conn_id]


@cache
def _client(address: ApiAddress) -> ApiClient:
    return ApiClient(address)


def _address(connection: Any) -> ApiAddress:
    scheme = connection.schema or "http"
    port = f":{connection.port}" if connection.port else ""
    return ApiAddress(
        base_url=f"{scheme}://{connection.host}{port}",
        login=connection.login or "",
        password=connection.password or "",
    )
