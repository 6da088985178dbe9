"""What the page GPUs costs a browser with 1,000 nodes and 2,000 jobs: first paint, refresh, size of the document.

The page's own files in a headless Chromium, over a server that answers with made-up views; one job in ten changes
between two refreshes. First paint: from navigation to the tables being there, the answers' making left out. A refresh's
main thread: the CPU time of its tasks (script, style, layout), for each refresh.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.bench.report import figure, publish
from tests.e2e.browser import Browser, browser

from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.usage import UsageBy, UsageHistory, UsageRow, UsageSeries, UsageView
from frenzy.core.runs.views import GpusView, GpuTypeRow, HolderRow, NodeRow, QueueRow, QueueView, RunningRow
from frenzy.core.values.codec import dumps
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.units import GIB
from frenzy.web.page_files import get_page, get_static

NUM_NODES: Final = 1000
NUM_WAITING: Final = 1600
NUM_RUNNING: Final = 400
GPUS_PER_NODE: Final = 8
TYPES: Final = ("a100-80gb", "h100-80gb", "l4-24gb", "rtx4090")
READY: Final = "document.querySelectorAll('table.virtual tbody tr').length > 10"
_REFRESHES: Final = 5


def queue_view(turn: int) -> QueueView:
    draw = random.Random(1)
    now_s = time.time()
    waiting = tuple(
        QueueRow(
            run_key=f"w{index}",
            job_name=f"finetune-{index}",
            dag_id=f"job_finetune-{index}",
            run_id="manual__2026-11-23T00:00:00+00:00",
            position=index + 1,
            state=JobState.QUEUED,
            priority=draw.randrange(3),
            team=f"team-{index % 12}",
            owner=f"user-{index % 40}",
            waiting_since_s=now_s - draw.random() * 9000,
            reason=Reason(
                code=ReasonCode.WAITING_FOR_GPUS,
                detail=f"{8 + (turn + index) % 10 // 9} more h100-80gb would start it.",
                remedy="It starts when finetune-7 ends.",
            ),
            expected_start_s=now_s + index,
            wanted_plan_id="8xh100-80gb-z3-mb1-ckpt",
        )
        for index in range(NUM_WAITING)
    )
    return QueueView(now_s=now_s, waiting=waiting, running=tuple(_running(index, turn) for index in range(NUM_RUNNING)))


def _running(index: int, turn: int) -> RunningRow:
    return RunningRow(
        run_key=f"r{index}",
        job_name=f"pretrain-{index}",
        dag_id=f"job_pretrain-{index}",
        run_id="manual__2026-11-23T00:00:00+00:00",
        state=JobState.RUNNING,
        attempt=1,
        plan_id="16xh100-80gb-z3-mb1-ckpt",
        num_gpus=16,
        gpu_type=TYPES[index % len(TYPES)],
        nodes=(f"node-{2 * index:04d}", f"node-{2 * index + 1:04d}"),
        last_step=100 * turn + index,
        total_steps=10_000,
        last_loss=2.5,
        predicted_peak_bytes=60 * GIB,
        measured_peak_bytes=61 * GIB,
        capacity_bytes=80 * GIB,
        num_reschedules=0,
        expected_end_s=time.time() + 3600,
        team=f"team-{index % 12}",
        owner=f"user-{index % 40}",
    )


def gpus_view() -> GpusView:
    nodes = tuple(
        NodeRow(
            node=f"node-{index:04d}",
            gpu_type=TYPES[index // 2 % len(TYPES)],
            state="ready",
            num_gpus=GPUS_PER_NODE,
            num_free=0 if index < 2 * NUM_RUNNING else GPUS_PER_NODE,
            holders=(HolderRow(run_key=f"r{index // 2}", num_gpus=8),) if index < 2 * NUM_RUNNING else (),
        )
        for index in range(NUM_NODES)
    )
    types = tuple(
        GpuTypeRow(
            gpu_type=name,
            kind="cuda",
            memory_bytes=80 * GIB,
            num_gpus=NUM_NODES * GPUS_PER_NODE // len(TYPES),
            num_free=400,
            num_suspect=0,
            pool=f"gpu_{name}",
            flops_per_s=3e14,
        )
        for name in TYPES
    )
    return GpusView(types=types, nodes=nodes)


def history_view() -> UsageHistory:
    """A day of all types, an hour in each part."""
    since_s = time.time() - 24 * 3600
    rows = tuple(UsageRow(name=name, gpu_hours=24_000.0, cost=1e5, num_runs=400) for name in TYPES)
    total = UsageRow(name="all", gpu_hours=96_000.0, cost=4e5, num_runs=1600)
    whole = UsageView(since_s=since_s, until_s=since_s + 24 * 3600, by=UsageBy.GPU_TYPE, rows=rows, total=total)
    series = tuple(UsageSeries(name=name, gpu_hours=(1000.0,) * 24, cost=(4000.0,) * 24) for name in TYPES)
    return UsageHistory(edges_s=tuple(since_s + 3600 * each for each in range(25)), series=series, whole=whole)


class Answers(BaseHTTPRequestHandler):
    """The pages' files and the views; each refresh finds a part of the rows changed."""

    turn = 0

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        folder, name = path.split("/")[-2:]
        if folder == "pages":
            reply = get_page(name)
            self._send(bytes(reply.body), "text/html; charset=utf-8")
        elif folder == "static":
            reply = get_static(name)
            self._send(bytes(reply.body), reply.headers["content-type"])
        else:
            self._send(self._view(name).encode(), "application/json")

    def _view(self, name: str) -> str:
        if name == "queue":
            Answers.turn += 1
            return dumps(queue_view(Answers.turn))
        if name == "history":
            return dumps(history_view())
        return dumps(gpus_view()) if name == "gpus" else "[]" if name == "runs" else "{}"

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the benchmark prints figures only."""


@contextmanager
def serving() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/frenzy"
    finally:
        server.shutdown()
        server.server_close()


def busy_s(page: Browser) -> float:
    """Seconds of CPU that the main thread took so far."""
    metrics = {each["name"]: each["value"] for each in page.call("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


def refreshes(page: Browser) -> list[float]:
    """Milliseconds of the main thread for each of some refreshes."""
    found = []
    for _ in range(_REFRESHES):
        before, turn = busy_s(page), Answers.turn
        while Answers.turn == turn:
            time.sleep(0.1)
        time.sleep(2.0)
        found.append(1000 * (busy_s(page) - before))
    return found


def main() -> list[dict[str, Any]]:
    with serving() as root, browser() as page:
        page.window(1400, 1000)
        page.call("Performance.enable", timeDomain="threadTicks")
        first = []
        for _ in range(5):
            page.open(f"{root}/pages/gpus")
            page.wait_for(READY)
            entry = "performance.getEntriesByType('resource').find((e) => e.name.endsWith('/queue'))"
            done = page.evaluate("performance.now()")
            answered = page.evaluate(f"(({entry}).responseStart - ({entry}).requestStart)")
            first.append(max(0.0, float(done) - float(answered)))
        costs = refreshes(page)
        size = float(page.evaluate("document.getElementsByTagName('*').length"))
        heavy = [each for each in page.complaints if "favicon" not in each]
        assert not heavy, heavy
    return publish(
        "pages",
        [
            figure("GPUs page, 1,000 nodes and 2,000 jobs: first paint", statistics.median(first), "ms", 1000),
            figure("GPUs page, CPU of the main thread in a refresh", statistics.median(costs), "ms", 100),
            figure("GPUs page, DOM nodes", size, "nodes", 3000),
        ],
    )
