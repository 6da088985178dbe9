"""Take the pictures in docs/images: the demo's end in a terminal, and its run in Airflow's pages.

    python scripts/docs_assets.py                              run the demo first (minutes)
    python scripts/docs_assets.py --home HOME --transcript F   of a demo that was kept up, with what it printed

Needs Chromium (Debian: apt-get install chromium). Airflow is driven over the DevTools protocol, with a
session cookie like a reader's.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from rich.console import Console
from rich.text import Text
from websockets.sync.client import ClientConnection, connect

from frenzy.cli.airflow_env import SERVICE_USER
from frenzy.cli.stack import Stack
from frenzy.settings import CHECKOUT, load_settings

IMAGES: Final = CHECKOUT / "docs/images"
FRENZY: Final = Path(sys.executable).with_name("frenzy")
_COLUMNS: Final = 132
_END_MARK: Final = "What was promised"
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
_PAGE_TIMEOUT_S: Final = 60.0


class Browser:
    """One headless Chromium page, driven over the DevTools protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one command. Raises RuntimeError when the browser refuses it."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=_PAGE_TIMEOUT_S))
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    def open(self, url: str, *, until: str, settle_s: float = 2.0) -> None:
        """Load ``url`` and wait until the expression ``until`` is true."""
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + _PAGE_TIMEOUT_S
        while not self.evaluate(until):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url}: not true after {_PAGE_TIMEOUT_S:.0f} s: {until}")
            time.sleep(0.3)
        time.sleep(settle_s)

    def picture(self, path: Path, width: int, height: int) -> None:
        """Save the page as it looks in a window of that size."""
        self.resize(width, height)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)


