"""The API server in plain JSON: the client library's typed objects cost more than the calls themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration

MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json"
_WATCH_S: Final = 300
# What aborted connections still have to run in the loop.
_LAST_CALLBACKS_S: Final = 0.1


class ApiError(Exception):
    """The server refused: ``status`` is HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class WatchExpired(Exception):
    """The server no longer knows the version a watch began at: list again."""


class ApiJson:
    """A connection with the rights of a kubeconfig; to be used in the event loop it was opened in."""

    @classmethod
    async def open(cls, kubeconfig: str) -> ApiJson:
        configuration = Configuration()
        await config.load_kube_config(kubeconfig, client_configuration=configuration)
        return cls(ApiClient(configuration))

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def close(self) -> None:
        """Close every connection now. TLS would say goodbye first, and the loop may end before that is done."""
        connector = self._client.rest_client.pool_manager.connector
        if connector is not None:
            await connector.close(abort_ssl=True)
        await self._client.close()
        await asyncio.sleep(_LAST_CALLBACKS_S)

    async def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content: str = _JSON
    ) -> dict[str, Any]:
        """The answer's JSON. Raises ApiError."""
        async with await self._request(method, path, body, content) as answer:
            text = await answer.read()
        if answer.status >= 400:
            raise ApiError(answer.status, text.decode(errors="replace")[:500])
        return dict(json.loads(text))

    async def watch(self, path: str, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """(type, object) of each change after ``version``, until the server ends the watch. Raises WatchExpired."""
        joint = "&" if "?" in path else "?"
        query = f"{path}{joint}watch=1&timeoutSeconds={_WATCH_S}&resourceVersion={version}"
        async with await self._request("GET", query, None, _JSON) as answer:
            # Lines are as long as objects, and aiohttp's own reader of lines refuses long ones.
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise WatchExpired(event["object"].get("message"))
                    yield event["type"], event["object"]

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, content: str
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": content, "Accept": _JSON}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        url = self._client.configuration.host + path
        response: aiohttp.ClientResponse = await self._client.rest_client.request(
            method, url, headers=headers, body=body, _preload_content=False
        )
        return response
