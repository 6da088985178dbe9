"""``frenzy doctor`` finds what is wrong, says what to do about it, and fails only for that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import HTTPException
from tests.in_memory.sources import FixedQueues
from tests.unit.cli.conftest import CLUSTER, FakeAirflow, Said, served
from tests.unit.installation import in_memory_services
from tests.unit.web.conftest import PEOPLE

from frenzy.cli.commands.doctor import pod_rights, this_machine
from frenzy.cli.commands.doctor.findings import Level
from frenzy.core.values.queue_rules import NO_RULES, QueueRules, Quota, TeamRule
from frenzy.settings import CHECKOUT, LauncherKind, Settings
from frenzy.web.application import create_app
from frenzy.wiring import SystemClock

Command = Callable[..., Said]
GPU = "\ngpu_types:\n  big: {kind: cuda, memory: 80 GiB, flops: 300 TFLOPS, price_per_hour: 2}\nnodes:\n"
GPU += "  - {name: one, gpu_type: big, gpus: 1, cpus: 4, host_memory: 4 GiB}\n"


class SkewedClock:
    """A clock that is off by so many seconds."""

    def __init__(self) -> None:
        self.skew_s = 0.0

    def now_s(self) -> float:
        return SystemClock().now_s() + self.skew_s


class Patient(FakeAirflow):
    """As much of Airflow's API as a look at its health takes."""

    health = "healthy"
    paused = False
    pools: dict[str, int] = {}
    reconciled = "success"
    queues = FixedQueues()

    def routes(self) -> Any:
        app = super().routes()
        app.router.routes = [each for each in app.router.routes if "importErrors" not in getattr(each, "path", "")]
        app.get("/api/v2/importErrors")(lambda: {"import_errors": []})
        app.get("/api/v2/version")(lambda: {"version": "3.0.0"})
        app.get("/api/v2/monitor/health")(
            lambda: {name: {"status": self.health} for name in ("scheduler", "triggerer")}
        )
        app.get("/api/v2/pools")(
            lambda: {"pools": [{"name": n, "slots": s, "include_deferred": True} for n, s in self.pools.items()]}
        )
        app.get("/api/v2/dags/frenzy_reconcile")(self.reconcile)
        app.get("/api/v2/dags/frenzy_reconcile/dagRuns")(lambda: {"dag_runs": [{"state": self.reconciled}]})
        return app

    def reconcile(self) -> dict[str, Any]:
        if self.reconciled == "none":
            raise HTTPException(404, "not found")
        return {"is_paused": self.paused}


@pytest.fixture(scope="module")
def clock() -> SkewedClock:
    return SkewedClock()


@pytest.fixture(scope="module")
def patient(clock: SkewedClock) -> Iterator[tuple[str, Patient]]:
    queues = FixedQueues()
    services = in_memory_services(clock=clock, queues=queues)
    airflow = Patient(services)
    airflow.queues = queues
    with services.ledger.reading() as tx:
        cluster = tx.cluster()
    airflow.pools = {each.pool: cluster.num_gpus_by_type[each.name] for each in cluster.gpu_types}
    app = airflow.routes()
    app.mount("/frenzy", create_app(lambda: services, lambda: PEOPLE["op"]))
    with served(app) as url:
        yield url, airflow


