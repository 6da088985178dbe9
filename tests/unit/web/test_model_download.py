"""Taking a finished model along: its files, whole or from where a transfer broke, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.middleware.gzip import GZipMiddleware
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.web.conftest import API, ApiUser

from frenzy.app.services import Services
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.views import ModelFile
from frenzy.ports import StoredFile
from frenzy.web.file_reply import file_reply

WEIGHTS: Final = b"0123456789" * 300
FILES: Final = {"model.safetensors": WEIGHTS, "tokenizer/voc ab.html": b"<script>alert(1)</script>"}
Users = Callable[[str | None], ApiUser]


@pytest.fixture
def run_key(services: Services, user: Users) -> str:
    run = user("frenzy").registered().run
    assert isinstance(services.runs, InMemoryRunStore)
    services.runs.write_model(run.run_key, FILES)
    with services.ledger.transaction() as tx:
        tx.put_run(replace(run, state=JobState.SUCCEEDED))
    return run.run_key


def take(http: TestClient, run_key: str, name: str = "model.safetensors", **headers: str) -> Any:
    return http.get(f"{API}/runs/{run_key}/model/{name}", headers={"X-User": "admin", **headers})


def test_files_are_listed_with_their_sizes_and_come_as_they_are(http: TestClient, user: Users, run_key: str) -> None:
    listed = user("admin").ask("GET", f"/runs/{run_key}/model", tuple[ModelFile, ...])  # type: ignore[arg-type]
    assert {each.name: each.num_bytes for each in listed} == {name: len(each) for name, each in FILES.items()}
    for name, content in FILES.items():
        reply = take(http, run_key, name)
        assert (reply.status_code, reply.content) == (200, content)
        assert reply.headers["content-length"] == str(len(content))


def test_what_a_run_wrote_is_kept_by_a_browser_and_never_shown(http: TestClient, run_key: str) -> None:
    headers = take(http, run_key, "tokenizer/voc ab.html").headers
    assert headers["content-disposition"] == "attachment; filename*=UTF-8''voc%20ab.html"
    assert headers["content-type"] == "application/octet-stream"
    assert headers["x-content-type-options"] == "nosniff"


def test_a_broken_transfer_goes_on_where_it_ended(http: TestClient, run_key: str) -> None:
    etag = take(http, run_key).headers["etag"]
    rest = take(http, run_key, Range="bytes=2990-", **{"If-Range": etag})
    assert (rest.status_code, rest.content) == (206, WEIGHTS[2990:])
    assert rest.headers["content-range"] == "bytes 2990-2999/3000"
    assert take(http, run_key, **{"If-None-Match": f'W/"x", {etag}'}).status_code == 304


def test_of_another_version_all_of_it_comes(http: TestClient, services: Services, run_key: str) -> None:
    etag = take(http, run_key).headers["etag"]
    assert isinstance(services.runs, InMemoryRunStore)
    services.runs.write_model(run_key, {"model.safetensors": b"new"})
    whole = take(http, run_key, Range="bytes=2990-", **{"If-Range": etag})
    assert (whole.status_code, whole.content) == (200, b"new")


@pytest.mark.parametrize("wanted", ["bytes=3000-", "bytes=9000-9001", "bytes=-0"])
def test_a_range_beyond_the_end_is_refused_with_the_size(wanted: str, http: TestClient, run_key: str) -> None:
    reply = take(http, run_key, Range=wanted)
    assert (reply.status_code, reply.headers["content-range"], reply.content) == (416, "bytes */3000", b"")


@pytest.mark.parametrize("wanted", ["bytes=0-1,5-6", "bytes=-", "bytes=5-4", "lines=0-1", "bytes=a-b"])
def test_what_is_no_single_range_gets_the_whole(wanted: str, http: TestClient, run_key: str) -> None:
    reply = take(http, run_key, Range=wanted)
    assert (reply.status_code, reply.content) == (200, WEIGHTS)


@given(num_bytes=st.integers(0, 50), first=st.integers(0, 60), count=st.integers(0, 60), kind=st.integers(0, 2))
def test_a_range_is_what_it_says(num_bytes: int, first: int, count: int, kind: int) -> None:
    content = bytes(range(num_bytes))
    file = StoredFile(num_bytes=num_bytes, version="1", parts=lambda start, stop: iter((content[start:stop],)))
    wanted, expected = (
        (f"bytes={first}-", content[first:]),
        (f"bytes={first}-{first + count}", content[first : first + count + 1]),
        (f"bytes=-{count}", content[max(0, num_bytes - count) :]),
    )[kind]
    reply = file_reply({"range": wanted}, "x", file)
    if expected:
        assert (reply.status_code, reply.headers["content-length"]) == (206, str(len(expected)))
    else:
        assert reply.status_code == 416


@pytest.mark.parametrize("name", ["other", "..%2Fspec.json", "../attempt-1/spec.json", "%2Fetc%2Fpasswd"])
def test_no_name_leads_out_of_the_model(name: str, http: TestClient, run_key: str) -> None:
    assert take(http, run_key, name).status_code == 404


def test_what_lies_there_before_the_end_is_no_model(http: TestClient, services: Services, user: Users) -> None:
    run_key = user("frenzy").registered().run.run_key
    assert isinstance(services.runs, InMemoryRunStore)
    services.runs.write_model(run_key, FILES)
    for reply in (take(http, run_key), user("admin").send("GET", f"/runs/{run_key}/model")):
        assert (reply.status_code, "has left no model" in reply.json()["detail"]["message"]) == (404, True)


def test_the_server_around_it_packs_no_weights(http: TestClient, run_key: str) -> None:
    packing = TestClient(GZipMiddleware(http.app, minimum_size=10))
    reply = take(packing, run_key, **{"Accept-Encoding": "gzip"})
    assert (reply.headers["content-encoding"], reply.headers["content-length"]) == ("identity", "3000")
    assert hashlib.sha256(reply.content).digest() == hashlib.sha256(WEIGHTS).digest()
