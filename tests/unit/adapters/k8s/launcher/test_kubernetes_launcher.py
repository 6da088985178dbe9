"""What the launcher makes of pods that wait, are refused or leave, in memory; on a real server: tests/kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout
from kubernetes.client import CoreV1Api
from tests.unit.adapters.k8s.fake_core import FakeCore
from tests.unit.adapters.k8s.pod_examples import EXAMPLES

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.kubernetes_launcher import KubernetesLauncher
from frenzy.adapters.k8s.launcher.pods import Pods
from frenzy.adapters.k8s.pod_rules import RunDirectory
from frenzy.adapters.memory import FakeClock
from frenzy.core.values.errors import FrenzyError, PermanentError, Reason, ReasonCode
from frenzy.core.values.job import CheckpointSpec
from frenzy.core.values.launch import LaunchSpec
from frenzy.ports import WorkersAccount, WorkersState


class Bench:
    """A launcher over pods in memory, with a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.core, self.clock, self.runs = FakeCore(), FakeClock(), FsspecRunStore(str(folder))
        self.slept: list[float] = []

    def launcher(
        self, example: str = "two-nodes-of-eight", *, sleep: Callable[[float], None] | None = None, **rules: Any
    ) -> KubernetesLauncher:
        return KubernetesLauncher(
            self.runs,
            replace(EXAMPLES[example].rules, **rules),
            core_api=lambda: cast(CoreV1Api, self.core),
            now_s=self.clock.now_s,
            sleep=sleep or self.slept.append,
        )

    def spec(self, example: str = "two-nodes-of-eight") -> LaunchSpec:
        return EXAMPLES[example].spec


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


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


def running(at: str) -> dict[str, Any]:
    return {
        "phase": "Running",
        "containerStatuses": [{"name": labels.CONTAINER, "state": {"running": {"startedAt": at}}}],
    }


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


# refusals


QUOTA = (403, 'pods "frenzy" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=4, limited: pods=4')
WEBHOOK = (500, 'failed calling webhook "policy.example.org": connection refused')


def refused(bench: Bench, launcher: KubernetesLauncher) -> Reason:
    with pytest.raises(FrenzyError) as caught:
        launcher.launch(bench.spec())
    return caught.value.reason


def test_a_quota_that_let_one_pod_through_is_told_while_that_pod_leaves_and_after(bench: Bench) -> None:
    bench.core.refusals, bench.core.leaving = [None, QUOTA], True
    reason = refused(bench, bench.launcher())
    assert reason.code is ReasonCode.QUOTA_EXCEEDED
    assert bench.slept == [], "another try would not help"
    bench.core.set_status(running("2026-03-01T12:00:00Z"))
    other = bench.launcher()
    assert other.account(bench.spec()) == WorkersAccount(state=WorkersState.ALIVE, reason=reason)
    other.stop(bench.spec(), grace_s=0.0)
    assert other.account(bench.spec()) == WorkersAccount(state=WorkersState.ALIVE, reason=reason)
    bench.core.confirm()
    assert other.account(bench.spec()) == WorkersAccount(state=WorkersState.GONE, reason=reason)


def test_a_refusal_is_forgotten_once_all_pods_are_made(bench: Bench) -> None:
    bench.core.refusals = [QUOTA]
    launcher = bench.launcher()
    refused(bench, launcher)
    launcher.launch(bench.spec())
    assert launcher.account(bench.spec()) == WorkersAccount(state=WorkersState.ALIVE)


BUSY_QUOTA = (409, 'Operation cannot be fulfilled on resourcequotas "pods": the object has been modified')


@pytest.mark.parametrize("failure", [WEBHOOK, BUSY_QUOTA, (429, "the server has received too many requests")])
def test_an_api_server_that_fails_for_a_moment_is_tried_again(bench: Bench, failure: tuple[int, str]) -> None:
    bench.core.refusals = [None, failure, failure, failure]
    bench.launcher().launch(bench.spec())
    assert len(bench.core.pods) == 2
    assert bench.slept == [1.0, 2.0, 4.0]


def test_an_api_server_that_fails_for_a_minute_is_a_reason_of_its_own_and_no_pod_is_left(bench: Bench) -> None:
    bench.core.refusals = [None, *[WEBHOOK] * 100]
    launcher = bench.launcher()
    reason = refused(bench, launcher)
    assert reason.code is ReasonCode.API_UNREACHABLE
    assert "policy.example.org" in reason.detail
    assert sum(bench.slept) == 60.0
    assert bench.core.pods == {}
    assert launcher.account(bench.spec()) == WorkersAccount(state=WorkersState.NOT_STARTED, reason=reason)


def test_a_launch_that_is_stopped_is_not_tried_again(bench: Bench) -> None:
    bench.core.refusals = [WEBHOOK] * 100
    other = bench.launcher()
    refused(bench, bench.launcher(sleep=lambda _seconds: other.stop(bench.spec(), grace_s=0.0)))
    assert bench.core.num_creations == 2


