"""What the cluster takes away is nobody's fault: the run goes on elsewhere, as long as it gets further."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract import values

from frenzy.core.lifecycle.disruptions import LOSS_REASONS, lost_nodes, with_node_of_rank
from frenzy.core.lifecycle.nodes_to_spare import with_nodes_to_spare
from frenzy.core.lifecycle.reschedule import classify, final_state, follow_up, ladder
from frenzy.core.runs.ledger import Attempt, JobState, NextAttempt
from frenzy.core.scheduling import HasPolicy
from frenzy.core.values.cluster import Cluster, NodeAllocation, NodeState
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import MemoryPressureSpec
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.resource_plan import Candidate, ResourcePlan

RUN = dataclasses.replace(
    values.run(), job=dataclasses.replace(values.job(), on_memory_pressure=MemoryPressureSpec(max_reschedules=0))
)


def attempts(*codes: ReasonCode, checkpoints: tuple[int, ...] = (), lost: tuple[str, ...] = ()) -> tuple[Attempt, ...]:
    """One attempt for each code, each resumed from the checkpoint of the one before."""
    saved: int | None = None
    made: list[Attempt] = []
    for number, code in enumerate(codes, start=1):
        begun = saved
        saved = checkpoints[number - 1] if number <= len(checkpoints) else saved
        made.append(
            dataclasses.replace(
                values.attempt("abc", number),
                result=None,
                outcome=Reason(code=code),
                ended_s=100.0 * number,
                checkpoint_step=saved,
                lost_nodes=lost[number - 1 : number],
                next_attempt=dataclasses.replace(values.next_attempt(number), checkpoint_step=begun),
            )
        )
    return tuple(made)


@pytest.mark.parametrize("code", sorted(LOSS_REASONS))
def test_a_loss_is_followed_by_another_attempt_though_no_move_is_left(code: ReasonCode) -> None:
    following = follow_up(RUN, attempts(code, checkpoints=(20,), lost=("n1",)))
    assert isinstance(following, NextAttempt)
    assert (following.checkpoint_step, following.excluded_nodes) == (20, ("n1",))
    assert following.excluded_shapes == (), "the plan was not at fault"


def test_a_run_that_gets_further_may_be_lost_any_number_of_times() -> None:
    codes = [ReasonCode.NODE_LOST] * 40
    assert isinstance(follow_up(RUN, attempts(*codes, checkpoints=tuple(range(1, 41)))), NextAttempt)


def test_a_run_that_gets_no_further_fails_with_what_took_its_workers_away() -> None:
    following = follow_up(RUN, attempts(*[ReasonCode.POD_EVICTED] * 5))
    assert isinstance(following, Reason)
    assert following.code is ReasonCode.POD_EVICTED
    assert final_state(following) is JobState.FAILED


def test_an_image_that_a_second_node_cannot_pull_fails_the_run() -> None:
    assert isinstance(follow_up(RUN, attempts(ReasonCode.IMAGE_PULL_FAILED)), NextAttempt)
    following = follow_up(RUN, attempts(ReasonCode.IMAGE_PULL_FAILED, ReasonCode.IMAGE_PULL_FAILED))
    assert isinstance(following, Reason)
    assert final_state(following) is JobState.FAILED_SETUP


def test_gpus_without_code_for_them_are_left_for_another_type_and_fail_the_run_only_when_met_again() -> None:
    first, second, third = attempts(*[ReasonCode.GPU_NOT_SUPPORTED] * 3)
    large = dataclasses.replace(second, plan=values.plan(gpu_type="large"))
    following = follow_up(RUN, (first,))
    assert isinstance(following, NextAttempt)
    plans = (values.plan(1), values.plan(2), values.plan(2, "large"))
    found = tuple(Candidate(plan=each, rank=1, reason=Reason(code=ReasonCode.BEST_PLAN)) for each in plans)
    assert ladder(found, following).plans == plans[2:]
    assert ladder(found[:2], following).plans == plans[:2], "there is no other type"
    assert isinstance(follow_up(RUN, (first, large)), NextAttempt)
    assert isinstance(follow_up(RUN, (first, second)), Reason)
    assert isinstance(follow_up(RUN, (first, large, third)), Reason)


def test_a_quota_is_waited_for_without_end_and_with_pauses_that_grow_to_a_minute() -> None:
    pauses = []
    for number in range(1, 30):
        tried = attempts(*[ReasonCode.QUOTA_EXCEEDED] * number)
        following = follow_up(RUN, tried)
        assert isinstance(following, NextAttempt)
        pauses.append(following.not_before_s - 100.0 * number)
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < pauses[-1] == 60.0


def test_an_api_server_that_makes_no_pods_is_waited_for_with_pauses_but_not_for_ever() -> None:
    away = ReasonCode.API_UNREACHABLE
    first = follow_up(RUN, attempts(away))
    assert isinstance(first, NextAttempt)
    assert first.not_before_s > 100.0
    assert isinstance(follow_up(RUN, attempts(*[away] * 29)), NextAttempt)
    last = follow_up(RUN, attempts(*[away] * 30))
    assert isinstance(last, Reason)
    assert final_state(last) is JobState.FAILED_SETUP


def test_losses_before_and_after_the_api_server_was_away_add_up() -> None:
    lost, away = ReasonCode.POD_EVICTED, ReasonCode.API_UNREACHABLE
    assert isinstance(follow_up(RUN, attempts(*[lost] * 4, away, away)), NextAttempt)
    assert isinstance(follow_up(RUN, attempts(*[lost] * 4, away, lost)), Reason)


def test_after_a_first_loss_the_run_starts_again_at_once() -> None:
    following = follow_up(RUN, attempts(ReasonCode.NODE_LOST))
    assert isinstance(following, NextAttempt)
    assert following.not_before_s == 0.0


def test_a_failure_of_the_job_after_losses_is_charged_as_ever() -> None:
    following = follow_up(RUN, attempts(ReasonCode.NODE_LOST, ReasonCode.WORKER_CRASHED))
    assert isinstance(following, Reason)
    assert following.code is ReasonCode.RESCHEDULE_BUDGET_SPENT


@given(st.lists(st.sampled_from(["n1", "n2", "n3"]), min_size=1, max_size=6))
def test_no_node_that_was_lost_is_forgotten(names: list[str]) -> None:
    codes = [ReasonCode.NODE_LOST] * len(names)
    assert lost_nodes(attempts(*codes, lost=tuple(names))) == tuple(sorted(set(names)))


GROUP_OF_TWO = dataclasses.replace(values.plan(2), tp=2, dp=1)


def left_to_it(wanted: ResourcePlan, **changes: Any) -> tuple[str, ...]:
    """Nodes that a run lost on n1 is still kept from, where the only other node is n2 with ``changes``."""
    following = dataclasses.replace(values.next_attempt(), excluded_nodes=("n1",))
    whole = values.cluster()  # n1 and n2 with two small GPUs each
    nodes = tuple(dataclasses.replace(each, **changes) if each.name == "n2" else each for each in whole.nodes)
    return with_nodes_to_spare(following, [wanted], Cluster(whole.gpu_types, nodes), HasPolicy()).excluded_nodes


def test_nodes_are_avoided_only_while_others_have_gpus_enough() -> None:
    assert left_to_it(values.plan(2)) == ("n1",)
    assert left_to_it(values.plan(4)) == ()


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        (values.plan(2), {"state": NodeState.DRAINING}),
        (values.plan(2), {"num_taken": 1}),
        (values.plan(1), {"num_cpus": 0.5}),
        (GROUP_OF_TWO, {"num_gpus": 1}),
    ],
    ids=["drained", "others hold GPUs", "CPUs", "tensor-parallel group"],
)
def test_a_node_is_used_again_where_the_others_could_not_run_the_job(
    wanted: ResourcePlan, changes: dict[str, Any]
) -> None:
    assert left_to_it(wanted) == ("n1",)
    assert left_to_it(wanted, **changes) == ()


def test_what_the_cluster_knows_explains_a_crash_and_an_unasked_checkpoint_but_no_success() -> None:
    lost = Reason(code=ReasonCode.NODE_LOST, detail="n1")
    asked = Reason(code=ReasonCode.MOVED_TO_GROW)
    ended = {code: AttemptResult(exit_code=code, last_step=5, total_steps=10) for code in (0, 1, 98)}
    assert classify(ended[1], None, lost) == lost
    assert classify(ended[98], None, lost) == lost
    assert classify(ended[98], asked, lost) == asked
    assert classify(ended[0], None, lost).code is ReasonCode.COMPLETED
    early = dataclasses.replace(ended[0], total_steps=5, stopped_early=True, detail="No lower loss.")
    assert classify(early, asked, lost) == Reason(code=ReasonCode.STOPPED_EARLY, detail="No lower loss.")
    assert classify(None, None, lost) == lost
    assert classify(None, asked, None) == asked, "asked to stop, and ended before it could say so"


ALLOCATIONS = (NodeAllocation(node="n1", num_gpus=2), NodeAllocation(node="n2", num_gpus=2))


@pytest.mark.parametrize(
    ("code", "rank", "lost"),
    [
        (ReasonCode.GPU_FAULT, 1, ("n1",)),
        (ReasonCode.DRIVER_TOO_OLD, 2, ("n2",)),
        (ReasonCode.GPU_UNAVAILABLE, None, ()),
        (ReasonCode.GPU_UNAVAILABLE, 9, ()),
        (ReasonCode.CUDA_OUT_OF_MEMORY, 2, ()),
        (ReasonCode.COLLECTIVE_TIMEOUT, 2, ()),
    ],
)
def test_the_node_of_a_faulty_gpu_is_remembered(code: ReasonCode, rank: int | None, lost: tuple[str, ...]) -> None:
    assert with_node_of_rank((), ALLOCATIONS, code=code, failing_rank=rank) == lost
    assert set(with_node_of_rank(("n2",), ALLOCATIONS, code=code, failing_rank=rank)) == {"n2", *lost}
