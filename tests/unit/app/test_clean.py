"""What ended long ago may be cleaned; nothing that runs, waits, or is to be trained further loses a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.in_memory.ledger import InMemoryLedger, InMemoryTransaction
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.app.playing import Airflow, make_job
from tests.unit.app.test_preparing import FOUND

from frenzy.app.cancellation import cancel
from frenzy.app.cleaning import clean_run, ended_runs
from frenzy.app.preparing import prepared, preparing
from frenzy.app.queries import run_view
from frenzy.app.services import NotFound
from frenzy.core.runs.access import Caller
from frenzy.core.runs.ledger import FINAL_STATES, JobState, RunRecord
from frenzy.core.runs.protocol import CleanedRun, CleanRun, PreparedReport, PreparingReport
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.job import CheckpointSpec, ModelSpec, TrainingJob
from frenzy.core.values.prepared_data import PreparedPaths
from frenzy.ports import LedgerTx

DAY_S = 86400.0
WISH = CleanRun(older_than_s=30 * DAY_S)

ADMIN = Caller(name="admin", is_admin=True)


def run_of(airflow: Airflow, job: TrainingJob) -> str:
    """A run with a log, registered and not yet placed."""
    run_key = airflow.register(job).run.run_key
    assert isinstance(airflow.services.runs, InMemoryRunStore)
    airflow.services.runs.write_log(run_key, 1, "training\n")
    return run_key


def ended(airflow: Airflow, name: str = "old") -> str:
    run_key = run_of(airflow, make_job(name))
    cancel(airflow.services, run_key, Reason(code=ReasonCode.CANCELLED_BY_USER))
    return run_key


def test_runs_that_ended_long_enough_ago_are_listed_oldest_first(airflow: Airflow) -> None:
    first = ended(airflow, "first")
    airflow.clock.advance(DAY_S)
    second = ended(airflow, "second")
    airflow.clock.advance(DAY_S)
    run_of(airflow, make_job("waits"))
    listed = ended_runs(airflow.services, older_than_s=DAY_S, caller=ADMIN)
    assert [(each.run_key, each.job_name, each.state) for each in listed] == [
        (first, "first", JobState.CANCELLED),
        (second, "second", JobState.CANCELLED),
    ]
    assert [each.run_key for each in ended_runs(airflow.services, older_than_s=2 * DAY_S, caller=ADMIN)] == [first]


def test_cleaning_removes_the_files_and_keeps_the_history(airflow: Airflow) -> None:
    run_key = ended(airflow)
    airflow.clock.advance(30 * DAY_S)
    before = run_view(airflow.services, run_key)
    there = clean_run(airflow.services, run_key, replace(WISH, dry_run=True))
    assert there.num_bytes > 0
    assert run_view(airflow.services, run_key) == before, "a dry run leaves no trace"
    assert clean_run(airflow.services, run_key, WISH) == there
    after = run_view(airflow.services, run_key)
    assert (after.run, after.attempts) == (before.run, before.attempts)
    assert "all but the model" in after.events[-1].text
    assert clean_run(airflow.services, run_key, WISH) == CleanedRun(run_key=run_key, num_bytes=0)
    assert run_view(airflow.services, run_key) == after, "nothing was removed, so nothing is said"


def test_a_run_that_has_not_ended_keeps_its_files_however_old(airflow: Airflow) -> None:
    run_key = run_of(airflow, make_job("waits"))
    airflow.clock.advance(100 * DAY_S)
    with pytest.raises(PermanentError, match="has not ended"):
        clean_run(airflow.services, run_key, WISH)
    assert airflow.services.runs.log_part(run_key, 1).text


def test_a_run_that_ended_lately_keeps_its_files(airflow: Airflow) -> None:
    run_key = ended(airflow)
    airflow.clock.advance(30 * DAY_S - 60)
    with pytest.raises(PermanentError, match="ended only"):
        clean_run(airflow.services, run_key, WISH)
    assert airflow.services.runs.log_part(run_key, 1).text


def test_an_unknown_run_is_not_found(airflow: Airflow) -> None:
    with pytest.raises(NotFound):
        clean_run(airflow.services, "none", WISH)


@pytest.mark.parametrize("use", ["warm_start", "key", "model"])
def test_a_model_that_a_waiting_job_begins_with_stays(airflow: Airflow, use: str) -> None:
    run_key = ended(airflow)
    airflow.clock.advance(30 * DAY_S)
    model = f"{airflow.services.runs.run_dir(run_key)}/model"
    job = make_job("next")
    if use != "model":
        job = replace(job, checkpoint=CheckpointSpec(warm_start=run_key if use == "key" else model))
    else:
        job = replace(job, model=ModelSpec(path=model))
    next_run = run_of(airflow, job)
    with pytest.raises(PermanentError, match="next is to begin with its model"):
        clean_run(airflow.services, run_key, replace(WISH, models=True))
    cancel(airflow.services, next_run, Reason(code=ReasonCode.CANCELLED_BY_USER))
    assert clean_run(airflow.services, run_key, replace(WISH, models=True)).num_bytes > 0


def prepared_run(airflow: Airflow, name: str) -> str:
    run_key = run_of(airflow, make_job(name))
    preparing(airflow.services, run_key, PreparingReport(begins=True))
    prepared(airflow.services, run_key, PreparedReport(prepared=FOUND))
    return run_key


def prepared_folders(airflow: Airflow) -> dict[str, int]:
    """What FOUND names is there; the store's own record of it."""
    store = airflow.services.runs
    assert isinstance(store, InMemoryRunStore)
    folders = [each.lstrip("/") for each in PreparedPaths.beside("r", "default").folders_of(FOUND)]
    store.data = dict.fromkeys(folders, 1000)
    return store.data


