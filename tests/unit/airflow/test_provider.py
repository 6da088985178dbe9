"""Airflow knows the Connection type, shows its form, and its test says whether tasks could work with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow import __file__ as airflow_file
from airflow.sdk import Connection
from jsonschema import Draft7Validator
from tests.unit.airflow.conftest import World

from frenzy.airflow.connection import close_clients
from frenzy.airflow.hook import FrenzyHook
from frenzy.airflow.provider import get_provider_info
from frenzy.settings import variable_names


def test_the_metadata_is_what_airflow_s_schema_asks_for() -> None:
    schema = json.loads((Path(airflow_file).parent / "provider_info.schema.json").read_text(encoding="utf-8"))
    assert not list(Draft7Validator(schema).iter_errors(get_provider_info()))


def test_airflow_s_pages_describe_every_setting_that_its_configuration_may_hold() -> None:
    options = get_provider_info()["config"]["frenzy"]["options"]
    assert [f"FRENZY_{each.upper()}" for each in options] == [*variable_names(shared_only=True)]
    assert all(each["description"].endswith(".") for each in options.values())
    assert options["hang_s"]["description"].endswith("Default: 600.0.")


def test_airflow_finds_the_hook_of_the_connection_type() -> None:
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    found = ProvidersManagerTaskRuntime().hooks["frenzy"]
    assert found is not None
    assert (found.hook_class_name, found.connection_id_attribute_name) == (
        "frenzy.airflow.hook.FrenzyHook",
        "frenzy_conn_id",
    )


def test_a_connection_that_works_says_what_the_server_knows(world: World) -> None:
    assert FrenzyHook().test_connection() == (True, "The server answers; it knows 4 GPUs.")


def test_a_connection_that_leads_nowhere_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Connection(conn_id="nowhere", conn_type="frenzy", host="127.0.0.1", port=1, login="a", password="b")
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", nowhere.get_uri())
    works, words = FrenzyHook("nowhere").test_connection()
    assert not works
    assert "API_UNREACHABLE" in words and "127.0.0.1:1" in words
    close_clients()
