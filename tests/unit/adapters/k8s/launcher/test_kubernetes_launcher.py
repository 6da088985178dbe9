"""What the launcher makes of pods that wait, are refused or leave, in memory; on a real server: tests/kubernetes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from kubernetes.client import CoreV1Api
from tests.unit.adapters.k8s.launcher_bench import Bench, running

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.kubernetes_launcher import KubernetesLauncher
from frenzy.adapters.k8s.launcher.pods import Pods
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.launch import LaunchSpec
from frenzy.ports import WorkersAccount, WorkersState

# what is kept


def test_of_a_long_output_its_end_is_kept(bench: Bench) -> None:
    bench.core.lines = [f"line {number}" for number in range(5000)]
    kept = Pods("train", lambda: cast(CoreV1Api, bench.core)).output("any")
    assert kept.splitlines()[0] == "line 3000"
    assert kept.splitlines()[-1] == "line 4999"


def test_of_long_lines_the_last_256_kib_are_kept(bench: Bench) -> None:
    bench.core.lines = ["x" * 1024 for _ in range(1000)] + ["the end"]
    kept = Pods("train", lambda: cast(CoreV1Api, bench.core)).output("any")
    assert len(kept) == 256 * 1024
    assert kept.endswith("the end")


# patience


GATED = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}
NO_NODE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/8 nodes are available",
            "lastTransitionTime": "2026-03-01T12:00:00Z",
        }
    ],
}


def waiting(reason: str) -> dict[str, Any]:
    return {
        "phase": "Pending",
        "containerStatuses": [{"name": labels.CONTAINER, "state": {"waiting": {"reason": reason}}}],
    }


def looks(
    bench: Bench, launcher: KubernetesLauncher, spec: LaunchSpec, status: dict[str, Any], *, for_s: float
) -> None:
    """The pods keep ``status`` for so long, and are looked at once a minute."""
    bench.core.set_status(status)
    for _ in range(round(for_s / 60)):
        launcher.account(spec)
        bench.clock.advance(60)


def test_patience_begins_with_the_hindrance_and_not_with_the_pod(bench: Bench) -> None:
    spec, launcher = bench.spec(), bench.launcher()
    launcher.launch(spec)
    looks(bench, launcher, spec, GATED, for_s=3600)
    looks(bench, launcher, spec, NO_NODE, for_s=300)
    assert launcher.state(spec) is WorkersState.ALIVE
    bench.clock.advance(1)
    launcher.account(spec)
    account = bench.launcher().account(spec)
    assert account.state is WorkersState.GONE
    assert account.reason is not None
    assert account.reason.code is ReasonCode.POD_UNSCHEDULABLE


def test_time_without_a_node_does_not_count_against_the_image(bench: Bench) -> None:
    spec, launcher = bench.spec(), bench.launcher()
    launcher.launch(spec)
    looks(bench, launcher, spec, NO_NODE, for_s=240)
    looks(bench, launcher, spec, waiting("ErrImagePull"), for_s=240)
    assert launcher.state(spec) is WorkersState.ALIVE


def test_an_image_whose_pull_fails_again_and_again_is_given_up_in_time(bench: Bench) -> None:
    spec, launcher = bench.spec(), bench.launcher()
    launcher.launch(spec)
    for reason in ("ErrImagePull", "ContainerCreating", "ImagePullBackOff") * 2:
        looks(bench, launcher, spec, waiting(reason), for_s=60)
    launcher.account(spec)
    reason = launcher.account(spec).reason
    assert reason is not None
    assert reason.code is ReasonCode.IMAGE_PULL_FAILED


def test_why_pods_were_given_up_is_not_forgotten_when_their_kubelets_call_them_failed(bench: Bench) -> None:
    """Kubelets since 1.27 do so of pods that are deleted before a container began, and name no reason of their own."""
    spec, launcher = bench.spec(), bench.launcher()
    bench.core.leaving = True
    launcher.launch(spec)
    looks(bench, launcher, spec, waiting("ErrImagePull"), for_s=420)
    unseen = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
    ended = {"phase": "Failed", "containerStatuses": [{"name": labels.CONTAINER, "state": {"terminated": unseen}}]}
    bench.core.set_status(ended)
    account = launcher.account(spec)
    assert account.state is WorkersState.GONE
    assert account.reason is not None
    assert account.reason.code is ReasonCode.IMAGE_PULL_FAILED


def test_a_pod_on_an_autoscaled_group_may_wait_longer_for_its_node_but_not_for_its_image(bench: Bench) -> None:
    spec, launcher = bench.spec("autoscaled-group"), bench.launcher("autoscaled-group")
    launcher.launch(spec)
    looks(bench, launcher, spec, NO_NODE, for_s=1200)
    assert launcher.state(spec) is WorkersState.ALIVE
    looks(bench, launcher, spec, waiting("ErrImagePull"), for_s=360)
    reason = launcher.account(spec).reason
    assert reason is not None
    assert reason.code is ReasonCode.IMAGE_PULL_FAILED


def test_a_pod_on_an_autoscaled_group_is_given_up_after_its_own_patience(bench: Bench) -> None:
    spec = bench.spec("autoscaled-group")
    launcher = bench.launcher("autoscaled-group", autoscaling_patience_s=600.0)
    launcher.launch(spec)
    looks(bench, launcher, spec, NO_NODE, for_s=720)
    assert launcher.account(spec).state is WorkersState.GONE


# since when they run


def test_workers_run_since_the_last_pods_container_began(bench: Bench) -> None:
    spec, launcher = bench.spec(), bench.launcher()
    launcher.launch(spec)
    first, second = bench.core.pods.values()
    assert launcher.account(spec).running_since_s is None
    first["status"] = running("2026-03-01T12:00:00Z")
    assert launcher.account(spec).running_since_s is None, "the other pod waits"
    second["status"] = running("2026-03-01T12:40:00Z")
    began = datetime(2026, 3, 1, 12, 40, tzinfo=UTC).timestamp()
    assert launcher.account(spec).running_since_s == began
    first["status"] = {"phase": "Succeeded", "containerStatuses": terminated("2026-03-01T12:00:00Z")}
    assert launcher.account(spec).running_since_s == began


def terminated(began: str) -> list[dict[str, Any]]:
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": "2026-03-01T13:00:00Z"}
    return [{"name": labels.CONTAINER, "state": {"terminated": ended}}]


# pods that are gone, and who says why


PREEMPTED = {"reason": "Preempted", "message": "Preempted by train/urgent on node gpu-1"}
LEAVING = {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}


def taken_away(bench: Bench) -> LaunchSpec:
    """The only pod of an attempt ran and is gone."""
    spec = bench.spec("one-gpu")
    bench.launcher("one-gpu").launch(spec)
    bench.core.set_status(running("2026-03-01T12:00:00Z"))
    assert bench.launcher("one-gpu").state(spec) is WorkersState.ALIVE
    bench.core.pods.clear()
    return spec


def code_of(account: WorkersAccount) -> ReasonCode | None:
    return None if account.reason is None else account.reason.code


def test_a_look_that_began_before_the_pods_were_made_does_not_take_them_for_gone(bench: Bench) -> None:
    """Reconciliation looks while the launch task makes them: they would be ended a minute later."""
    spec, other = bench.spec("one-gpu"), bench.launcher("one-gpu")
    listed = bench.core.list_namespaced_pod

    def list_and_be_late(namespace: str, **options: Any) -> Any:
        bench.core.list_namespaced_pod = listed  # type: ignore[method-assign]
        answer = listed(namespace, **options)
        other.launch(spec)
        return answer

    bench.core.list_namespaced_pod = list_and_be_late  # type: ignore[method-assign]
    assert bench.launcher("one-gpu").state(spec) is not WorkersState.GONE
    bench.core.set_status(running("1970-01-12T00:00:00Z"))
    for _ in range(3):
        assert other.state(spec) is WorkersState.ALIVE
        bench.clock.advance(60)


def test_why_a_pod_was_taken_away_may_be_said_after_it_is_gone_and_to_another_process(bench: Bench) -> None:
    spec = taken_away(bench)
    assert bench.launcher("one-gpu").state(spec) is WorkersState.UNKNOWN
    bench.clock.advance(4.9)
    assert bench.launcher("one-gpu").state(spec) is WorkersState.UNKNOWN
    bench.core.events = [PREEMPTED]
    account = bench.launcher("one-gpu").account(spec)
    assert account.state is WorkersState.GONE
    assert (code_of(account), account.lost_nodes) == (ReasonCode.POD_PREEMPTED, ("gpu-1",))


def test_a_pod_of_which_nobody_says_why_it_went_is_gone_after_five_seconds_of_being_missed(bench: Bench) -> None:
    spec = taken_away(bench)
    bench.clock.advance(600)
    assert bench.launcher("one-gpu").state(spec) is WorkersState.UNKNOWN, "nobody had looked"
    bench.clock.advance(5)
    account = bench.launcher("one-gpu").account(spec)
    assert (account.state, code_of(account)) == (WorkersState.GONE, ReasonCode.POD_DELETED)


def test_a_pod_that_has_ended_after_somebody_deleted_it_is_asked_about_while_it_is_still_there(bench: Bench) -> None:
    spec, launcher = bench.spec("one-gpu"), bench.launcher("one-gpu")
    launcher.launch(spec)
    (pod,) = bench.core.pods.values()
    pod["metadata"] |= LEAVING
    pod["status"] = running("2026-03-01T12:00:00Z")
    assert launcher.state(spec) is WorkersState.ALIVE
    ended = {"exitCode": 98, "finishedAt": "2026-03-01T12:00:04Z"}
    pod["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": labels.CONTAINER, "state": {"terminated": ended}}],
    }
    assert launcher.state(spec) is WorkersState.UNKNOWN
    bench.core.events = [PREEMPTED]
    account = launcher.account(spec)
    assert (account.state, code_of(account)) == (WorkersState.GONE, ReasonCode.POD_PREEMPTED)
    result = bench.runs.result(spec.run_key, spec.attempt)
    assert result is not None
    assert result.exit_code == 98, "what its container said is not forgotten"


def test_a_pod_that_somebody_deleted_and_its_peers_have_all_its_time_to_save(bench: Bench) -> None:
    spec, launcher = bench.spec(), bench.launcher()
    launcher.launch(spec)
    bench.core.set_status(running("1970-01-12T00:00:00Z"))
    until = datetime.fromtimestamp(bench.clock.now_s() + 75, UTC).isoformat()
    first, second = bench.core.pods.values()
    first["metadata"] |= {"deletionTimestamp": until, "deletionGracePeriodSeconds": 75}
    bench.clock.advance(74)
    assert launcher.state(spec) is WorkersState.ALIVE
    assert "deletionTimestamp" not in second["metadata"]
    bench.clock.advance(2)
    launcher.account(spec)
    assert "deletionTimestamp" in second["metadata"], "it waits for a peer that is gone"


def test_a_second_deletion_which_moves_the_time_of_leaving_makes_no_silent_node_alive_again(bench: Bench) -> None:
    """API servers of today let it move; a pod's readiness is old there, too, until the node controller has written."""
    spec, launcher = bench.spec("one-gpu"), bench.launcher("one-gpu")
    launcher.launch(spec)
    (pod,) = bench.core.pods.values()
    pod["spec"]["nodeName"] = "gpu-1"
    pod["status"] = running("1970-01-12T00:00:00Z")
    bench.core.silent = {"gpu-1"}
    assert deleted_now(bench, launcher, spec) is WorkersState.ALIVE, "it has its time to leave"
    bench.clock.advance(50)
    assert launcher.state(spec) is WorkersState.UNKNOWN
    assert deleted_now(bench, launcher, spec) is WorkersState.UNKNOWN
    assert deleted_now(bench, bench.launcher("one-gpu"), spec) is WorkersState.UNKNOWN, "nor to another process"


