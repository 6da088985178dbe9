"""Fake nodes for tests: ``FakeNodes`` plays them in a thread of its own; see ``plays`` for what they can do."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar
from uuid import uuid4

from tests.kubernetes.api_json import ApiJson
from tests.kubernetes.fake_node import FakeNode
from tests.kubernetes.player import Player
from tests.kubernetes.plays import Play, Script

T = TypeVar("T")

_TIMEOUT_S: Final = 300.0


class FakeNodes:
    """Nodes of one test, on the cluster of ``kubeconfig``. Pods run until they are stopped, or as ``play`` says.

    ``address`` is where this machine serves their logs, with the certificate of ``serving``.
    """

    def __init__(self, kubeconfig: str, *, address: str, serving: ssl.SSLContext, sends_heartbeats: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-nodes", daemon=True)
        self._thread.start()
        self._api = self._do(ApiJson.open(kubeconfig))
        self._player = self._do(self._started(address, serving, sends_heartbeats))

    def add(self, nodes: Iterable[FakeNode]) -> None:
        """Register ``nodes``; returns when the scheduler may use them."""
        self._do(self._player.add(nodes))

    def play(self, script: Play | Script) -> None:
        """What becomes of each pod that starts from now on: one play for all, or a function of the pod."""
        self._player.script = script if callable(script) else lambda _pod: script

    def lose(self, name: str) -> None:
        """The node falls silent: Ready becomes Unknown, nothing on it answers any more.

        The node controller then taints it, unless every node of the cluster is lost: it takes that for its
        own trouble, and evicts nothing.
        """
        self._do(self._player.lose(name))

    def find_again(self, name: str) -> None:
        """A lost node comes back."""
        self._do(self._player.find_again(name))

    def remove(self, name: str) -> None:
        """The Node object is deleted with its machine; the pod collector takes its pods some 40 s later."""
        self._do(self._player.remove(name))

    def stop(self) -> None:
        """Delete the nodes and what is left on them. Raises what went wrong in a script or a body."""
        try:
            self._do(self._player.stop())
            self._do(self._api.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        if self._player.errors:
            raise ExceptionGroup("fake nodes", [each for each in self._player.errors if isinstance(each, Exception)])

    async def _started(self, address: str, serving: ssl.SSLContext, sends_heartbeats: bool) -> Player:
        player = Player(self._api, owner=uuid4().hex[:12], address=address, sends_heartbeats=sends_heartbeats)
        await player.start(serving)
        return player

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_S)
