"""Take the pictures in docs/images: the demo's end in a terminal, and its run in Airflow's pages.

    python -m tests.e2e.docs_assets                               run the demo first (minutes)
    python -m tests.e2e.docs_assets --home HOME --transcript F    of a demo that was kept up, with what it printed

Needs Chromium (Debian: apt-get install chromium).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import httpx
from rich.console import Console
from rich.text import Text
from tests.e2e.browser import Browser, browser
from tests.embedded_stack import Stack

from frenzy.settings import CHECKOUT, load_settings

IMAGES: Final = CHECKOUT / "docs/images"
_COLUMNS: Final = 132
_END_MARK: Final = "What was checked"
_LOGINS: Final = ("Airflow:", "  login ", "Stop it with")
# Nothing in a page says that it has been painted.
_SETTLE_S: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRun:
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"/dags/{quote(self.dag_id, safe='')}/runs/{quote(self.run_id, safe='')}"


def transcript_end(text: str) -> list[str]:
    """The lines from the list of checks on, without logins. Raises ValueError when it is not there."""
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith(_LOGINS)]
    starts = [index for index, line in enumerate(lines) if line.startswith(_END_MARK)]
    if not starts:
        raise ValueError(f"the transcript has no line that begins with {_END_MARK!r}")
    return lines[starts[-1] :]


def terminal_svg(lines: list[str]) -> str:
    """The lines as they look in a terminal."""
    shown = [Text.from_ansi(line) for line in ("$ make demo", "...", *lines)]
    console = Console(record=True, width=max(map(len, shown)), file=io.StringIO(), highlight=False)
    for line in shown:
        console.print(line, overflow="ignore", crop=True)
    return console.export_svg(title="make demo")


def take_terminal(page: Browser, lines: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="frenzy-docs-") as folder:
        path = Path(folder) / "demo-end.svg"
        path.write_text(terminal_svg(lines), encoding="utf-8")
        page.open(path.as_uri())
        width, height = page.wait_for("(b => b && [b.width, b.height])(document.documentElement.viewBox?.baseVal)")
        page.window(1280, round(1280 * height / width))
        time.sleep(_SETTLE_S)
        page.picture(IMAGES / "demo-end.png")


def take_airflow(page: Browser, stack: Stack) -> None:
    """The newest run's graph with its task group open, and the page of its tab Training."""
    run = newest_run(stack)
    page.cookie(stack.base_url, "_token", stack.token("admin"))
    page.window(1400, 760)
    page.open(stack.base_url)
    page.wait_for(f"location.origin === {json.dumps(stack.base_url)}")
    for name, value in {"default_dag_view": "graph", f"{run.dag_id}/open-groups": ["train"]}.items():
        page.evaluate(f"localStorage.setItem({json.dumps(name)}, {json.dumps(json.dumps(value))})")
    page.open(f"{stack.base_url}{run.path}")
    page.wait_for("document.querySelectorAll('.react-flow__node').length > 4")
    time.sleep(_SETTLE_S)
    page.picture(IMAGES / "dag-run.png")
    ids = urlencode({"dag_id": run.dag_id, "run_id": run.run_id})
    page.window(1500, 900)
    page.open(f"{stack.base_url}/frenzy/pages/training?{ids}")
    page.wait_for("document.querySelector('.uplot') && document.body.innerText.includes('Attempts')")
    page.window(1500, min(1400, page.evaluate("document.querySelector('main').scrollHeight") + 40))
    time.sleep(_SETTLE_S)
    page.picture(IMAGES / "training.png")


def newest_run(stack: Stack) -> DagRun:
    url = f"{stack.base_url}/api/v2/dags/~/dagRuns?order_by=-run_after&limit=100"
    answer = httpx.get(url, headers=stack.headers(), timeout=30, trust_env=False).raise_for_status()
    runs = [each for each in answer.json()["dag_runs"] if each["dag_id"].startswith("job_")]
    if not runs:
        raise SystemExit("docs-assets: this Airflow has no run of a job")
    return DagRun(dag_id=runs[0]["dag_id"], run_id=runs[0]["dag_run_id"])


def run_demo(home: Path) -> str:
    """Run the demo below ``home`` and keep it up; what it printed. Raises SystemExit when it fails."""
    environ = {**os.environ, "FRENZY_HOME": str(home), "COLUMNS": str(_COLUMNS), "KEEP": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.scenarios.demo", "--keep"],
        cwd=CHECKOUT,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        raise SystemExit(f"docs-assets: the demo ended with {done.returncode}; no picture was taken")
    return done.stdout


def take_all(stack: Stack, transcript: str | None) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with browser() as page:
        if transcript is not None:
            take_terminal(page, transcript_end(transcript))
        take_airflow(page, stack)
    for path in sorted(IMAGES.glob("*.png")):
        sys.stdout.write(f"{path.relative_to(CHECKOUT)}  {path.stat().st_size // 1024} KiB\n")


def stack_of(home: Path) -> Stack:
    return Stack(load_settings({**os.environ, "FRENZY_HOME": str(home.absolute())}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="home of an Airflow that is up")
    parser.add_argument("--transcript", type=Path, help="what the demo printed")
    options = parser.parse_args()
    if options.home is not None:
        text = options.transcript.read_text(encoding="utf-8") if options.transcript else None
        take_all(stack_of(options.home), text)
        return 0
    with tempfile.TemporaryDirectory(prefix="frenzy-docs-home-", ignore_cleanup_errors=True) as folder:
        stack = stack_of(Path(folder) / "demo")
        try:
            take_all(stack, run_demo(Path(folder)))
        finally:
            stack.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
