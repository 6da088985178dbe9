"""Metrics are what the ledger says at the scrape; the dashboard and the alerts use no other names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.web.conftest import ApiUser

from frenzy.core.runs.protocol import Directive, EndReport, PlaceView, ProgressReport, RunView
from frenzy.core.runs.usage import UsageBy, UsageHistory
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.settings import CHECKOUT

MONITORING = CHECKOUT / "deploy/monitoring"
PROMTOOL = shutil.which("promtool")
OOM = Reason(code=ReasonCode.CUDA_OUT_OF_MEMORY, detail="At step 3.")


def scraped(http: TestClient, user: str = "op") -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    reply = http.get("/metrics", headers={"X-User": user})
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(reply.text):
        found.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, {})
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def names_in(expressions: list[str]) -> set[str]:
    return {name for each in expressions for name in re.findall(r"frenzy_\w+", each)}


def test_waiting_running_and_ended_jobs_are_counted(op: ApiUser, http: TestClient) -> None:
    keys = [op.registered(run_id=f"r{number}").run.run_key for number in range(5)]
    for key in keys:
        op.ask("POST", f"/runs/{key}/enqueue", PlaceView)
    running = [each for each in keys if op.send("GET", f"/runs/{each}/place").json()["status"] == "placed"]
    attempt = f"/runs/{running[0]}/attempts/1"
    op.ask("POST", f"{attempt}/launching", Directive)
    peaks = PeakMemory(allocated_bytes=123_000_000, reserved_bytes=130_000_000)
    op.ask("POST", f"{attempt}/progress", Directive, ProgressReport(last_step=5, peaks=peaks))
    found = scraped(http)
    assert sum(found["frenzy_unplaced_jobs"].values()) == len(keys) - len(running) > 0
    assert found["frenzy_gpus"][("gpu_type", "small"), ("state", "free")] + found["frenzy_gpus"][
        ("gpu_type", "small"), ("state", "in_use")
    ] == pytest.approx(2)
    assert [value for labels, value in found["frenzy_measured_peak_bytes"].items() if ("run_key", running[0]) in labels]
    assert len(found["frenzy_predicted_peak_bytes"]) == len(running)
    assert found["frenzy_pass_seconds"][()] > 0
    assert found["frenzy_oom_total"][(("kind", "gpu"),)] == 0
    op.ask("POST", f"{attempt}/end", RunView, EndReport(reason=OOM))
    assert scraped(http)["frenzy_oom_total"][(("kind", "gpu"),)] == 1


def test_the_names_that_dashboards_elsewhere_rely_on_stay(http: TestClient) -> None:
    assert set(scraped(http)) == {
        "frenzy_unplaced_jobs",
        "frenzy_jobs",
        "frenzy_queue_wait_seconds",
        "frenzy_gpus",
        "frenzy_predicted_peak_bytes",
        "frenzy_measured_peak_bytes",
        "frenzy_oom_total",
        "frenzy_attempts_total",
        "frenzy_pass_seconds",
    }


def test_of_jobs_that_one_may_not_see_nothing_is_told(op: ApiUser, http: TestClient) -> None:
    key = op.registered().run.run_key
    op.ask("POST", f"/runs/{key}/enqueue", PlaceView)
    assert len(scraped(http)["frenzy_predicted_peak_bytes"]) == 1
    assert scraped(http, "zoe")["frenzy_predicted_peak_bytes"] == {}


def test_the_dashboard_shows_metrics_that_there_are_and_every_one(http: TestClient) -> None:
    dashboard: dict[str, Any] = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert names_in(expressions) == set(scraped(http))


def test_the_alerts_are_about_metrics_that_there_are_and_say_what_to_do(http: TestClient) -> None:
    rules = yaml.safe_load((MONITORING / "prometheus-rules.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert names_in([each["expr"] for each in rules]) <= set(scraped(http))
    assert all(each["annotations"].keys() == {"summary", "action"} for each in rules)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not here: Debian's package prometheus has it")
@pytest.mark.parametrize("what", ["rules", "metrics"])
def test_promtool_has_nothing_to_say(what: str, op: ApiUser, http: TestClient) -> None:
    op.ask("POST", f"/runs/{op.registered().run.run_key}/enqueue", PlaceView)
    rules = [str(MONITORING / "prometheus-rules.yaml")] if what == "rules" else []
    text = http.get("/metrics", headers={"X-User": "op"}).text
    said = subprocess.run([str(PROMTOOL), "check", what, *rules], input=text, capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")


def test_a_history_is_of_what_one_may_see_within_its_bounds(op: ApiUser, http: TestClient) -> None:
    key = op.registered().run.run_key
    op.ask("POST", f"/runs/{key}/enqueue", PlaceView)
    found = op.ask("GET", "/usage/history?since_s=0&by=owner&num_parts=3", UsageHistory)
    assert (len(found.edges_s), found.edges_s[0], found.whole.by) == (4, 0.0, UsageBy.OWNER)
    assert ApiUser(http=http, name="zoe").ask("GET", "/usage/history?since_s=0", UsageHistory).series == ()
    assert op.ask("GET", "/usage/history?since_s=1e11", UsageHistory).whole.total.gpu_hours == 0.0
    for bad in ("since_s=0&num_parts=0", "since_s=0&num_parts=201", "since_s=-1", "num_parts=3"):
        assert op.send("GET", f"/usage/history?{bad}").status_code in (400, 422), bad


def test_usage_is_counted_from_the_leases_of_what_one_may_see(op: ApiUser, http: TestClient) -> None:
    key = op.registered().run.run_key
    op.ask("POST", f"/runs/{key}/enqueue", PlaceView)
    found = op.send("GET", "/usage?since_s=0&by=job").json()
    assert [row["name"] for row in found["rows"]] in ([], ["job"])
    assert ApiUser(http=http, name="zoe").send("GET", "/usage?since_s=0").json()["rows"] == []
    for bad in ("since_s=0&by=colour", "since_s=inf", "since_s=nan", "since_s=-1", "since_s=0&until_s=inf"):
        assert op.send("GET", f"/usage?{bad}").status_code in (400, 422), bad