def deleted_now(bench: Bench, launcher: KubernetesLauncher, spec: LaunchSpec) -> WorkersState:
    """Somebody deletes the only pod with 30 s of grace; what a look then finds."""
    (pod,) = bench.core.pods.values()
    until = datetime.fromtimestamp(bench.clock.now_s() + 30, UTC).isoformat()
    pod["metadata"] |= {"deletionTimestamp": until, "deletionGracePeriodSeconds": 30}
    return launcher.state(spec)


def test_pods_that_were_asked_to_end_are_gone_at_once(bench: Bench) -> None:
    spec = taken_away(bench)
    assert bench.launcher("one-gpu").state(spec) is WorkersState.UNKNOWN
    bench.launcher("one-gpu").stop(spec, grace_s=0.0)
    assert bench.launcher("one-gpu").state(spec) is WorkersState.GONE


def test_a_taint_that_was_taken_back_did_not_take_the_pod_away(bench: Bench) -> None:
    spec = taken_away(bench)
    bench.core.events = [{"reason": "TaintManagerEviction", "message": "Cancelling deletion of Pod train/any"}]
    bench.launcher("one-gpu").account(spec)
    bench.clock.advance(5)
    assert code_of(bench.launcher("one-gpu").account(spec)) is ReasonCode.POD_DELETED
