"""The pages: documents without data, scripts that write text only, nothing from elsewhere."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

import pytest
from fastapi.testclient import TestClient

from frenzy.web.page_files import PAGES, STATIC_TYPES

HOSTILE = "<script>alert(1)</script>"
VIEWER = {"X-User": "viewer"}
UPLOT = ("uPlot.js", "uPlot.LICENSE.txt")
UPLOT_SHA256 = "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba"
OWN = sorted(set(STATIC_TYPES) - set(UPLOT))
SCRIPTS = sorted(name for name in STATIC_TYPES if name.endswith(".js"))


def source(name: str) -> str:
    return files("frenzy.web").joinpath("static", name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_page_is_the_same_whatever_the_query_says(page: str, http: TestClient) -> None:
    plain = http.get(f"/pages/{page}", headers=VIEWER)
    hostile = http.get(f"/pages/{page}", params={"dag_id": HOSTILE, "run_id": HOSTILE}, headers=VIEWER)
    assert plain.status_code == 200
    assert hostile.content == plain.content


@pytest.mark.parametrize("page", PAGES)
def test_policy_lets_a_page_run_and_load_only_this_origin_s_files(page: str, http: TestClient) -> None:
    policy = http.get(f"/pages/{page}", headers=VIEWER).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("page", PAGES)
def test_page_has_no_inline_script_or_style(page: str, http: TestClient) -> None:
    text = http.get(f"/pages/{page}", headers=VIEWER).text
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\son\w+=|\sstyle=", text)


@pytest.mark.parametrize("page", PAGES)
def test_all_that_a_page_refers_to_is_served(page: str, http: TestClient) -> None:
    found = re.findall(r'(?:src|href)="\.\./static/([^"]+)"', http.get(f"/pages/{page}", headers=VIEWER).text)
    assert found
    for name in found:
        assert http.get(f"/static/{name}", headers=VIEWER).headers["content-type"] == STATIC_TYPES[name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_never_makes_markup_out_of_text(name: str) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc"
    assert not re.search(forbidden, source(name))


@pytest.mark.parametrize("name", OWN)
def test_nothing_comes_from_another_host(name: str) -> None:
    text = source(name).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]{2,}", text)


def test_the_chart_library_is_the_one_that_was_looked_at() -> None:
    """uPlot 1.6.32 as its package has it; the only addresses in it stand in comments."""
    text = source("uPlot.js")
    assert hashlib.sha256(text.encode()).hexdigest() == UPLOT_SHA256
    assert not re.search(r"https?://", re.sub(r"//.*|/\*.*?\*/", "", text))


def test_every_static_file_is_listed() -> None:
    present = {each.name for each in files("frenzy.web").joinpath("static").iterdir() if not each.name.startswith("_")}
    assert present == set(STATIC_TYPES)


@pytest.mark.parametrize("path", ["/pages/other", "/static/other.js", "/static/..%2Fapplication.py", "/static/%2e%2e"])
def test_no_other_file_can_be_had(path: str, http: TestClient) -> None:
    assert http.get(path, headers=VIEWER).status_code == 404
