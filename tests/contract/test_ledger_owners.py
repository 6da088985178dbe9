"""Whose jobs and runs are, in every ledger."""

from __future__ import annotations

from dataclasses import replace

from tests.contract import values
from tests.contract.ledgers import World

from frenzy.core.runs.access import JobRecord
from frenzy.ports import LedgerStore


def test_whose_a_job_is_can_be_told_changed_and_forgotten(ledger: LedgerStore) -> None:
    first = JobRecord(name="words", owner="ada", team="readers", bound_to="ada")
    with ledger.transaction() as tx:
        assert tx.job("words") is None
        tx.put_job(first)
        tx.put_job(replace(first, bound_to=None))
    with ledger.transaction() as tx:
        assert tx.job("words") == replace(first, bound_to=None)
        tx.drop_job("words")
        tx.drop_job("words")
    with ledger.reading() as tx:
        assert tx.job("words") is None


def test_runs_are_found_by_their_dags(ledger: LedgerStore) -> None:
    ours, theirs = values.run("r1"), values.run("r2")
    theirs = replace(theirs, identity=replace(theirs.identity, dag_id="job_theirs"))
    with ledger.transaction() as tx:
        tx.put_run(ours)
        tx.put_run(theirs)
    with ledger.reading() as tx:
        assert tx.dag_ids() == {ours.identity.dag_id, "job_theirs"}
        assert tx.runs(dag_ids=frozenset({"job_theirs"})) == (theirs,)
        assert tx.runs(dag_ids=frozenset()) == ()


def test_runs_are_found_by_their_jobs_however_many_others_are_newer(ledger: LedgerStore) -> None:
    ours, theirs = values.run("r1"), values.run("r2", created_s=2.0)
    ours = replace(ours, job=replace(ours.job, name="fine_tune"))
    theirs = replace(theirs, job=replace(theirs.job, name="fine-tune", description='"job": {"name": "fine_tune",'))
    with ledger.transaction() as tx:
        tx.put_run(ours)
        tx.put_run(theirs)
    with ledger.reading() as tx:
        assert tx.runs(job_name="fine_tune", limit=1) == (ours,)
        assert tx.runs(job_name="%") == ()


def test_who_triggered_a_dag_run_is_told(world: World, ledger: LedgerStore) -> None:
    identity = values.run().identity
    world.set_dag_run(identity, "running", user="ada")
    with ledger.reading() as tx:
        assert tx.started_by(identity.dag_id, identity.run_id) == "ada"
        assert tx.started_by(identity.dag_id, "another") is None


def test_a_dag_of_the_dags_folder_is_known(world: World, ledger: LedgerStore) -> None:
    world.add_dag("job_sample")
    with ledger.reading() as tx:
        assert tx.has_dag("job_sample")
        assert not tx.has_dag("job_other")