@contextmanager
def browser() -> Iterator[Browser]:
    """A fresh browser that is ended at the end."""
    program = next((found for each in _BROWSERS if (found := shutil.which(each))), None)
    if program is None:
        raise SystemExit(f"docs-assets: none of {', '.join(_BROWSERS)} is installed (apt-get install chromium)")
    with tempfile.TemporaryDirectory(prefix="frenzy-chromium-", ignore_cleanup_errors=True) as profile:
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0")
        command = [program, *options, "--no-proxy-server", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with connect(_page_socket(Path(profile)), max_size=None, proxy=None) as socket:
                page = Browser(socket)
                page.call("Page.enable")
                yield page
        finally:
            process.terminate()
            process.wait(10)


def _page_socket(profile: Path) -> str:
    """The WebSocket address of the browser's first page."""
    import httpx

    deadline = time.monotonic() + _PAGE_TIMEOUT_S
    while time.monotonic() < deadline:
        file = profile / "DevToolsActivePort"
        if file.is_file() and file.read_text(encoding="utf-8").strip():
            port = file.read_text(encoding="utf-8").split()[0]
            pages = httpx.get(f"http://127.0.0.1:{port}/json", timeout=10, trust_env=False).json()
            found = [each["webSocketDebuggerUrl"] for each in pages if each["type"] == "page"]
            if found:
                return str(found[0])
        time.sleep(0.2)
    raise TimeoutError("Chromium did not open a page")


# the terminal


def transcript_end(text: str) -> list[str]:
    """The lines from the list of promises on, without trailing space; raises ValueError when it is not there."""
    lines = [line.rstrip() for line in text.splitlines()]
    starts = [index for index, line in enumerate(lines) if line.startswith(_END_MARK)]
    if not starts:
        raise ValueError(f"the transcript has no line that begins with {_END_MARK!r}")
    return lines[starts[-1] :]


def terminal_page(lines: list[str], folder: Path) -> Path:
    """The lines as a terminal in an SVG file."""
    console = Console(record=True, width=_COLUMNS, file=open(os.devnull, "w"), highlight=False)  # noqa: PTH123, SIM115
    for line in ("$ make demo", "...", *lines):
        console.print(Text.from_ansi(line), overflow="ignore", crop=True)
    path = folder / "demo-end.svg"
    path.write_text(console.export_svg(title="make demo"), encoding="utf-8")
    return path


def take_terminal(page: Browser, lines: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="frenzy-docs-") as folder:
        path = terminal_page(lines, Path(folder))
        page.resize(1280, 800)
        page.open(path.as_uri(), until="document.documentElement.viewBox !== undefined", settle_s=1.0)
        box = page.evaluate("(b => [b.width, b.height])(document.documentElement.viewBox.baseVal)")
        page.picture(IMAGES / "demo-end.png", 1280, round(1280 * box[1] / box[0]))


# Airflow


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRun:
    """The newest DAG run of the job's own DAG."""

    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"/dags/{quote(self.dag_id, safe='')}/runs/{quote(self.run_id, safe='')}"


def newest_run(stack: Stack) -> DagRun:
    import httpx

    answer = httpx.get(
        f"{stack.base_url}/api/v2/dags/~/dagRuns?order_by=-run_after&limit=50",
        headers=stack.headers(),
        timeout=30,
        trust_env=False,
    )
    runs = [each for each in answer.raise_for_status().json()["dag_runs"] if each["dag_id"].startswith("job_")]
    if not runs:
        raise SystemExit("docs-assets: this Airflow has no run of a job")
    return DagRun(dag_id=runs[0]["dag_id"], run_id=runs[0]["dag_run_id"])


def take_airflow(page: Browser, stack: Stack) -> None:
    """The run's graph with its task group open, and the page of its tab Memory."""
    run = newest_run(stack)
    page.call("Network.setCookie", name="_token", value=stack.token(SERVICE_USER), url=stack.base_url, path="/")
    page.resize(1400, 760)
    page.open(f"{stack.base_url}/", until="document.querySelector('nav, #root') !== null", settle_s=1.0)
    for name, value in {"default_dag_view": "graph", f"{run.dag_id}/open-groups": ["train"]}.items():
        page.evaluate(f"localStorage.setItem({json.dumps(name)}, {json.dumps(json.dumps(value))})")
    graph = f"{stack.base_url}{run.path}"
    page.open(graph, until="document.querySelectorAll('.react-flow__node').length > 4", settle_s=4.0)
    page.picture(IMAGES / "dag-run.png", 1400, 760)
    ids = urlencode({"dag_id": run.dag_id, "run_id": run.run_id})
    page.resize(1500, 900)
    page.open(f"{stack.base_url}/frenzy/pages/memory?{ids}", until="document.querySelector('svg') !== null")
    page.picture(IMAGES / "memory.png", 1500, min(1200, page.evaluate("document.documentElement.scrollHeight")))


# the demo


def run_demo(home: Path) -> tuple[Path, str]:
    """Run the demo and keep it up; its home, and what it printed. Raises SystemExit when it fails."""
    environ = {**os.environ, "FRENZY_HOME": str(home), "COLUMNS": str(_COLUMNS), "KEEP": "1"}
    done = subprocess.run([FRENZY, "demo"], env=environ, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        raise SystemExit(f"docs-assets: the demo ended with {done.returncode}; no picture was taken")
    return home / "demo", done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="home of an Airflow that is up")
    parser.add_argument("--transcript", type=Path, help="what the demo printed")
    options = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    if options.home is None:
        with tempfile.TemporaryDirectory(prefix="frenzy-docs-home-", ignore_cleanup_errors=True) as folder:
            home, text = run_demo(Path(folder))
            try:
                take_all(home, text)
            finally:
                stack_of(home).stop()
        return 0
    take_all(options.home, options.transcript.read_text(encoding="utf-8") if options.transcript else None)
    return 0


def stack_of(home: Path) -> Stack:
    return Stack(load_settings({**os.environ, "FRENZY_HOME": str(home.absolute())}))


def take_all(home: Path, transcript: str | None) -> None:
    with browser() as page:
        if transcript is not None:
            take_terminal(page, transcript_end(transcript))
        take_airflow(page, stack_of(home))
    for path in sorted(IMAGES.glob("*.png")):
        sys.stdout.write(f"{path.relative_to(CHECKOUT)}  {path.stat().st_size // 1024} KiB\n")


if __name__ == "__main__":
    sys.exit(main())
