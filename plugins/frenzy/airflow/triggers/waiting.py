"""The queue as all waiting triggers of one process see it: one request for all of them at a time."""

from __future__ import annotations

import asyncio
import time
from weakref import WeakKeyDictionary

from frenzy.adapters.api_client import AsyncApiClient
from frenzy.api import endpoints as api
from frenzy.core.runs.views import QueueRow


class WaitingRuns:
    """The waiting runs by key, at most ``max_age_s`` old."""

    _shared: WeakKeyDictionary[AsyncApiClient, WaitingRuns] = WeakKeyDictionary()

    def __init__(self, client: AsyncApiClient, max_age_s: float) -> None:
        self._client = client
        self._max_age_s = max_age_s
        self._asking = asyncio.Lock()
        self._seen_s = float("-inf")
        self._rows: dict[str, QueueRow] = {}

    @classmethod
    def of(cls, client: AsyncApiClient, max_age_s: float) -> WaitingRuns:
        """The one that all users of ``client`` share."""
        return cls._shared.setdefault(client, cls(client, max_age_s))

    async def row(self, run_key: str) -> QueueRow | None:
        """The run's row; None when it does not wait (any more)."""
        async with self._asking:
            if time.monotonic() - self._seen_s >= self._max_age_s:
                view = await self._client.send(api.queue(), patience_s=10.0)
                self._rows = {each.run_key: each for each in view.waiting}
                self._seen_s = time.monotonic()
        return self._rows.get(run_key)