def test_a_launch_whose_time_is_up_while_it_tries_again_leaves_no_pod(bench: Bench) -> None:
    def time_is_up(_seconds: float) -> None:
        raise AirflowTaskTimeout

    bench.core.refusals = [None, WEBHOOK]
    launcher = bench.launcher(sleep=time_is_up)
    with pytest.raises(AirflowTaskTimeout):
        launcher.launch(bench.spec())
    assert bench.core.pods == {}
    assert launcher.state(bench.spec()) is WorkersState.NOT_STARTED


def test_pods_of_an_earlier_try_that_still_leave_are_waited_for_and_not_adopted(bench: Bench) -> None:
    bench.core.refusals, bench.core.leaving = [None, QUOTA], True
    refused(bench, bench.launcher())
    (leaving,) = bench.core.pods.values()

    def confirm(seconds: float) -> None:
        bench.slept.append(seconds)
        if len(bench.slept) == 2:
            bench.core.confirm()

    bench.launcher(sleep=confirm).launch(bench.spec())
    assert bench.slept == [1.0, 2.0]
    assert [each["metadata"].get("deletionTimestamp") for each in bench.core.pods.values()] == [None, None]
    assert "deletionTimestamp" in leaving["metadata"]


def test_only_a_missing_right_is_answered_with_the_role(bench: Bench) -> None:
    forbidden = 'pods is forbidden: User "frenzy" cannot create resource "pods" in API group ""'
    bench.core.refusals = [(403, 'pods "frenzy" is forbidden: violates PodSecurity "restricted:latest"')]
    assert refused(bench, bench.launcher()).remedy is None
    bench.core.refusals = [(403, 'admission webhook "images.example" denied the request: a pod cannot use that image')]
    assert refused(bench, bench.launcher()).remedy is None
    bench.core.refusals = [(403, forbidden)]
    assert "Role" in (refused(bench, bench.launcher()).remedy or "")


def test_what_the_api_server_refuses_for_good_is_not_tried_again(bench: Bench) -> None:
    bench.core.refusals = [(403, "pods is forbidden: User cannot create resource pods")] * 2
    assert refused(bench, bench.launcher()).code is ReasonCode.LAUNCH_FAILED
    assert bench.slept == []


# what jobs can reach


def at(folder: Path, spec: LaunchSpec, warm_start: str) -> LaunchSpec:
    """``spec`` with its run directory below ``folder``, starting from another's model."""
    job = replace(spec.job, checkpoint=CheckpointSpec(warm_start=warm_start))
    return replace(spec, run_dir=f"{folder}/{spec.run_key}", job=job)


def test_a_source_that_is_not_there_is_refused_before_the_kubelet_makes_its_folder(
    bench: Bench, tmp_path: Path
) -> None:
    """It would make it as root: a run to come, whose key somebody guessed, could not write its own folder."""
    runs = RunDirectory(claim="runs", mount_path=str(tmp_path))
    launcher = bench.launcher(run_directory=runs)
    with pytest.raises(PermanentError, match="999.*no such folder") as refused:
        launcher.launch(at(tmp_path, bench.spec(), "999"))
    assert refused.value.reason.code is ReasonCode.BAD_CONFIG_OR_DATA
    assert bench.core.pods == {}
    (tmp_path / "456").mkdir()
    launcher.launch(at(tmp_path, bench.spec(), "456"))
    assert len(bench.core.pods) == 2


def test_the_own_folder_is_there_before_the_pods_are(bench: Bench, tmp_path: Path) -> None:
    """So the kubelet has nothing to make, and the folder belongs to Airflow's user."""
    spec = replace(bench.spec(), run_dir=f"{tmp_path}/{bench.spec().run_key}")
    seen: list[bool] = []

    class Watching(FakeCore):
        def create_namespaced_pod(self, _namespace: str, pod: Any, **_options: Any) -> Any:
            seen.append(Path(spec.run_dir).is_dir())
            return super().create_namespaced_pod(_namespace, pod)

    bench.core = Watching()
    bench.launcher(run_directory=RunDirectory(claim="runs", mount_path=str(tmp_path))).launch(spec)
    assert seen == [True, True]


@pytest.mark.parametrize("written", ["", "{", "[]", '{"pods": 7}', '{"schema_version": 99, "pods": []}'])
@pytest.mark.parametrize("name", ["pods", "refused"])
def test_what_workers_write_over_our_notes_stops_no_look_at_their_pods(bench: Bench, name: str, written: str) -> None:
    launcher, spec = bench.launcher(), bench.spec()
    launcher.launch(spec)
    bench.runs.put_note(spec.run_key, spec.attempt, name, written)
    assert launcher.account(spec).state is WorkersState.ALIVE
    bench.core.pods.clear()
    assert launcher.account(spec).state in (WorkersState.NOT_STARTED, WorkersState.UNKNOWN, WorkersState.GONE)