def test_prepared_data_stay_while_a_run_of_the_team_is_yet_to_find_them(airflow: Airflow) -> None:
    first, data = prepared_run(airflow, "first"), prepared_folders(airflow)
    cancel(airflow.services, first, Reason(code=ReasonCode.CANCELLED_BY_USER))
    airflow.clock.advance(31 * DAY_S)
    waiting = run_of(airflow, make_job("waits"))
    clean_run(airflow.services, first, WISH)
    preparing(airflow.services, waiting, PreparingReport(begins=True))
    clean_run(airflow.services, first, WISH)
    assert len(data) == 2
    prepared(airflow.services, waiting, PreparedReport(prepared=replace(FOUND, shards="d" * 32, tokenizer="e" * 32)))
    clean_run(airflow.services, first, WISH)
    assert data == {}


def test_data_of_another_run_that_ended_within_a_day_stay_whatever_is_wished(airflow: Airflow) -> None:
    keys, data = [prepared_run(airflow, each) for each in ("first", "second")], prepared_folders(airflow)
    for each in keys:
        cancel(airflow.services, each, Reason(code=ReasonCode.CANCELLED_BY_USER))
    airflow.clock.advance(DAY_S / 2)
    clean_run(airflow.services, keys[0], CleanRun(older_than_s=0.0))
    assert len(data) == 2
    airflow.clock.advance(DAY_S / 2)
    clean_run(airflow.services, keys[0], CleanRun(older_than_s=0.0))
    assert data == {}


def test_prepared_data_go_with_the_last_run_that_used_them(airflow: Airflow) -> None:
    keys, data = [prepared_run(airflow, each) for each in ("first", "second")], prepared_folders(airflow)
    folders = set(data)
    cancel(airflow.services, keys[0], Reason(code=ReasonCode.CANCELLED_BY_USER))
    airflow.clock.advance(31 * DAY_S)
    clean_run(airflow.services, keys[0], WISH)
    assert set(data) == folders, "a run that has not ended uses them"
    cancel(airflow.services, keys[1], Reason(code=ReasonCode.CANCELLED_BY_USER))
    airflow.clock.advance(31 * DAY_S)
    assert clean_run(airflow.services, keys[1], replace(WISH, dry_run=True)).num_bytes > 2000
    clean_run(airflow.services, keys[1], WISH)
    assert data == {}


class CountedLedger(InMemoryLedger):
    """Counts how often all runs that have ended are read."""

    def __init__(self) -> None:
        super().__init__()
        self.num_reads = 0

    @contextmanager
    def reading(self) -> Iterator[LedgerTx]:
        ledger = self

        class Counted(InMemoryTransaction):
            def runs(self, *, states: Iterable[JobState] | None = None, **wanted: Any) -> tuple[RunRecord, ...]:
                ledger.num_reads += states is None or not FINAL_STATES.isdisjoint(states)
                return super().runs(states=states, **wanted)

        yield Counted(self, self._facts, writable=False)


def test_a_run_of_which_no_data_are_left_or_whose_data_are_in_use_is_cleaned_without_reading_all_runs(
    airflow: Airflow,
) -> None:
    ledger = CountedLedger()
    airflow.services = replace(airflow.services, ledger=ledger)
    keys = [ended(airflow), prepared_run(airflow, "first"), prepared_run(airflow, "second")]
    data = prepared_folders(airflow)
    cancel(airflow.services, keys[1], Reason(code=ReasonCode.CANCELLED_BY_USER))
    airflow.clock.advance(31 * DAY_S)
    for each in keys[:2]:
        clean_run(airflow.services, each, WISH)
    data.clear()
    clean_run(airflow.services, keys[1], WISH)
    assert ledger.num_reads == 0
