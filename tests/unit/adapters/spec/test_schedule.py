"""When a job's own DAG runs by itself, and what is refused before Airflow would refuse it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from airflow.sdk import Asset
from airflow.timetables.trigger import CronTriggerTimetable
from airflow.utils.dates import cron_presets
from hypothesis import given
from hypothesis import strategies as st

from frenzy.adapters.spec.job_spec import job_from_document
from frenzy.adapters.spec.schedule import PRESETS, next_starts, trigger_violations
from frenzy.core.values.errors import SpecError
from frenzy.core.values.job import TriggerSpec

NOON_S = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()


def starts(cron: str, number: int = 2) -> list[str]:
    found = next_starts(TriggerSpec(cron=cron), NOON_S, number)
    return [datetime.fromtimestamp(each, UTC).strftime("%Y-%m-%d %H:%M") for each in found]


def test_a_schedule_names_its_next_moments_in_utc() -> None:
    assert starts("30 3 * * 1-5") == ["2026-11-25 03:30", "2026-11-26 03:30"]
    assert starts("0 3 * MAR THU", 1) == ["2027-03-04 03:00"]
    assert starts("@quarterly") == ["2027-01-01 00:00", "2027-04-01 00:00"]
    assert starts("0 0 29 2 *", 1) == ["2028-02-29 00:00"]


def test_without_a_schedule_there_is_no_moment() -> None:
    assert next_starts(TriggerSpec(), NOON_S, 3) == ()
    assert next_starts(TriggerSpec(assets=("frenzy://models/base",)), NOON_S, 3) == ()


def test_presets_are_those_of_airflow() -> None:
    assert dict(PRESETS) == cron_presets


@pytest.mark.parametrize(
    "cron",
    ["", "0 3 * *", "61 * * * *", "0 0 30 2 *", "@once", "H * * * *", "R R * * *", "* * * * * *", "daily", "3 am"],
)
def test_a_schedule_that_never_starts_a_run_is_refused_with_what_is_allowed(cron: str) -> None:
    (violation,) = trigger_violations(TriggerSpec(cron=cron))
    assert (violation.path, violation.value) == ("trigger.cron", repr(cron))
    assert "five fields" in violation.allowed and "@daily" in violation.allowed


@given(st.text(alphabet="0123456789*/-, @adily", max_size=20))
def test_airflow_takes_every_schedule_that_is_not_refused(cron: str) -> None:
    if not list(trigger_violations(TriggerSpec(cron=cron))):
        CronTriggerTimetable(cron, timezone="UTC").validate()


@pytest.mark.parametrize(
    "uri", ["", "  ", "airflow://x", "a" * 1501, "s3://" + "b" * 1495, "s3://b?x=" + "é" * 900, "s3://[", "a\nb"]
)
def test_what_is_no_asset_is_refused_by_its_place(uri: str) -> None:
    (violation,) = trigger_violations(TriggerSpec(assets=("frenzy://models/base", uri)))
    assert violation.path == "trigger.assets[1]"


@pytest.mark.parametrize("uri", ["frenzy://models/base", "s3://bucket/corpus", "corpus", "x-own:thing"])
def test_airflow_takes_the_others(uri: str) -> None:
    assert list(trigger_violations(TriggerSpec(assets=(uri,)))) == []
    assert Asset(uri).uri


def test_it_is_told_with_all_else_that_is_wrong() -> None:
    document = {
        "name": "words",
        "model": {"config": {"model_type": "gpt2"}},
        "data": {"path": "words.txt"},
        "training": {},
        "trigger": {"cron": "often", "assets": ["airflow:x"]},
    }
    with pytest.raises(SpecError) as refused:
        job_from_document(document)
    paths = [each.path for each in refused.value.violations]
    assert {"training.max_steps", "trigger", "trigger.cron", "trigger.assets[0]"} == set(paths)
