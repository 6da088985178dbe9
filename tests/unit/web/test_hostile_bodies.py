"""No body that a caller can send makes the API fail, answer what is no JSON, or keep the others waiting."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.fuzz.described import openapi_findings
from tests.fuzz.targets import Api
from tests.unit.web.conftest import API, ApiUser, registration

from frenzy.app.services import Services
from frenzy.core.values.codec import dumps

SHARE = 150


@pytest.fixture(scope="module")
def api() -> Api:
    return Api()


@pytest.fixture(scope="module")
def of_a_user() -> Api:
    return Api("ada")


def test_the_fuzzed_user_owns_the_run_and_is_neither_administrator_nor_service(of_a_user: Api) -> None:
    path = f"/runs/{of_a_user.run_key}"
    assert of_a_user.http.get(f"{API}{path}", headers={"X-User": "ada"}).json()["run"]["owner"] == "ada"
    assert of_a_user.post(f"{path}/enqueue", b"").status_code == 403


def test_no_route_fails_on_known_attacks_or_mutated_bodies(api: Api) -> None:
    assert [each for asked in api.requests(SHARE, Random(7)) if (each := api.ask(*asked))] == []


def test_no_route_fails_on_those_of_a_user(of_a_user: Api) -> None:
    asked = of_a_user.requests(SHARE, Random(8))
    assert [each for one in asked if (each := of_a_user.ask(*one))] == []


def test_no_route_fails_on_what_the_openapi_document_allows(api: Api, of_a_user: Api) -> None:
    assert list(openapi_findings(api, 3)) == []
    assert list(openapi_findings(of_a_user, 2)) == []


def changed(section: str | None, **values: Any) -> str:
    document = json.loads(dumps(registration()))
    (document if section is None else document[section] if section != "training" else document["job"][section]).update(
        values
    )
    return json.dumps(document)


@pytest.mark.parametrize("path", ["/runs", "/plan"])
@pytest.mark.parametrize(
    ("section", "values", "where"),
    [
        ("training", {"global_batch_size": 10**12}, "training.global_batch_size"),
        ("training", {"max_steps": None, "epochs": float("nan")}, "training.max_steps"),
        ("training", {"max_steps": None, "epochs": 1e308}, "training.epochs"),
        ("training", {"max_steps": 10, "epochs": 1}, "training.max_steps"),
        ("job", {"name": "Not A Name"}, "name"),
        ("job", {"constraints": {"deadline": "soon"}}, "constraints.deadline"),
        ("job", {"description": "\ud800"}, "job.description"),
        ("data_facts", {"num_tokens": -1}, "data_facts.num_tokens"),
        ("data_facts", {"num_tokens": 10**18}, "data_facts.num_tokens"),
        ("identity", {"run_id": "x" * 1000}, "identity.run_id"),
    ],
)
def test_a_job_is_refused_here_for_what_it_is_refused_for_in_yaml(
    op: ApiUser, path: str, section: str, values: dict[str, Any], where: str
) -> None:
    reply = op.send("POST", path, changed(section, **values))
    assert reply.status_code == 400
    assert where in reply.text


@pytest.mark.parametrize(
    "config", [{"n_layer": 1e30}, {"n_layer": 10**18}, {"n_layer": -1}, {"n_head": 10**18}, {"n_inner": "a"}]
)
def test_a_model_beyond_what_can_be_computed_has_no_plan(op: ApiUser, config: dict[str, Any]) -> None:
    reply = op.send("POST", "/runs", changed("model_config", **config))
    assert reply.status_code == 200
    assert reply.json()["run"]["reason"]["code"] == "MODEL_NOT_SUPPORTED"


@pytest.mark.parametrize("body", ["[" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000, '"\\ud800"', "1e999", "[]"])
def test_a_body_that_is_no_message_is_refused(op: ApiUser, body: str) -> None:
    for path in ("/jobs", "/runs", "/plan", "/reconcile"):
        assert op.send("POST", path, body).status_code == 400


def test_a_name_that_nothing_can_have_is_refused(op: ApiUser) -> None:
    for name in ("%00", "a%0ab", "x" * 300):
        assert op.send("GET", f"/runs/{name}").status_code == 400


def test_a_loss_that_is_no_number_is_null(op: ApiUser) -> None:
    key = op.registered().run.run_key
    op.send("POST", f"/runs/{key}/enqueue")
    op.send("POST", f"/runs/{key}/attempts/1/launching")
    sent = op.send("POST", f"/runs/{key}/attempts/1/progress", '{"last_step": 1, "last_loss": NaN}')
    assert sent.status_code == 200
    assert "NaN" not in op.send("GET", f"/runs/{key}").text


def test_a_run_is_planned_while_others_use_the_ledger(services: Services) -> None:
    """The lock of the ledger is free while plans are made: seen by asking for it from another thread."""
    from frenzy.app.register import register_run

    seen: list[bool] = []

    class Calibration:
        """Stands where planning reads its coefficients: then somebody else writes to the ledger."""

        def __getattr__(self, name: str) -> Any:
            def write() -> None:
                with services.ledger.transaction():
                    seen.append(True)

            other = threading.Thread(target=write)
            other.start()
            other.join(timeout=5)
            return getattr(services.calibration, name)

    watched: Any = Calibration()
    register_run(replace(services, calibration=watched, marp_policy="closed-form"), registration())
    assert seen


def test_a_large_batch_that_never_fits_is_answered_within_seconds(api: Api) -> None:
    job = {"constraints": {"gpu_types": ["t4"], "max_gpus": 1, "max_cost": 1e-9, "deadline": "2020-01-01T00:00:00Z"}}
    document = json.loads(changed("job", **job))
    document["job"]["training"]["global_batch_size"] = 720_720
    began = time.process_time()
    assert api.post("/plan", json.dumps(document).encode()).status_code == 200
    # 1.5 s of CPU when it was written, more beside other work
    assert time.process_time() - began < 6
