"""What every ledger promises."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from tests.contract import values
from tests.contract.ledgers import World

from frenzy.core.runs.ledger import Event, JobState, LeaseState, versions_key
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.resource_plan import Candidate
from frenzy.ports import LedgerConflict, LedgerStore


def test_what_was_put_comes_back_equal(ledger: LedgerStore) -> None:
    run = values.run()
    entry, lease, attempt = (
        values.queue_entry(run.run_key),
        values.lease(run.run_key, n1=2),
        values.attempt(run.run_key),
    )
    with ledger.transaction() as tx:
        tx.put_run(run)
        tx.put_queue_entry(entry)
        tx.put_lease(lease)
        tx.put_attempt(attempt)
        tx.add_sample(values.sample(run.run_key))
    with ledger.reading() as tx:
        assert tx.run(run.run_key) == run
        assert tx.queue_entry(run.run_key) == entry
        assert tx.lease(run.run_key, 1) == lease
        assert tx.attempts(run.run_key) == (attempt,)
        assert tx.samples() == (values.sample(run.run_key),)
        assert tx.cluster() == values.cluster()


def test_plan_tables_are_kept_once_and_found_by_their_names(ledger: LedgerStore) -> None:
    one, two = (
        (Candidate(plan=values.plan(number), rank=1, reason=Reason(code=ReasonCode.BEST_PLAN)),) for number in (1, 2)
    )
    with ledger.transaction() as tx:
        name = tx.put_plan_table(one)
        assert tx.put_plan_table(one) == name
        assert tx.plan_tables([name, "unknown", ""]) == {name: one}
        other = tx.put_plan_table(two)
        assert tx.put_plan_table(()) == ""
    with pytest.raises(ZeroDivisionError), ledger.transaction() as tx:
        lost = tx.put_plan_table((*one, *two))
        raise ZeroDivisionError
    with ledger.reading() as tx:
        assert tx.plan_tables([name, other, lost]) == {name: one, other: two}
        assert tx.plan_tables([name]) == {name: one}


def test_a_transaction_reads_its_own_writes(ledger: LedgerStore) -> None:
    run = values.run()
    with ledger.transaction() as tx:
        tx.put_run(run)
        assert tx.run(run.run_key) == run
        changed = replace(run, state=JobState.PLACED)
        tx.put_run(changed)
        assert tx.run(run.run_key) == changed


def test_what_is_unknown_is_none_or_empty(ledger: LedgerStore) -> None:
    with ledger.reading() as tx:
        assert tx.run("x") is None
        assert tx.queue_entry("x") is None
        assert tx.lease("x", 1) is None
        assert (tx.attempts("x"), tx.events("x"), tx.runs(), tx.queue(), tx.held_leases()) == ((), (), (), (), ())


def test_an_error_inside_a_transaction_leaves_nothing_behind(ledger: LedgerStore) -> None:
    run = values.run()
    with pytest.raises(ZeroDivisionError), ledger.transaction() as tx:
        tx.put_run(run)
        tx.put_lease(values.lease(run.run_key, n1=1))
        raise ZeroDivisionError
    with ledger.transaction() as tx:
        assert tx.run(run.run_key) is None
        assert tx.held_leases() == ()


def test_a_reader_cannot_write(ledger: LedgerStore) -> None:
    with pytest.raises(RuntimeError, match="transaction"), ledger.reading() as tx:
        tx.put_run(values.run())


def test_a_reader_sees_one_snapshot_and_does_not_wait_for_the_writer(ledger: LedgerStore) -> None:
    run = values.run()
    with ledger.transaction() as writer:
        writer.put_run(run)
        with ledger.reading() as reader:
            assert reader.runs() == ()
    with ledger.reading() as reader:
        assert reader.runs() == (run,)


def test_runs_come_newest_first_by_state_and_limit(ledger: LedgerStore) -> None:
    runs = [values.run(f"r{i}", created_s=float(i)) for i in range(4)]
    done = values.run("done", created_s=9.0, state=JobState.SUCCEEDED)
    with ledger.transaction() as tx:
        for each in (*runs, done):
            tx.put_run(each)
        assert tx.runs() == (done, *reversed(runs))
        assert tx.runs(limit=2) == (done, runs[3])
        assert tx.runs(states=[JobState.QUEUED], limit=1) == (runs[3],)
        assert tx.runs(states=[]) == ()
        assert tx.runs(dag_run=(runs[1].identity.dag_id, "r1")) == (runs[1],)
        assert tx.runs(dag_run=("another", "r1")) == ()


def test_runs_are_counted_by_state(ledger: LedgerStore) -> None:
    with ledger.transaction() as tx:
        for name, state in (("a", JobState.RUNNING), ("b", JobState.RUNNING), ("c", JobState.FAILED)):
            tx.put_run(replace(values.run(name), state=state))
        assert dict(tx.run_states()) == {JobState.RUNNING: 2, JobState.FAILED: 1}
        tx.put_run(replace(values.run("a"), state=JobState.SUCCEEDED))
    with ledger.reading() as tx:
        assert dict(tx.run_states()) == {JobState.RUNNING: 1, JobState.SUCCEEDED: 1, JobState.FAILED: 1}


def test_the_queue_is_ordered_by_submission_then_key(ledger: LedgerStore) -> None:
    runs = [values.run(f"r{i}") for i in range(3)]
    late = values.run("late")
    with ledger.transaction() as tx:
        for each in (*runs, late):
            tx.put_run(each)
            tx.put_queue_entry(values.queue_entry(each.run_key, 5.0 if each is late else 1.0))
        expected = [*sorted(each.run_key for each in runs), late.run_key]
        assert [each.run_key for each in tx.queue()] == expected
        tx.drop_queue_entry(expected[0])
        tx.drop_queue_entry("never there")
        assert [each.run_key for each in tx.queue()] == expected[1:]


def test_a_queue_entry_needs_its_run(ledger: LedgerStore) -> None:
    with ledger.transaction() as tx:
        with pytest.raises(LedgerConflict, match="no training run"):
            tx.put_queue_entry(values.queue_entry("nobody"))
        assert tx.queue() == ()


def test_slots_leased_on_a_node_never_exceed_its_slots(ledger: LedgerStore) -> None:
    with ledger.transaction() as tx:
        tx.put_lease(values.lease("a", n1=1, n2=2))
        with pytest.raises(LedgerConflict) as refused:
            tx.put_lease(values.lease("b", n1=2))
        assert refused.value.reason.code is ReasonCode.WAITING_FOR_GPUS
        assert "n1" in refused.value.reason.sentence
        tx.put_lease(values.lease("c", n1=1))
        assert [each.run_key for each in tx.held_leases()] == ["a", "c"]


def test_gpus_that_others_hold_are_not_leased(ledger: LedgerStore) -> None:
    with ledger.transaction() as tx:
        tx.put_lease(values.lease("a", n1=1))
        shared = replace(values.node("n1"), num_gpus=4, num_taken=2)
        tx.put_cluster(values.cluster(shared, values.node("n2"), values.node("n3", "large", 1)))
        with pytest.raises(LedgerConflict) as refused:
            tx.put_lease(values.lease("b", n1=2))
        assert refused.value.reason.code is ReasonCode.WAITING_FOR_GPUS
        tx.put_lease(values.lease("c", n1=1))
        assert [each.run_key for each in tx.held_leases()] == ["a", "c"]


def test_a_lease_needs_nodes_of_its_type(ledger: LedgerStore) -> None:
    with ledger.transaction() as tx:
        for wrong in (values.lease("a", n9=1), values.lease("a", n3=1)):
            with pytest.raises(LedgerConflict) as refused:
                tx.put_lease(wrong)
            assert refused.value.reason.code is ReasonCode.WAITING_FOR_NODES


def test_a_run_has_one_lease_that_has_not_ended(ledger: LedgerStore) -> None:
    first = values.lease("a", 1, n1=1)
    with ledger.transaction() as tx:
        tx.put_lease(first)
        with pytest.raises(LedgerConflict) as refused:
            tx.put_lease(values.lease("a", 2, n2=1))
        assert refused.value.reason.code is ReasonCode.WAITING_FOR_OLD_WORKERS
        tx.put_lease(replace(first, state=LeaseState.ENDED, ended_s=5.0, end_reason=values.ENDED))
        tx.put_lease(values.lease("a", 2, n2=1))
        assert [each.attempt for each in tx.held_leases()] == [2]


def test_a_suspect_lease_still_holds_its_slots(ledger: LedgerStore) -> None:
    lease = values.lease("a", n1=2)
    with ledger.transaction() as tx:
        tx.put_lease(lease)
        tx.put_lease(replace(lease, state=LeaseState.SUSPECT))
        with pytest.raises(LedgerConflict):
            tx.put_lease(values.lease("b", n1=1))
        assert tx.held_leases()[0].state is LeaseState.SUSPECT


def test_an_ended_lease_frees_its_slots_and_has_a_reason(ledger: LedgerStore) -> None:
    lease = values.lease("a", n1=2)
    with ledger.transaction() as tx:
        tx.put_lease(lease)
        with pytest.raises(LedgerConflict, match="without a reason"):
            tx.put_lease(replace(lease, state=LeaseState.ENDED, ended_s=2.0))
        tx.put_lease(replace(lease, state=LeaseState.ENDED, ended_s=2.0, end_reason=values.ENDED))
        tx.put_lease(values.lease("b", n1=2))
        ended = tx.lease("a", 1)
        assert ended is not None and ended.end_reason == values.ENDED


def test_a_held_lease_is_renewed_also_when_its_node_has_left(ledger: LedgerStore) -> None:
    lease = values.lease("a", n1=2)
    with ledger.transaction() as tx:
        tx.put_lease(lease)
        tx.put_cluster(values.cluster(values.node("n2")))
        tx.put_lease(replace(lease, heartbeat_s=50.0, expires_s=110.0))
        assert tx.held_leases() == (replace(lease, heartbeat_s=50.0, expires_s=110.0),)


def test_slots_of_a_shrunken_node_are_not_given_away_twice(ledger: LedgerStore) -> None:
    with ledger.transaction() as tx:
        tx.put_lease(values.lease("a", n1=1))
        tx.put_cluster(values.cluster(values.node("n1", num_gpus=1)))
        with pytest.raises(LedgerConflict):
            tx.put_lease(values.lease("b", n1=1))
        tx.put_cluster(values.cluster(values.node("n1", num_gpus=3)))
        tx.put_lease(values.lease("b", n1=2))


def test_held_leases_are_ordered_by_grant_then_key(ledger: LedgerStore) -> None:
    with ledger.transaction() as tx:
        tx.put_lease(values.lease("z", n1=1, granted_s=1.0))
        tx.put_lease(values.lease("b", n1=1, granted_s=2.0))
        tx.put_lease(values.lease("a", n2=1, granted_s=2.0))
        assert [each.run_key for each in tx.held_leases()] == ["z", "a", "b"]


def test_attempts_ascend_and_a_second_put_replaces(ledger: LedgerStore) -> None:
    second, first = values.attempt("a", 2), values.attempt("a", 1)
    changed = replace(first, ended_s=9.0, outcome=Reason(code=ReasonCode.COMPLETED))
    with ledger.transaction() as tx:
        for each in (second, first, changed, values.attempt("other")):
            tx.put_attempt(each)
        assert tx.attempts("a") == (changed, second)


def test_events_keep_their_order(ledger: LedgerStore) -> None:
    events = [Event(run_key="a", time_s=1.0, kind="k", text=f"line {i}\nwith 'quotes' ü", attempt=i) for i in range(3)]
    with ledger.transaction() as tx:
        for each in events:
            tx.add_event(each)
        tx.add_event(Event(run_key="b", time_s=0.0, kind="k", text=""))
        assert tx.events("a") == tuple(events)


def test_samples_come_newest_first_by_family_and_limit(ledger: LedgerStore) -> None:
    old, new = values.sample("a", time_s=1.0), values.sample("b", time_s=3.0)
    other = values.sample("c", time_s=2.0, family="llama")
    with ledger.transaction() as tx:
        for each in (old, new, other, old):
            tx.add_sample(each)
        assert tx.samples() == (new, other, old)
        assert tx.samples(family="gpt2", limit=1) == (new,)


def test_residuals_are_those_of_other_runs_with_the_same_libraries(ledger: LedgerStore) -> None:
    versions = {"torch": "2"}
    learned = replace(
        values.sample("a", time_s=1.0), kind=DeviceKind.CUDA, adapters=True, censored=True, step_time_s=0.75
    )
    newer = replace(
        values.sample("b", 2, time_s=2.0),
        kind=DeviceKind.VIRTUAL,
        peaks=PeakMemory(reserved_bytes=5, device_used_bytes=7),
    )
    older_libraries = replace(learned, run_key="c", versions={"torch": "1"})
    unknown_kind = values.sample("d", time_s=3.0)
    own = replace(newer, run_key="own")
    with ledger.transaction() as tx:
        for each in (learned, newer, older_libraries, unknown_kind, own, newer):
            tx.add_sample(each)
    with ledger.reading() as tx:
        found = tx.residuals(versions=versions_key(versions), except_run="own")
        assert found == (newer.residual, learned.residual)
        assert tx.residuals(versions=versions_key(versions), except_run="own", limit=1) == (newer.residual,)
        assert newer in tx.samples()
    assert learned.residual is not None
    assert learned.residual.group.family == "gpt2+lora"
    assert learned.residual.step_ratio == 0.75 / values.plan().step_time_s


def test_a_scripts_sample_is_read_back_by_its_key_and_is_no_residual(ledger: LedgerStore) -> None:
    other = replace(values.sample("other"), kind=DeviceKind.VIRTUAL)
    sample = replace(other, run_key="script", family="script-1", predicted_bytes=0, is_whole=True)
    with ledger.transaction() as tx:
        tx.add_sample(sample)
        tx.add_sample(other)
    with ledger.reading() as tx:
        assert tx.samples(family="script-1") == (sample,)
        assert len(tx.residuals(versions=versions_key(sample.versions), except_run="own")) == 1


def test_a_new_cluster_replaces_the_old_in_its_order(ledger: LedgerStore) -> None:
    changed = Cluster(gpu_types=(values.LARGE,), nodes=(values.node("z", "large"), values.node("a", "large")))
    with ledger.transaction() as tx:
        tx.put_cluster(changed)
        assert tx.cluster() == changed


def test_pools_mirror_the_types_of_the_cluster(world: World) -> None:
    with world.ledger.transaction() as tx:
        tx.mirror_pools(values.cluster())
    assert world.pools() == {"gpu_small": 4, "gpu_large": 1}
    grown = Cluster(gpu_types=(values.SMALL,), nodes=(values.node("n1", num_gpus=7),))
    with world.ledger.transaction() as tx:
        tx.mirror_pools(grown)
        tx.mirror_pools(grown)
    assert world.pools() == {"gpu_small": 7}


@pytest.mark.parametrize("task_group", ["train", "outer.train", ""])
def test_the_launch_task_gets_its_pool_until_it_starts(world: World, task_group: str) -> None:
    identity = values.identity(task_group=task_group, map_index=3)
    world.add_launch_task(identity)
    with world.ledger.transaction() as tx:
        assert tx.assign_launch_pool(identity, "gpu_small", 2)
    assert world.launch_pool(identity) == ("gpu_small", 2)
    world.start_launch_task(identity)
    with world.ledger.transaction() as tx:
        assert not tx.assign_launch_pool(identity, "gpu_large", 1)
    assert world.launch_pool(identity) == ("gpu_small", 2)


def test_a_rolled_back_grant_leaves_the_launch_task_alone(world: World) -> None:
    identity = values.identity()
    world.add_launch_task(identity)
    before = world.launch_pool(identity)
    with pytest.raises(ZeroDivisionError), world.ledger.transaction() as tx:
        tx.assign_launch_pool(identity, "gpu_small", 2)
        raise ZeroDivisionError
    assert world.launch_pool(identity) == before


def test_active_runs_outlive_an_ended_dag_run(world: World) -> None:
    runs = [values.run("r1"), values.run("r2"), values.run("r3", state=JobState.SUCCEEDED)]
    with world.ledger.transaction() as tx:
        for each in runs:
            tx.put_run(each)
    for each in runs:
        world.set_dag_run(each.identity, "running")
    for state, over in (("running", False), ("failed", True), ("queued", False), ("success", True)):
        world.set_dag_run(runs[1].identity, state)
        world.set_dag_run(runs[2].identity, state)
        with world.ledger.reading() as tx:
            assert tx.outlived() == ((runs[1].run_key,) if over else ())


@pytest.mark.parametrize("map_index", [-1, 3])
def test_a_launch_task_that_is_still_to_come_is_not_over(world: World, map_index: int) -> None:
    identity = values.identity(map_index=map_index)
    world.add_launch_task(identity)
    states = {None: False, "queued": False, "running": False, "up_for_retry": False, "failed": True, "removed": True}
    for state, over in states.items():
        world.set_launch_task(identity, state)
        with world.ledger.reading() as tx:
            assert tx.launch_is_over(identity) is over


def test_writers_take_turns(ledger: LedgerStore) -> None:
    """Each reads a counter and writes it back one higher: without a lock some would be lost."""
    start = values.run()
    with ledger.transaction() as tx:
        tx.put_run(start)

    def count_up() -> None:
        for _ in range(10):
            with ledger.transaction() as tx:
                run = tx.run(start.run_key)
                assert run is not None
                tx.put_run(replace(run, num_attempts=run.num_attempts + 1))

    threads = [threading.Thread(target=count_up) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    with ledger.reading() as tx:
        run = tx.run(start.run_key)
        assert run is not None and run.num_attempts == 40


def test_what_was_read_ahead_is_what_is_there_and_what_is_written_after_it(ledger: LedgerStore) -> None:
    one, two, stranger = values.run("one"), values.run("two"), "no such run"
    first, second = values.attempt(one.run_key), values.attempt(one.run_key, 2)
    with ledger.transaction() as tx:
        tx.put_run(one)
        tx.put_run(two)
        tx.put_attempt(first)
        tx.put_queue_entry(values.queue_entry(two.run_key))
    with ledger.transaction() as tx:
        tx.read_ahead([one.run_key, two.run_key, one.run_key, stranger])
        assert (tx.run(one.run_key), tx.run(two.run_key), tx.run(stranger)) == (one, two, None)
        assert (tx.attempts(one.run_key), tx.attempts(two.run_key), tx.attempts(stranger)) == ((first,), (), ())
        assert (tx.queue_entry(two.run_key), tx.queue_entry(one.run_key)) == (values.queue_entry(two.run_key), None)
        tx.put_run(changed := replace(one, num_attempts=5))
        tx.put_attempt(second)
        tx.drop_queue_entry(two.run_key)
        tx.put_queue_entry(values.queue_entry(one.run_key))
        tx.read_ahead([one.run_key])
        assert (tx.run(one.run_key), tx.runs()) == (
            changed,
            (two, changed) if two.run_key > one.run_key else (changed, two),
        )
        assert tx.attempts(one.run_key) == (first, second)
        assert (tx.queue_entry(two.run_key), tx.queue()) == (None, (values.queue_entry(one.run_key),))


def test_entries_in_the_queue_change_all_at_once_and_others_stay(ledger: LedgerStore) -> None:
    runs = [values.run(name) for name in ("one", "two", "three")]
    entries = [values.queue_entry(each.run_key, submitted_s=number) for number, each in enumerate(runs)]
    with ledger.transaction() as tx:
        for run, entry in zip(runs, entries, strict=True):
            tx.put_run(run)
            tx.put_queue_entry(entry)
    moved = [replace(each, position=number) for number, each in enumerate(entries[:2])]
    with ledger.transaction() as tx:
        tx.put_holds(moved)
        tx.put_holds(())
        assert tx.queue() == (*moved, entries[2])
    with ledger.reading() as tx:
        assert tx.queue() == (*moved, entries[2])


def test_spans_of_leases_and_ends_of_attempts_are_known_of_ended_ones_too(ledger: LedgerStore) -> None:
    old, new = values.run("old"), values.run("new")
    lost = Reason(code=ReasonCode.NODE_LOST)
    with ledger.transaction() as tx:
        tx.put_cluster(values.cluster())
        for run in (old, new):
            tx.put_run(run)
        lease = values.lease(old.run_key, n1=1)
        tx.put_lease(lease)
        tx.put_lease(replace(lease, state=LeaseState.ENDED, ended_s=lease.granted_s + 60, end_reason=lost))
        tx.put_attempt(replace(values.attempt(old.run_key), ended_s=60.0, outcome=lost))
        tx.put_lease(values.lease(new.run_key, n1=1))
        tx.put_attempt(values.attempt(new.run_key))
    with ledger.reading() as tx:
        spans = {each.run_key: each for each in tx.lease_spans(lease.granted_s)}
        assert (spans[old.run_key].num_gpus, spans[old.run_key].ended_s) == (1, lease.granted_s + 60)
        assert spans[new.run_key].ended_s is None
        assert [each.run_key for each in tx.lease_spans(lease.granted_s + 61)] == [new.run_key]
        assert dict(tx.attempt_outcomes()) == {"NODE_LOST": 1}
