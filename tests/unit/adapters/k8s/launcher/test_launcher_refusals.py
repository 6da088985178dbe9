"""What the launcher makes of refusals, and what jobs can reach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout
from tests.unit.adapters.k8s.fake_core import FakeCore
from tests.unit.adapters.k8s.launcher_bench import Bench, running

from frenzy.adapters.k8s.launcher.kubernetes_launcher import KubernetesLauncher
from frenzy.adapters.k8s.pod_rules import RunDirectory
from frenzy.core.values.errors import FrenzyError, PermanentError, Reason, ReasonCode
from frenzy.core.values.job import CheckpointSpec
from frenzy.core.values.launch import LaunchSpec
from frenzy.ports import WorkersAccount, WorkersState

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
