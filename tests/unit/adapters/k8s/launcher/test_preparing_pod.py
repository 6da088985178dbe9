"""Data are prepared in a pod like the workers', without a GPU, that sees its own run and its team's data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from kubernetes.client import CoreV1Api
from tests.in_memory.sources import FakeClock
from tests.unit.adapters.k8s.fake_core import FakeCore
from tests.unit.adapters.k8s.launcher_bench import running
from tests.unit.adapters.k8s.pod_examples import EXAMPLES, OBJECT_STORE, PLAIN, RUN_KEY, RUN_ROOT, container, job

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.kubernetes_preparer import KubernetesPreparer
from frenzy.adapters.k8s.launcher.pod_manifest import pods_of
from frenzy.adapters.k8s.launcher.preparing_pod import preparing_pod
from frenzy.adapters.k8s.pod_rules import PodRules, parse_pod_rules
from frenzy.core.values.errors import PermanentError, ReasonCode
from frenzy.core.values.job import ModelSpec
from frenzy.core.values.prepared_data import PreparedData, PreparingSpec
from frenzy.ports import WorkersState

SPEC = PreparingSpec(run_key=RUN_KEY, number=2, job=job(), run_dir=f"{RUN_ROOT}/{RUN_KEY}")
FOUND = PreparedData(
    shards="a" * 32, tokenizer="b" * 32, digest="c" * 32, num_tokens=9, num_train=1, num_validation=0, total_steps=10
)
RULES = parse_pod_rules(PLAIN)
SHARED = parse_pod_rules(f"{PLAIN}preparing_pods: 3\n")


def mounts(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["mountPath"]: each for each in container(pod)["volumeMounts"]}


def test_it_asks_for_no_gpu_and_goes_to_no_gpu_node_by_itself() -> None:
    pod = preparing_pod(SPEC, RULES)
    assert set(container(pod)["resources"]["requests"]) == {"cpu", "memory", "ephemeral-storage"}
    assert "cpu" not in container(pod)["resources"]["limits"]
    assert "tolerations" not in pod["spec"]
    assert "affinity" not in pod["spec"]


def test_it_is_as_secure_as_the_workers() -> None:
    pod, worker = preparing_pod(SPEC, RULES), pods_of(EXAMPLES["one-gpu"].spec, RULES)[0]
    for name in ("securityContext", "automountServiceAccountToken", "restartPolicy", "serviceAccountName"):
        assert pod["spec"][name] == worker["spec"][name]
    assert container(pod)["securityContext"] == container(worker)["securityContext"]


def test_of_all_runs_it_writes_its_own_folder_and_its_teams_data() -> None:
    found = mounts(preparing_pod(SPEC, RULES))
    team = SPEC.data.folder
    assert team.startswith(f"{RUN_ROOT}/.data/research-")
    assert {place for place, each in found.items() if each["name"] == "frenzy-runs"} == {SPEC.run_dir, team}
    assert found[team]["subPath"] == team.removeprefix(f"{RUN_ROOT}/")


def test_it_reads_the_run_that_its_tokenizer_comes_from_and_writes_none_of_it() -> None:
    model = ModelSpec(config={"model_type": "gpt2"}, tokenizer=f"{RUN_ROOT}/other/model")
    found = mounts(preparing_pod(replace(SPEC, job=job(model=model)), RULES))[f"{RUN_ROOT}/other"]
    assert (found["name"], found["subPath"], found["readOnly"]) == ("frenzy-runs", "other", True)


def test_workers_read_their_teams_data_and_write_none_of_it() -> None:
    spec = EXAMPLES["one-gpu"].spec
    without, given = (mounts(pods_of(each, RULES)[0]) for each in (spec, replace(spec, prepared=FOUND)))
    place = spec.data.folder
    assert place not in without
    assert given[place]["readOnly"] is True


def test_an_object_store_is_mounted_nowhere() -> None:
    pod = preparing_pod(replace(SPEC, run_dir="s3://bucket/runs/r1"), parse_pod_rules(OBJECT_STORE))
    assert set(mounts(pod)) == {"/tmp", "/home/frenzy"}
    assert container(pod)["args"] == ["--request", "s3://bucket/runs/r1/preparing-2/request.json"]


def test_it_has_the_jobs_variables_and_secrets() -> None:
    found = {each["name"]: each for each in container(preparing_pod(SPEC, RULES))["env"]}
    assert found["EXTRA"]["value"] == "cost is $$(PRICE)"
    assert found["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
    with pytest.raises(PermanentError, match="HOME"):
        preparing_pod(replace(SPEC, job=job(secrets={"HOME": "k8s:hub/token"})), RULES)


def test_overlays_for_any_gpu_hold_for_it_and_those_for_one_type_do_not() -> None:
    overlay = "{patch: {metadata: {labels: {%s: yes-it-is}}}, when: %s, resources_per_gpu: {rdma/ib: 1}}"
    text = f"{PLAIN}overlays: [{overlay % ('all', '{}')}, {overlay % ('h100', '{gpu_types: [h100]}')}]\n"
    pod = preparing_pod(SPEC, parse_pod_rules(text))
    assert "all" in pod["metadata"]["labels"]
    assert "h100" not in pod["metadata"]["labels"]
    assert "rdma/ib" not in container(pod)["resources"]["requests"]


def test_nodes_for_it_may_be_chosen_apart_from_those_of_workers() -> None:
    text = f"{PLAIN}node_selector: {{pool: gpus}}\n"
    assert preparing_pod(SPEC, parse_pod_rules(text))["spec"]["nodeSelector"]["pool"] == "gpus"
    other = parse_pod_rules(f"{text}preparing_node_selector: {{pool: cpus}}\npreparing_memory: 8 GiB\n")
    pod = preparing_pod(SPEC, other)
    assert pod["spec"]["nodeSelector"] == {"pool": "cpus", "kubernetes.io/arch": "amd64"}
    assert container(pod)["resources"]["limits"]["memory"] == "8192Mi"


def test_pods_that_share_the_work_are_alike_but_for_name_rank_and_arguments() -> None:
    first, second = (preparing_pod(SPEC, SHARED, rank) for rank in (0, 1))
    assert container(first)["args"][-4:] == ["--rank", "0", "--count", "3"]
    assert container(second)["args"][-4:] == ["--rank", "1", "--count", "3"]
    assert second["metadata"]["name"] == f"{first['metadata']['name']}-1"
    assert second["metadata"]["labels"] == {**first["metadata"]["labels"], labels.PREPARING_RANK: "1"}
    assert {**container(second), "args": []} == {**container(first), "args": []}
    assert {**second["spec"], "containers": []} == {**first["spec"], "containers": []}


def test_the_ledger_counts_it_as_no_attempts_pod() -> None:
    assert not labels.is_ours(preparing_pod(SPEC, RULES)["metadata"]["labels"])


# the preparer


class Bench:
    def __init__(self, rules: PodRules = RULES) -> None:
        self.core, self.clock = FakeCore(), FakeClock()
        self.told: list[str] = []
        self.preparer = KubernetesPreparer(rules, core_api=lambda: cast(CoreV1Api, self.core), now_s=self.clock.now_s)

    def started(self) -> KubernetesPreparer:
        self.preparer.start(SPEC, self.told.append)
        return self.preparer

    def ended(self, code: int, reason: str = "Error") -> None:
        state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": "2026-03-01T12:05:00Z"}}
        statuses = [{"name": labels.CONTAINER, "state": state}]
        self.core.set_status({"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": statuses})


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_no_pod_is_made_where_the_run_that_it_is_to_read_is_gone(bench: Bench) -> None:
    """The kubelet would make its folder, as root."""
    model = ModelSpec(config={"model_type": "gpt2"}, tokenizer=f"{RUN_ROOT}/gone/model")
    with pytest.raises(PermanentError, match="gone.*no such folder"):
        bench.preparer.start(replace(SPEC, job=job(model=model)), lambda _: None)
    assert bench.core.pods == {}


def test_a_pod_at_work_is_found_by_whoever_comes_later(bench: Bench) -> None:
    assert bench.preparer.found(RUN_KEY) is None
    bench.started()
    bench.core.set_status(running("2026-03-01T12:00:05Z"))
    assert bench.preparer.found(RUN_KEY) == 2
    bench.started()
    assert len(bench.core.pods) == 1
    assert bench.preparer.account(SPEC).state is WorkersState.ALIVE
    assert bench.preparer.remains() == (RUN_KEY,)


def test_several_pods_are_made_once_and_removed_together() -> None:
    bench = Bench(SHARED)
    for _ in range(2):
        bench.started()
    assert len(bench.core.pods) == 3
    assert bench.preparer.remains() == (RUN_KEY,)
    bench.preparer.stop(RUN_KEY)
    assert bench.core.pods == {}


def test_the_end_is_that_of_the_first_pod_whatever_its_helpers_do() -> None:
    bench = Bench(SHARED)
    bench.started()
    first, *helpers = sorted(bench.core.pods)
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-03-01T12:05:00Z"}}
    over = {"phase": "Failed", "containerStatuses": [{"name": labels.CONTAINER, "state": ended}]}
    for name in helpers:
        bench.core.pods[name]["status"] = over
    assert bench.preparer.account(SPEC).state is WorkersState.ALIVE
    bench.core.set_status(running("2026-03-01T12:00:05Z"))
    bench.core.pods[first]["status"] = over
    assert bench.preparer.account(SPEC).exit_code == 1
    assert bench.preparer.found(RUN_KEY) is None


def test_a_quota_that_has_no_room_for_helpers_leaves_the_work_to_the_first() -> None:
    bench = Bench(SHARED)
    bench.core.refusals = [None, (403, 'pods "x" is forbidden: exceeded quota: few, requested: cpu=2')]
    bench.started()
    assert len(bench.core.pods) == 1
    assert "exceeded quota" in bench.told[-1]
    assert bench.preparer.found(RUN_KEY) == SPEC.number


def test_its_end_is_told_by_its_exit_code_and_its_last_words(bench: Bench) -> None:
    bench.started()
    bench.core.lines = ["what went wrong"]
    bench.ended(99)
    account = bench.preparer.account(SPEC)
    assert (account.state, account.exit_code, account.output) == (WorkersState.GONE, 99, "what went wrong")
    assert bench.preparer.found(RUN_KEY) is None
    bench.ended(0)
    assert bench.preparer.account(SPEC).exit_code == 0


def test_one_that_ran_out_of_memory_says_so(bench: Bench) -> None:
    bench.started()
    bench.ended(137, "OOMKilled")
    reason = bench.preparer.account(SPEC).reason
    assert reason is not None
    assert reason.code is ReasonCode.HOST_OUT_OF_MEMORY


def test_a_pod_that_somebody_deleted_is_gone(bench: Bench) -> None:
    bench.started()
    bench.preparer.stop(RUN_KEY)
    account = bench.preparer.account(SPEC)
    assert account.state is WorkersState.GONE
    assert account.reason is not None
    assert account.reason.code is ReasonCode.POD_DELETED


def test_a_pod_that_finds_no_node_is_given_up_after_the_patience_for_that(bench: Bench) -> None:
    bench.started()
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    bench.core.set_status({"phase": "Pending", "conditions": [condition]})
    made_s = 1772366400.0  # the creationTimestamp of pods in memory
    bench.clock.advance(made_s + 1.0 - bench.clock.now_s())
    waiting = bench.preparer.account(SPEC).waiting
    assert waiting is not None
    assert waiting.code is ReasonCode.POD_UNSCHEDULABLE
    bench.clock.advance(RULES.scheduling_patience_s)
    account = bench.preparer.account(SPEC)
    assert (account.state, account.reason) == (WorkersState.GONE, waiting)
    assert bench.core.pods == {}


def test_the_rules_of_the_file_are_the_defaults() -> None:
    from frenzy.settings import CHECKOUT

    given = parse_pod_rules((Path(CHECKOUT) / "include/kubernetes/pods.yaml").read_text())
    assert (given.preparing_cpus, given.preparing_memory_bytes) == (RULES.preparing_cpus, RULES.preparing_memory_bytes)