@pytest.fixture
def doctor(
    frenzy: Command, alone: Path, patient: tuple[str, Patient], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], dict[str, Any]]:
    """The findings, by their check; the exit status under ``status``."""
    (alone / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    for name, value in (("URL", patient[0]), ("USER", "op"), ("PASSWORD", "p"), ("CLUSTER", "cluster.yaml")):
        monkeypatch.setenv(f"FRENZY_{name}", value)

    def call() -> dict[str, Any]:
        said = frenzy("doctor", "--json")
        found = {each["check"]: each for each in json.loads(said.out)}
        return {"status": said.status, **found}

    return call


def test_what_is_well_is_said_to_be_and_other_versions_are_no_failure(doctor: Callable[[], dict[str, Any]]) -> None:
    found = doctor()
    assert found.pop("status") == 0
    levels = {check: each["level"] for check, each in found.items()}
    assert levels.pop("versions") == "warning"
    assert set(levels) == {
        *("install", "settings", "storage", "driver", "connection", "clock", "components", "pools", "dags"),
    }
    assert set(levels.values()) == {"ok"}
    assert found["versions"]["remedy"]


@pytest.mark.parametrize(
    ("what", "value", "check", "words"),
    [
        ("health", "unhealthy", "components", "scheduler, triggerer"),
        ("paused", True, "dags", "paused"),
        ("reconciled", "failed", "dags", "failed"),
        ("reconciled", "none", "dags", "There is no DAG"),
    ],
)
def test_what_ails_airflow_is_a_problem_with_a_remedy(
    what: str, value: Any, check: str, words: str, doctor: Callable[[], dict[str, Any]], patient: tuple[str, Patient]
) -> None:
    before = getattr(patient[1], what)
    setattr(patient[1], what, value)
    found = doctor()
    setattr(patient[1], what, before)
    assert (found["status"], found[check]["level"]) == (1, "problem")
    assert words in found[check]["detail"] and found[check]["remedy"]


def test_a_pool_that_is_not_as_large_as_its_gpus_is_told(
    doctor: Callable[[], dict[str, Any]], patient: tuple[str, Patient]
) -> None:
    before = patient[1].pools
    patient[1].pools = dict.fromkeys(before, 77)
    found = doctor()
    patient[1].pools = before
    assert (found["status"], found["pools"]["level"]) == (0, "warning")
    assert "77 slots for" in found["pools"]["detail"]


def test_a_quota_for_a_type_that_the_servers_cluster_lacks_is_told(
    doctor: Callable[[], dict[str, Any]], patient: tuple[str, Patient]
) -> None:
    quota = Quota(max_gpus=8, max_gpus_by_type=(("h100", 2),))
    patient[1].queues.replace(QueueRules(teams=(TeamRule(name="red", quota=quota),)))
    found = doctor()
    patient[1].queues.replace(NO_RULES)
    assert (found["status"], found["quotas"]["level"]) == (0, "warning")
    assert "h100 of team red; it has" in found["quotas"]["detail"] and found["quotas"]["remedy"]


def test_a_quota_for_a_type_that_the_cluster_file_lacks_is_told_with_the_field(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GPU, encoding="utf-8")
    (tmp_path / "q.yaml").write_text("queues: {day: {max_gpus_by_type: {BIG: 4}}}", encoding="utf-8")
    settings = replace(Settings(), cluster_file=tmp_path / "c.yaml", queue_file=tmp_path / "q.yaml")
    told, read = this_machine.files(settings)
    assert (told.level, read.level) == (Level.WARNING, Level.OK)
    assert "queues.day.max_gpus_by_type: 'BIG' limits nothing; the cluster has big (did you mean big?)." in told.detail


def test_a_clock_that_is_off_is_a_problem(doctor: Callable[[], dict[str, Any]], clock: SkewedClock) -> None:
    clock.skew_s = -90
    found = doctor()
    clock.skew_s = 0
    assert found["clock"]["level"] == "problem"
    assert "-90 s" in found["clock"]["detail"]


def test_without_a_server_this_machine_is_looked_at_all_the_same(frenzy: Command, alone: Path) -> None:
    said = frenzy("doctor")
    assert said.status == 1
    assert "frenzy up" in said.out and "storage" in said.out


def test_storage_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (found,) = this_machine.storage(f"{tmp_path}/file/runs")
    assert found.level is Level.PROBLEM and found.remedy
    assert list(this_machine.storage(f"{tmp_path}/runs"))[0].level is not Level.PROBLEM
    assert list((tmp_path / "runs").iterdir()) == [], "nothing is left"


def test_packages_that_are_missing_or_too_old_are_named() -> None:
    (found,) = this_machine.install(lambda: ["no-such-package>=1", "httpx>=99", "rich>=14", "torch; extra == 'no'"])
    assert found.level is Level.PROBLEM
    assert "no-such-package>=1 (installed: none)" in found.detail and "httpx>=99 (installed: 0" in found.detail
    assert "rich" not in found.detail and "torch" not in found.detail


def test_a_gpu_without_a_driver_is_a_problem_where_workers_run_here(tmp_path: Path) -> None:
    if this_machine._nvidia() is not None:
        pytest.skip("this machine has a driver")
    (tmp_path / "c.yaml").write_text(GPU, encoding="utf-8")
    settings = replace(Settings(), cluster_file=tmp_path / "c.yaml")
    assert [each.level for each in this_machine.driver(settings)] == [Level.PROBLEM]
    in_pods = replace(settings, launcher=LauncherKind.KUBERNETES)
    assert [each.level for each in this_machine.driver(in_pods)] == [Level.OK]


def test_a_cluster_file_that_is_not_there_is_one_problem_and_no_word_of_a_driver(tmp_path: Path) -> None:
    settings = replace(Settings(), run_root=str(tmp_path / "runs"), cluster_file=tmp_path / "nowhere.yaml")
    found = list(this_machine.findings(settings))
    assert [each.check for each in found if "nowhere.yaml" in each.detail] == ["settings"]
    assert not [each for each in found if each.check == "driver"]


def test_rights_that_are_lacking_are_named() -> None:
    assert [each.level for each in pod_rights.rights(lambda *asked: True, "jobs")] == [Level.OK]
    lacking, blind = pod_rights.rights(lambda verb, resource, namespace: verb == "get", "jobs")
    assert (lacking.level, blind.level) == (Level.PROBLEM, Level.WARNING)
    assert "In jobs it may not create pods, delete pods" in lacking.detail and lacking.remedy


def test_the_rights_that_are_asked_for_are_those_of_the_manifest() -> None:
    documents = yaml.safe_load_all((CHECKOUT / "deploy/kubernetes/rbac.yaml").read_text(encoding="utf-8"))
    given = {(each["kind"], each["metadata"]["name"]): each.get("rules") for each in documents}
    role = {rule["resources"][0]: tuple(rule["verbs"]) for rule in given["Role", "frenzy"]}
    assert role == pod_rights.NEEDED
    assert tuple(given["ClusterRole", "frenzy-nodes"][0]["verbs"]) == pod_rights.OF_NODES
