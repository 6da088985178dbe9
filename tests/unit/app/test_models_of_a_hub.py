"""A run that is registered again trains the commit that it began with, unless another model is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.cancellation import cancel
from frenzy.app.finished import checkpoints
from frenzy.core.runs.ledger import RunRecord, asked_model
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import ModelSpec

FIRST, SECOND = "1" * 40, "2" * 40
BY_USER = Reason(code=ReasonCode.CANCELLED_BY_USER, detail="cancelled by me")


def of_hub(revision: str | None, hub_id: str = "acme/tiny") -> ModelSpec:
    return ModelSpec(hub_id=hub_id, revision=revision)


def registered(airflow: Airflow, asked: ModelSpec | None, commit: str | None) -> RunRecord:
    """``asked`` None: by a worker that does not tell what was asked for."""
    hub_id = "acme/tiny" if asked is None else asked.hub_id
    job = replace(make_job(), model=ModelSpec(hub_id=hub_id, revision=commit))
    return airflow.register(job, asked_model="" if asked is None else asked_model(asked)).run


def again(airflow: Airflow, asked: ModelSpec | None, commit: str) -> tuple[str | None, tuple[int, ...]]:
    """The run's commit and the checkpoints that it goes on from, once it has one, ends and is registered again."""
    store = airflow.services.runs
    assert isinstance(store, InMemoryRunStore)
    store.write_checkpoint(airflow.key, 50)
    cancel(airflow.services, airflow.key, BY_USER)
    airflow.clock.advance(1.0)
    run = registered(airflow, asked, commit)
    return run.commit, tuple(each.step for each in checkpoints(airflow.services, airflow.key))


@pytest.mark.parametrize("revision", [None, "main", "v2"])
def test_a_branch_that_moves_on_changes_neither_commit_nor_checkpoints(airflow: Airflow, revision: str | None) -> None:
    registered(airflow, of_hub(revision), FIRST)
    for _ in range(2):
        assert again(airflow, of_hub(revision), SECOND) == (FIRST, (50,))


def test_no_revision_asks_for_main(airflow: Airflow) -> None:
    registered(airflow, of_hub(None), FIRST)
    assert again(airflow, of_hub("main"), SECOND) == (FIRST, (50,))


@pytest.mark.parametrize("asked", [of_hub("v2"), of_hub(SECOND), of_hub(None, "acme/other")])
def test_another_model_that_is_asked_for_trains_anew(airflow: Airflow, asked: ModelSpec) -> None:
    registered(airflow, of_hub(None), FIRST)
    assert again(airflow, asked, SECOND) == (SECOND, ())


@pytest.mark.parametrize("asked", [None, of_hub(None), of_hub("v2"), of_hub(FIRST)])
def test_a_run_of_which_the_commit_alone_is_known_loses_no_checkpoint(
    airflow: Airflow, asked: ModelSpec | None
) -> None:
    registered(airflow, None, FIRST)
    assert again(airflow, asked, FIRST if asked == of_hub(FIRST) else SECOND) == (FIRST, (50,))


def test_another_commit_is_another_model_even_where_the_commit_alone_is_known(airflow: Airflow) -> None:
    registered(airflow, None, FIRST)
    assert again(airflow, of_hub(SECOND), SECOND) == (SECOND, ())


@pytest.mark.parametrize(("asked", "kept"), [("v1", (50,)), ("v2", ())])
def test_a_run_from_before_commits_were_kept_knows_the_branch(
    airflow: Airflow, asked: str, kept: tuple[int, ...]
) -> None:
    registered(airflow, None, "v1")
    assert again(airflow, of_hub(asked), FIRST) == (FIRST, kept)
