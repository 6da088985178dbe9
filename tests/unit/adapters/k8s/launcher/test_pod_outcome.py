"""Why pods ended, from what a cluster writes into their status; also what newer clusters than the tested one write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.pod_outcome import (
    PodEnd,
    PodStage,
    better,
    decisive,
    final_message,
    nodes_to_blame,
    reason_of,
    see,
)
from frenzy.core.values.errors import ReasonCode

REPORTED = yaml.safe_load((Path(__file__).parents[4] / "data/kubernetes/pod_statuses.yaml").read_text(encoding="utf-8"))
ENDED_AT = "2026-03-01T12:00:10Z"


def pod(status: dict[str, Any], *, rank: int = 0, deleted: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": f"frenzy-abc-a1-n{rank}",
        "creationTimestamp": "2026-03-01T12:00:00Z",
        "labels": {labels.NODE_RANK: str(rank)},
    }
    if deleted:
        metadata |= {"deletionTimestamp": "2026-03-01T12:00:38Z", "deletionGracePeriodSeconds": 30}
    return {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": status}


def terminated(exit_code: int, reason: str = "Error", message: str = "") -> list[dict[str, Any]]:
    ended = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": ENDED_AT}
    return [{"name": labels.CONTAINER, "state": {"terminated": ended}}]


def disrupted(reason: str) -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": f"because of {reason}"}]


def code_of(status: dict[str, Any], *, asked: bool = False, deleted: bool = False) -> ReasonCode | None:
    end = see(pod(status, deleted=deleted), asked=asked).end
    return None if end is None else end.code


@pytest.mark.parametrize("report", REPORTED, ids=[each["name"] for each in REPORTED])
def test_what_newer_clusters_left_in_reports_of_their_users_has_its_reason(report: dict[str, Any]) -> None:
    assert code_of(report["status"], deleted=report.get("deleted", False)) == report["code"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"reason": "Evicted", "message": "The node was low on resource: memory."}, ReasonCode.POD_EVICTED),
        ({"reason": "NodeLost"}, ReasonCode.NODE_LOST),
        ({"reason": "Terminated", "message": "in response to imminent node shutdown"}, ReasonCode.NODE_LOST),
        ({"reason": "DeadlineExceeded"}, ReasonCode.DEADLINE_EXCEEDED),
        ({"reason": "OutOfnvidia.com/gpu"}, ReasonCode.POD_UNSCHEDULABLE),
        ({"reason": "UnexpectedAdmissionError"}, ReasonCode.POD_UNSCHEDULABLE),
        ({"reason": "TopologyAffinityError", "message": "Resources cannot be allocated"}, ReasonCode.POD_UNSCHEDULABLE),
        ({"conditions": disrupted("PreemptionByScheduler")}, ReasonCode.POD_PREEMPTED),
        ({"conditions": disrupted("DeletionByTaintManager")}, ReasonCode.NODE_LOST),
        ({"conditions": disrupted("EvictionByEvictionAPI")}, ReasonCode.POD_EVICTED),
        ({"conditions": disrupted("DeletionByDeviceTaintManager")}, ReasonCode.POD_EVICTED),
        ({"conditions": disrupted("DeletionByPodGC")}, ReasonCode.NODE_LOST),
        ({"containerStatuses": terminated(137, "ContainerStatusUnknown")}, ReasonCode.NODE_LOST),
        ({"containerStatuses": terminated(137, "OOMKilled")}, ReasonCode.HOST_OUT_OF_MEMORY),
        ({"containerStatuses": terminated(139)}, ReasonCode.WORKER_KILLED),
        ({"containerStatuses": terminated(3)}, ReasonCode.WORKER_CRASHED),
    ],
)
def test_a_pods_status_says_what_ended_it(status: dict[str, Any], code: ReasonCode) -> None:
    assert code_of({"phase": "Failed", **status}) is code


@pytest.mark.parametrize(
    ("exit_code", "reason", "how"),
    [
        (137, "Error", "was killed by SIGKILL, which nobody had asked for"),
        (137, "OOMKilled", "ended with OOMKilled"),
        (139, "Error", "was killed by SIGSEGV"),
        (3, "Error", "ended with 3"),
    ],
)
def test_how_a_container_ended_is_told_before_what_it_wrote_last(exit_code: int, reason: str, how: str) -> None:
    for words, end in (("step 7", ": step 7"), ("", ".")):
        found = see(pod({"phase": "Failed", "containerStatuses": terminated(exit_code, reason, words)}), asked=False)
        assert found.end is not None
        assert found.end.detail.endswith(f": The container {how}{end}")


def test_a_worker_that_was_asked_to_end_and_was_killed_says_so() -> None:
    found = see(pod({"phase": "Failed", "containerStatuses": terminated(137, "Error", "step 7")}), asked=True)
    assert found.end is not None
    assert final_message(found.end).endswith("The container was killed by SIGKILL: step 7")


@pytest.mark.parametrize("exit_code", [0, 96, 97, 99])
def test_what_the_trainer_says_goes_before_what_was_done_to_its_pod(exit_code: int) -> None:
    status = {"phase": "Failed", "containerStatuses": terminated(exit_code), "conditions": disrupted("DeletionByPodGC")}
    assert code_of(status) is code_of({"phase": "Failed", "containerStatuses": terminated(exit_code)})


def test_a_checkpoint_that_the_cluster_forced_is_the_clusters_doing() -> None:
    saved = {"phase": "Failed", "containerStatuses": terminated(98)}
    assert code_of(saved) is ReasonCode.CHECKPOINTED_ON_REQUEST
    assert code_of({**saved, "conditions": disrupted("PreemptionByScheduler")}) is ReasonCode.POD_PREEMPTED
    assert code_of(saved, deleted=True) is ReasonCode.POD_DELETED
    assert code_of(saved, deleted=True, asked=True) is ReasonCode.CHECKPOINTED_ON_REQUEST


def test_what_kueue_stopped_is_a_loss_with_its_words_and_no_fault_of_the_node() -> None:
    stopped = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvicted", "message": "Preempted"}
    end = see(pod({"phase": "Running", "conditions": [stopped]}, deleted=True), asked=False).end
    assert end is not None
    assert (end.code, "WorkloadEvicted" in end.detail) == (ReasonCode.POD_DELETED, True)
    assert nodes_to_blame([end], ("n1",)) == ()


@pytest.mark.parametrize("exit_code", [1, 137, 143])
def test_a_worker_that_ended_after_somebody_deleted_its_pod_was_deleted(exit_code: int) -> None:
    ended = {"phase": "Failed", "containerStatuses": terminated(exit_code)}
    assert code_of(ended, deleted=True) is ReasonCode.POD_DELETED
    out_of_memory = {"phase": "Failed", "containerStatuses": terminated(exit_code, "OOMKilled")}
    assert code_of(out_of_memory, deleted=True) is ReasonCode.HOST_OUT_OF_MEMORY


def test_a_worker_that_had_ended_when_its_pod_was_deleted_ended_by_itself() -> None:
    crashed = pod({"phase": "Failed", "containerStatuses": terminated(1)}, deleted=True)
    crashed["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:41Z"
    end = see(crashed, asked=False).end
    assert end is not None
    assert end.code is ReasonCode.WORKER_CRASHED


def test_an_end_that_no_kubelet_saw_is_that_of_the_node_only_if_nobody_deleted_the_pod() -> None:
    """As kubelets since 1.27 write it of a pod that was deleted before its container began."""
    unseen = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
    status = {"phase": "Failed", "containerStatuses": [{"name": labels.CONTAINER, "state": {"terminated": unseen}}]}
    assert code_of(status) is ReasonCode.NODE_LOST
    assert code_of(status, deleted=True) is ReasonCode.POD_DELETED
    assert code_of(status, deleted=True, asked=True) is None
    assert code_of({**status, "reason": "Evicted"}) is ReasonCode.POD_EVICTED
    assert code_of({**status, "conditions": disrupted("PreemptionByScheduler")}, deleted=True) is (
        ReasonCode.POD_PREEMPTED
    )
    end = see(pod(status), asked=False).end
    assert end is not None
    assert end.exit_code is None, "137 is no code of the trainer's"


def test_peers_of_a_deleted_pod_that_crash_within_its_time_to_stop_do_not_decide() -> None:
    leaving = {"phase": "Running", "containerStatuses": [{"name": labels.CONTAINER, "state": {"running": {}}}]}
    deleted, peer = pod(leaving, rank=1, deleted=True), pod({"phase": "Failed", "containerStatuses": terminated(1)})
    ends = [end for each in (deleted, peer) if (end := see(each, asked=False).end) is not None]
    assert ends[0].at_s == ends[1].at_s - 2.0
    found = decisive(ends)
    assert found is not None
    assert found.code is ReasonCode.POD_DELETED


def test_an_evicted_pod_ended_when_its_kubelet_wrote_so_and_not_before_its_peer_failed() -> None:
    evicted = pod({"phase": "Failed", "reason": "Evicted"}, rank=1)
    evicted["metadata"]["managedFields"] = [
        {"manager": "us", "time": "2026-03-01T12:00:00Z", "fieldsV1": {"f:spec": {}}},
        {"manager": "kubelet", "time": "2026-03-01T12:00:20Z", "fieldsV1": {"f:status": {"f:phase": {}}}},
        {"manager": "somebody", "time": "2026-03-01T12:00:40Z", "fieldsV1": {"f:metadata": {}}},
    ]
    failed = pod({"phase": "Failed", "containerStatuses": terminated(97)})
    ends = [end for each in (evicted, failed) if (end := see(each, asked=False).end) is not None]
    assert [end.at_s - ends[1].at_s for end in ends] == [10.0, 0.0]
    assert decisive(ends) == ends[1]


def test_a_worker_killed_on_our_request_did_not_run_out_of_memory() -> None:
    killed = {"phase": "Failed", "containerStatuses": terminated(137)}
    assert code_of(killed) is ReasonCode.HOST_OUT_OF_MEMORY
    assert code_of(killed, asked=True) is ReasonCode.WORKER_KILLED


def test_a_pod_that_we_told_to_leave_needs_no_reason() -> None:
    running = {"phase": "Running", "containerStatuses": [{"name": labels.CONTAINER, "state": {"running": {}}}]}
    assert see(pod(running, deleted=True), asked=True).stage is PodStage.LEAVING
    assert code_of(running, asked=True, deleted=True) is None
    assert code_of(running, deleted=True) is ReasonCode.POD_DELETED


def test_a_gate_or_an_ordinary_start_hinders_nothing() -> None:
    gated = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
    }
    creating = [{"name": labels.CONTAINER, "state": {"waiting": {"reason": "ContainerCreating"}}}]
    assert see(pod(gated), asked=False).hindrance is None
    assert see(pod({"phase": "Pending", "containerStatuses": creating}), asked=False).hindrance is None


def test_a_sidecar_that_goes_on_keeps_no_workers_alive_that_have_ended() -> None:
    proxy = {"name": "istio-proxy", "state": {"running": {"startedAt": ENDED_AT}}}
    kept = {"phase": "Running", "containerStatuses": [proxy, *terminated(96)]}
    seen = see(pod(kept), asked=False)
    assert seen.end is not None
    assert (seen.stage, seen.end.code) == (PodStage.ENDED, ReasonCode.BUDGET_EXCEEDED)
    alone = {"phase": "Running", "containerStatuses": terminated(137)}
    assert see(pod(alone), asked=False).stage is not PodStage.ENDED, "its kubelet has yet to say why"


def test_an_image_of_a_container_that_a_webhook_put_first_is_waited_for_like_our_own() -> None:
    waiting = {"name": "istio-init", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    ours = {"name": labels.CONTAINER, "state": {"waiting": {"reason": "PodInitializing"}}}
    status = {"phase": "Pending", "initContainerStatuses": [waiting], "containerStatuses": [ours]}
    hindrance = see(pod(status), asked=False).hindrance
    assert hindrance is not None
    assert hindrance.code is ReasonCode.IMAGE_PULL_FAILED


def test_a_container_that_a_webhook_put_first_and_that_failed_is_named() -> None:
    failed = {"exitCode": 1, "reason": "Error", "message": "iptables: denied", "finishedAt": ENDED_AT}
    first = {"name": "istio-init", "state": {"terminated": failed}}
    ours = {"name": labels.CONTAINER, "state": {"waiting": {"reason": "PodInitializing"}}}
    status = {"phase": "Failed", "initContainerStatuses": [first], "containerStatuses": [ours]}
    end = see(pod(status), asked=False).end
    assert end is not None
    assert end.detail.endswith("Its init container istio-init ended with 1: iptables: denied")
    reason = reason_of(end)
    assert reason is not None
    assert reason.code is ReasonCode.INIT_CONTAINER_FAILED
    assert "a webhook of the cluster" in (reason.remedy or "")


def test_a_sidecar_that_ends_because_its_pod_was_deleted_is_not_named_as_what_failed_first() -> None:
    sidecar = {"name": "istio-proxy", "state": {"terminated": {"exitCode": 143, "finishedAt": ENDED_AT}}}
    end = see(pod({"phase": "Running", "initContainerStatuses": [sidecar]}, deleted=True), asked=False).end
    assert end is not None
    assert "istio-proxy" not in end.detail


def test_a_sidecar_of_a_service_mesh_does_not_decide() -> None:
    sidecar = {"name": "istio-proxy", "state": {"terminated": {"exitCode": 1, "finishedAt": ENDED_AT}}}
    assert (
        code_of({"phase": "Failed", "containerStatuses": [sidecar, *terminated(97)]}) is ReasonCode.CUDA_OUT_OF_MEMORY
    )


_CODES = [
    ReasonCode.COMPLETED,
    ReasonCode.CHECKPOINTED_ON_REQUEST,
    ReasonCode.WORKER_CRASHED,
    ReasonCode.WORKER_KILLED,
    ReasonCode.CUDA_OUT_OF_MEMORY,
    ReasonCode.POD_EVICTED,
    ReasonCode.NODE_LOST,
    ReasonCode.POD_DELETED,
]
ends = st.lists(
    st.builds(
        PodEnd,
        pod=st.sampled_from(["p0", "p1", "p2"]),
        node_rank=st.integers(0, 2),
        code=st.sampled_from(_CODES),
        detail=st.just(""),
        at_s=st.floats(0, 100),
        exit_code=st.sampled_from([None, 1, 97]),
    ),
    max_size=5,
)


@given(ends, st.randoms())
def test_the_order_in_which_ends_are_noticed_does_not_matter(found: list[PodEnd], order: Any) -> None:
    shuffled = list(found)
    order.shuffle(shuffled)
    one, other = decisive(found), decisive(shuffled)
    assert (one and (one.code in (ReasonCode.WORKER_CRASHED, ReasonCode.WORKER_KILLED), one.at_s)) == (
        other and (other.code in (ReasonCode.WORKER_CRASHED, ReasonCode.WORKER_KILLED), other.at_s)
    )


@given(ends)
def test_lost_peers_never_hide_what_was_lost(found: list[PodEnd]) -> None:
    lost = PodEnd(pod="p9", node_rank=9, code=ReasonCode.NODE_LOST, detail="", at_s=1e6)
    crashes = [each for each in found if each.code in (ReasonCode.WORKER_CRASHED, ReasonCode.COMPLETED)]
    assert decisive([*crashes, lost]) == lost


@given(ends)
def test_a_second_look_at_an_end_never_knows_less(found: list[PodEnd]) -> None:
    for before in found:
        for now in found:
            if reason_of(before) is not None and before.code is not ReasonCode.POD_DELETED:
                assert reason_of(better(before, now)) is not None


def test_only_nodes_of_the_placement_are_blamed_and_never_for_what_the_job_did() -> None:
    def end(rank: int, code: ReasonCode) -> PodEnd:
        return PodEnd(pod=f"p{rank}", node_rank=rank, code=code, detail="", at_s=1.0)

    found = [end(0, ReasonCode.CUDA_OUT_OF_MEMORY), end(1, ReasonCode.POD_EVICTED), end(7, ReasonCode.NODE_LOST)]
    assert nodes_to_blame(found, ("a", "b", "c")) == ("b",)


@pytest.mark.parametrize("message", ["", "not JSON", '{"detail": ""}', "[1]", '"text"', "[" * 4096])
def test_a_termination_message_of_any_form_leaves_a_sentence(message: str) -> None:
    end = PodEnd(pod="p", node_rank=0, code=ReasonCode.WORKER_CRASHED, detail="Pod p: gone.", at_s=1.0, message=message)
    assert final_message(end) == "Pod p: gone."


def test_a_termination_message_says_only_what_can_be_sent() -> None:
    """Half a character has the API refuse the end of the attempt, whose GPUs then stay held."""
    message = r'{"detail": "over\ud800 \u001b[2Jthere"}'
    end = PodEnd(pod="p", node_rank=0, code=ReasonCode.WORKER_CRASHED, detail="", at_s=1.0, message=message)
    assert final_message(end) == "p: over [2Jthere"
