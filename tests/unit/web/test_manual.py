"""The documentation that is served with the product."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from frenzy.core.values.errors import ReasonCode
from frenzy.settings import CHECKOUT

NAMES = sorted(each.stem for each in (CHECKOUT / "docs").glob("*.md"))
VIEWER = {"X-User": "viewer"}


def test_every_reason_code_has_its_place_in_the_runbook(http: TestClient) -> None:
    text = http.get("/manual/runbook", headers=VIEWER).text
    assert {each for each in ReasonCode if f'id="{each.lower()}"' not in text} == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_s_links_lead_to_what_is_served(name: str, http: TestClient) -> None:
    text = http.get(f"/manual/{name}", headers=VIEWER).text
    for link in re.findall(r'<a href="([^"]*)"', text):
        there, _, fragment = link.partition("#")
        if there.startswith("https://"):
            continue
        answer = http.get(f"/manual/{there or name}", headers=VIEWER)
        assert answer.status_code == 200, link
        assert not fragment or f'id="{fragment}"' in answer.text, link


def test_it_loads_nothing_but_this_origin_s_files_and_runs_no_script_of_the_text(http: TestClient) -> None:
    answer = http.get("/manual/index", headers=VIEWER)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert re.findall(r'<script[^>]*src="([^"]+)"', answer.text) == ["../static/theme.js"]
    assert "<img" not in answer.text


@pytest.mark.parametrize("name", ["other", "..%2Fpyproject", "decisions"])
def test_no_other_page_can_be_had(name: str, http: TestClient) -> None:
    assert http.get(f"/manual/{name}", headers=VIEWER).status_code == 404


def test_whoever_has_not_logged_in_reads_nothing(http: TestClient) -> None:
    assert http.get("/manual/runbook").status_code == 401
