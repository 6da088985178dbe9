"""A headless Chromium, driven over its DevTools protocol: log in, look, take pictures."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect

MISSING: Final = "no Chromium; on Debian: apt-get install chromium"
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_START_TIMEOUT_S: Final = 60.0
_LEFT: Final = "Inspected target navigated or closed"
_POLL_S: Final = 0.2


class Browser:
    """One page of one browser. Every call waits for its answer."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one DevTools command; console errors that come meanwhile are kept."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        # A promise that nothing in the page holds may be collected before it is settled.
        held = f"globalThis.awaited = eval({json.dumps(script)})"
        answer = self.call("Runtime.evaluate", expression=held, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"].get("exception", {}).get("description")))
        return answer["result"].get("value")

    def wait_for(self, script: str, *, timeout_s: float = 60.0) -> Any:
        """Until ``script`` is true; its value. Raises TimeoutError with what the page shows."""
        deadline = time.monotonic() + timeout_s
        while True:
            value = self._value_unless_left(script)
            if value:
                return value
            if time.monotonic() > deadline:
                raise TimeoutError(f"{script} did not become true; the page says: {self.text()[:2000]}")
            time.sleep(_POLL_S)

    def _value_unless_left(self, script: str) -> Any:
        """Of ``script``; None where the page was left for another one meanwhile."""
        try:
            return self.evaluate(script)
        except RuntimeError as error:
            if _LEFT in str(error):
                return None
            raise

    def text(self) -> str:
        """What a reader sees, of the page and of its frames of the same origin."""
        return str(
            self.evaluate(
                "[document, ...Array.from(document.querySelectorAll('iframe'), (f) => f.contentDocument)]"
                ".map((d) => d?.body?.innerText ?? '').join('\\n')"
            )
        )

    def cookie(self, url: str, name: str, value: str) -> None:
        self.call("Network.setCookie", url=url, name=name, value=value)

    def window(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, on: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
        if message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        if message.get("method") == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {params['message']}")
            self._number += 1
            self._socket.send(
                json.dumps({"id": self._number, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}})
            )


def program() -> str | None:
    """Of the Chromium that is installed here; None without one."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that is ended at the end. Raises FileNotFoundError where no Chromium is installed."""
    found = program()
    if found is None:
        raise FileNotFoundError(MISSING)
    with tempfile.TemporaryDirectory(prefix="frenzy-browser-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                found,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--no-first-run",
                "--no-proxy-server",
                "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # No pings: while a test waits for something else, nobody reads the answers.
            address = _page_address(Path(profile), process)
            with connect(address, max_size=None, proxy=None, ping_interval=None) as socket:
                yield Browser(socket)
        finally:
            process.terminate()
            process.wait(20)


def _page_address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """The DevTools address of the browser's only page."""
    import httpx

    deadline = time.monotonic() + _START_TIMEOUT_S
    port_file = profile / "DevToolsActivePort"
    while time.monotonic() < deadline and process.poll() is None:
        if port_file.is_file() and (lines := port_file.read_text().splitlines()):
            targets = httpx.get(f"http://127.0.0.1:{lines[0]}/json", trust_env=False).json()
            pages = [each for each in targets if each["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        time.sleep(_POLL_S)
    raise TimeoutError("Chromium did not start")
