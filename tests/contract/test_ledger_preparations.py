"""How far the data of runs are prepared, in every ledger."""

from __future__ import annotations

from dataclasses import replace

from tests.contract import values

from frenzy.core.runs.ledger import JobState, Preparation
from frenzy.core.values.prepared_data import PreparedData
from frenzy.core.values.telemetry import Heartbeat
from frenzy.ports import LedgerStore


def test_the_last_that_was_told_of_a_preparation_is_kept(ledger: LedgerStore) -> None:
    keys = [values.run(each).run_key for each in ("r1", "r2")]
    first = Preparation(run_key=values.run("r1").run_key, number=1, begun_s=10.0, seen_s=10.0)
    later = replace(first, number=2, seen_s=20.0, progress=Heartbeat(phase="tokens made", time_s=19.0, done=7))
    with ledger.transaction() as tx:
        tx.put_run(values.run("r1"))
        tx.put_run(values.run("r2"))
        assert tx.preparations(keys) == {}
        tx.put_preparation(first)
        tx.put_preparation(later)
        assert tx.preparations(keys[:1]) == {keys[0]: later}
    with ledger.reading() as tx:
        assert tx.preparations([*keys, "r3"]) == {keys[0]: later}
        assert tx.preparations([]) == {}


def test_a_run_keeps_its_state_and_what_it_trains_on(ledger: LedgerStore) -> None:
    found = PreparedData(
        shards="a" * 32,
        tokenizer="b" * 32,
        digest="c" * 32,
        num_tokens=10,
        num_train=1,
        num_validation=0,
        total_steps=5,
    )
    run = replace(values.run("r1"), state=JobState.PREPARING, prepared=found)
    with ledger.transaction() as tx:
        tx.put_run(run)
    with ledger.reading() as tx:
        assert tx.runs(states=[JobState.PREPARING]) == (run,)
