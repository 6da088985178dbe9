from __future__ import annotations

import pytest

from frenzy.core.runs.access import (
    HIDDEN,
    Caller,
    JobRecord,
    outline,
    record_of_started,
    record_of_stored,
    task_acts_for,
)
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob

JOB = TrainingJob(name="lm", team="vision", model=ModelSpec(path="/models/secret"), data=DataSpec(path="/data/secret"))
ADA = Caller(name="ada")
ADMIN = Caller(name="root", is_admin=True)


def test_a_new_job_is_its_storers_and_bound_to_them() -> None:
    assert record_of_stored(JOB, ADA, None) == JobRecord(name="lm", owner="ada", team="vision", bound_to="ada")


def test_a_job_that_another_stores_anew_keeps_its_owner_and_is_bound_to_the_other() -> None:
    before = JobRecord(name="lm", owner="bob", team="vision", bound_to="bob")
    assert record_of_stored(JOB, ADA, before) == JobRecord(name="lm", owner="bob", team="vision", bound_to="ada")


def test_a_job_without_owner_becomes_its_storers() -> None:
    assert record_of_stored(JOB, ADA, JobRecord(name="lm", owner=None, team="")).owner == "ada"


def test_what_an_administrator_stores_is_bound_to_nobody() -> None:
    assert record_of_stored(JOB, ADMIN, None) == JobRecord(name="lm", owner="root", team="vision", bound_to=None)


@pytest.mark.parametrize(("user", "bound_to"), [("ada", "ada"), (None, None)])
def test_a_task_has_the_rights_of_who_started_its_run_else_of_the_dags_author(
    user: str | None, bound_to: str | None
) -> None:
    assert task_acts_for(user).bound_to == bound_to
    assert record_of_stored(JOB, task_acts_for(user), None).owner == user


@pytest.mark.parametrize("user", ["ada", None])
def test_a_run_of_a_dag_file_is_its_starters_or_nobodys(user: str | None) -> None:
    assert record_of_started(JOB, user) == JobRecord(name="lm", owner=user, team="vision", bound_to=user)


def test_the_outline_of_a_job_shows_no_source_and_says_who_may_see_it() -> None:
    shown = outline(JOB)
    assert (shown.model.path, shown.data.path) == (HIDDEN, HIDDEN)
    assert (shown.name, shown.team) == (JOB.name, JOB.team)
    assert shown.description == "Only its owner, its team and administrators may see the specification."
