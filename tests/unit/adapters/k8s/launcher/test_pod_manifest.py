"""The pods of an attempt: whole manifests, and what holds for all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client
from tests.unit.adapters.k8s import pod_examples
from tests.unit.adapters.k8s.pod_examples import A100, EXAMPLES, FOLDER, PLAIN, RUN_KEY, container, node, spec

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.manifest_yaml import manifest_yaml
from frenzy.adapters.k8s.launcher.pod_manifest import pods_of
from frenzy.adapters.k8s.pod_rules import parse_pod_rules
from frenzy.adapters.spec.yaml_core import load_yaml
from frenzy.core.values.cluster import Node, NodeAllocation, Placement
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.resource_plan import CHECKPOINT_STAGING, HostTerm
from frenzy.core.values.units import GIB, MIB
from frenzy.core.values.workload import WorkloadSpec

every_example = pytest.mark.parametrize("name", EXAMPLES)
RULES = parse_pod_rules(PLAIN)


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    """Variable to value or source; each may be there once."""
    entries = container(pod)["env"]
    names = [each["name"] for each in entries]
    assert len(names) == len(set(names))
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in entries}


def unknown_fields(value: Any, kind: str, place: str = "") -> Iterator[str]:
    """Of the type ``kind``, as the Kubernetes client library writes it: V1Pod, list[V1Volume], dict(str, str)."""
    listed = re.fullmatch(r"list\[(.+)\]", kind)
    if listed is not None:
        for number, each in enumerate(value):
            yield from unknown_fields(each, listed[1], f"{place}[{number}]")
    model = getattr(client, kind, None)
    if model is not None:
        assert isinstance(value, dict), f"{place} is to be a {kind}"
        types = {model.attribute_map[field]: of for field, of in model.openapi_types.items()}
        yield from (f"{place}.{field}" for field in value.keys() - types.keys())
        for field in value.keys() & types.keys():
            yield from unknown_fields(value[field], types[field], f"{place}.{field}")


@every_example
def test_the_pods_are_what_was_looked_at(name: str) -> None:
    written = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert EXAMPLES[name].text == written, "if this is meant: python -m tests.unit.adapters.k8s.pod_examples"


def test_every_written_example_is_still_one() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXAMPLES)


@every_example
def test_the_yaml_says_what_the_manifests_are(name: str) -> None:
    pods = list(pods_of(EXAMPLES[name].spec, EXAMPLES[name].rules))
    assert list(yaml.safe_load_all(EXAMPLES[name].text)) == pods


@every_example
def test_every_field_is_one_of_the_newest_api_that_the_client_library_knows(name: str) -> None:
    for pod in pods_of(EXAMPLES[name].spec, EXAMPLES[name].rules):
        assert list(unknown_fields(pod, "V1Pod")) == []


@pytest.mark.parametrize("name", [name for name, each in EXAMPLES.items() if not each.allows])
def test_pods_are_confined_and_carry_no_token(name: str) -> None:
    for pod in pods_of(EXAMPLES[name].spec, EXAMPLES[name].rules):
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["runAsUser"] > 0
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in (container(pod), *pod["spec"].get("initContainers", ())):
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert not {"hostNetwork", "hostPID", "hostIPC", "nodeName"} & pod["spec"].keys()


@every_example
def test_memory_and_devices_are_asked_for_as_they_are_bounded(name: str) -> None:
    for pod in pods_of(EXAMPLES[name].spec, EXAMPLES[name].rules):
        resources = container(pod)["resources"]
        asked, most = dict(resources["requests"]), dict(resources["limits"])
        assert int(asked.pop("cpu")[:-1]) <= int(most.pop("cpu")[:-1])
        assert int(asked.pop("ephemeral-storage")[:-2]) <= int(most.pop("ephemeral-storage")[:-2])
        assert asked == most


@every_example
def test_each_mount_has_its_volume_and_each_volume_its_mount(name: str) -> None:
    for pod in pods_of(EXAMPLES[name].spec, EXAMPLES[name].rules):
        volumes = [each["name"] for each in pod["spec"]["volumes"]]
        assert len(volumes) == len(set(volumes))
        all_mounts = [mount for each in pod["spec"]["containers"] for mount in each["volumeMounts"]]
        assert set(volumes) == {each["name"] for each in all_mounts}
        mounts = container(pod)["volumeMounts"]
        assert len({each["mountPath"] for each in mounts}) == len(mounts)


def test_the_same_attempt_has_the_same_pods_and_another_has_others() -> None:
    one = spec(A100, node("a", A100, 8), node("b", A100, 8))
    assert pods_of(one, RULES) == pods_of(one, RULES)
    names = [pod["metadata"]["name"] for pod in (*pods_of(one, RULES), *pods_of(replace(one, attempt=3), RULES))]
    assert len(set(names)) == 4


def test_there_is_one_pod_for_each_node_with_its_rank_and_its_gpus() -> None:
    pods = pods_of(spec(A100, node("b", A100, 8), node("a", A100, 2)), RULES)
    assert [container(pod)["args"][-2:] for pod in pods] == [["--node-rank", "0"], ["--node-rank", "1"]]
    assert [pod["metadata"]["labels"][labels.NODE_RANK] for pod in pods] == ["0", "1"]
    assert [container(pod)["resources"]["limits"]["nvidia.com/gpu"] for pod in pods] == ["8", "2"]
    wanted = [pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] for pod in pods]
    assert [each["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] for each in wanted] == [["b"], ["a"]]


def test_a_node_that_calls_itself_otherwise_is_asked_for_by_its_hostname() -> None:
    renamed = replace(node("ip-10-0-0-7.internal", A100, 1), labels={labels.HOSTNAME: "ip-10-0-0-7"})
    (pod,) = pods_of(spec(A100, renamed), RULES)
    assert "'ip-10-0-0-7'" in str(pod["spec"]["affinity"])
    assert pod["metadata"]["annotations"][labels.PLACED_ON] == "ip-10-0-0-7.internal"


def test_host_memory_is_the_plans_the_shared_memory_and_what_the_rules_add() -> None:
    (pod,) = pods_of(spec(A100, node("a", A100, 8), host_bytes=10 * GIB), RULES)
    assert container(pod)["resources"]["limits"]["memory"] == f"{(10 + 8 * (1 + 1)) * 1024}Mi"


def test_each_pod_asks_for_its_own_ranks_and_once_for_what_they_share() -> None:
    terms = (HostTerm("optimizer states", 3 * GIB), HostTerm("loading", 5 * GIB, of_each_rank=False))
    given = spec(A100, node("a", A100, 6), node("b", A100, 2), host_bytes=23 * GIB)
    planned = replace(given.plan, memory=replace(given.plan.memory, host_terms=terms))
    wide, narrow = pods_of(replace(given, plan=planned), RULES)
    assert container(wide)["resources"]["requests"]["memory"] == f"{(6 * (3 + 2) + 5) * 1024}Mi"
    assert container(narrow)["resources"]["limits"]["memory"] == f"{(2 * (3 + 2) + 5) * 1024}Mi"


def test_a_virtual_gpus_budget_is_host_memory() -> None:
    (pod,) = pods_of(spec(pod_examples.VIRTUAL, node("a", pod_examples.VIRTUAL, 2)), RULES)
    assert container(pod)["resources"]["limits"]["memory"] == f"{2 * (2 * 1024 + 384)}Mi"


def test_a_virtual_gpu_shows_no_device_to_the_trainer() -> None:
    (pod,) = pods_of(EXAMPLES["virtual-gpus-without-an-image"].spec, RULES)
    assert environment(pod)["DS_ACCELERATOR"] == "cpu"
    assert environment(pod)["CUDA_VISIBLE_DEVICES"] == ""
    assert set(container(pod)["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}


def test_without_facts_of_the_node_a_card_is_asked_for_as_nvidia_does() -> None:
    (pod,) = pods_of(replace(spec(A100, node("a", A100, 4)), nodes=()), RULES)
    assert container(pod)["resources"]["limits"]["nvidia.com/gpu"] == "4"


def test_grace_of_the_pod_is_longer_than_the_workers_own() -> None:
    rules = parse_pod_rules(PLAIN, stop_grace_s=90.5)
    (pod,) = pods_of(spec(A100, node("a", A100, 1)), rules)
    assert pod["spec"]["terminationGracePeriodSeconds"] > 90.5
    assert environment(pod)["FRENZY_STOP_GRACE_S"] == "90.5"


def test_grace_follows_the_checkpoint_of_the_nodes_ranks_and_the_rate_that_was_measured() -> None:
    asked = spec(A100, node("a", A100, 4))
    staged = (HostTerm(CHECKPOINT_STAGING, 10**9),)
    asked = replace(
        asked, plan=replace(asked.plan, step_time_s=5.0, memory=replace(asked.plan.memory, host_terms=staged))
    )
    (first,), (later,) = pods_of(asked, RULES), pods_of(asked, RULES, checkpoint_rate=1e9)
    assert environment(first)["FRENZY_STOP_GRACE_S"] == "120", "30, two steps, and 2 x 4 GB at 100 MB/s"
    assert environment(later)["FRENZY_STOP_GRACE_S"] == "42"
    assert later["spec"]["terminationGracePeriodSeconds"] == 42 + 15


# the image of a job's own script


@pytest.mark.parametrize("allowed", ["", "workload_images: [ghcr.io/other/*]\n"])
def test_a_script_runs_in_no_image_that_the_rules_do_not_allow(allowed: str) -> None:
    given_ = spec(A100, node("a", A100, 1), workload=WorkloadSpec(command=("train",), image="ghcr.io/me/train:1"))
    with pytest.raises(PermanentError, match="workload_images"):
        pods_of(given_, parse_pod_rules(PLAIN + allowed))


def test_a_script_runs_in_an_image_that_the_rules_allow_under_the_same_confinement() -> None:
    rules = parse_pod_rules(PLAIN + "workload_images: ['ghcr.io/me/*']\n")
    own = WorkloadSpec(command=("train", "$(id)"), image="ghcr.io/me/train:1")
    (pod,) = pods_of(spec(A100, node("a", A100, 1), workload=own), rules)
    (plain,) = pods_of(spec(A100, node("a", A100, 1)), rules)
    changed = {key: value for key, value in container(pod).items() if container(plain)[key] != value}
    assert changed.keys() == {"image", "command", "volumeMounts"}
    assert pod["spec"]["securityContext"] == plain["spec"]["securityContext"]


def test_the_launcher_is_put_into_the_image_of_a_script_which_cannot_change_it() -> None:
    (pod,) = pods_of(EXAMPLES["script-in-an-image-of-its-own"].spec, EXAMPLES["script-in-an-image-of-its-own"].rules)
    (first,), workers = pod["spec"]["initContainers"], container(pod)
    (written,) = first["volumeMounts"]
    read = next(each for each in workers["volumeMounts"] if each["name"] == written["name"])
    assert read == {**written, "readOnly": True}
    assert first["args"] == workers["command"][1:] == ["/opt/frenzy-launcher/launcher"]
    assert first["image"] == RULES.image
    assert "env" not in first, "secrets of the job are for its workers"
    for kind, asked in workers["resources"].items():
        assert first["resources"][kind] == {name: each for name, each in asked.items() if name != "nvidia.com/gpu"}


@every_example
def test_only_the_image_of_a_script_is_given_the_launcher(name: str) -> None:
    for pod in pods_of(EXAMPLES[name].spec, EXAMPLES[name].rules):
        assert ("initContainers" in pod["spec"]) == (EXAMPLES[name].spec.job.workload is not None)


# environment and secrets


def test_secrets_are_references_only() -> None:
    given_ = spec(A100, node("a", A100, 1), secrets={"TOKEN": "k8s:hub-login/the.token"})
    (pod,) = pods_of(given_, RULES)
    assert environment(pod)["TOKEN"] == {"secretKeyRef": {"name": "hub-login", "key": "the.token"}}


@pytest.mark.parametrize("reference", ["env:TOKEN", "k8s:", "k8s:only-a-secret", "k8s:a/b/c", "k8s:UP/key"])
def test_a_secret_that_pods_cannot_refer_to_is_refused_with_what_to_write(reference: str) -> None:
    with pytest.raises(PermanentError, match="TOKEN.*k8s:secret/key"):
        pods_of(spec(A100, node("a", A100, 1), secrets={"TOKEN": reference}), RULES)


def test_a_variable_of_a_listed_secret_need_not_be_repeated() -> None:
    rules = parse_pod_rules(PLAIN + "env_from_secrets: [logins]\n")
    (pod,) = pods_of(spec(A100, node("a", A100, 1), secrets={"TOKEN": "env:TOKEN"}), rules)
    assert "TOKEN" not in environment(pod)
    with pytest.raises(PermanentError, match="OTHER"):
        pods_of(spec(A100, node("a", A100, 1), secrets={"TOKEN": "env:OTHER"}), rules)


def test_the_jobs_environment_comes_before_the_rules_and_never_before_ours() -> None:
    rules = parse_pod_rules(PLAIN + "env: {A: rules, B: rules, HOME: /root}\n")
    given_ = spec(A100, node("a", A100, 1), env={"B": "job", "FRENZY_ATTEMPT": "9", "OMP_NUM_THREADS": "3"})
    (pod,) = pods_of(given_, rules)
    told = environment(pod)
    assert (told["A"], told["B"], told["OMP_NUM_THREADS"]) == ("rules", "job", "3")
    assert (told["HOME"], told["FRENZY_ATTEMPT"]) == ("/home/frenzy", "2")


def test_a_secret_cannot_take_the_place_of_a_variable_of_the_trainer() -> None:
    with pytest.raises(PermanentError, match="FRENZY_ATTEMPT"):
        pods_of(spec(A100, node("a", A100, 1), secrets={"FRENZY_ATTEMPT": "k8s:a/b"}), RULES)


def test_text_that_looks_like_a_variable_stays_text() -> None:
    (pod,) = pods_of(spec(A100, node("a", A100, 1), env={"PRICE": "$(HOME) $$(x)"}), RULES)
    assert environment(pod)["PRICE"] == "$$(HOME) $$$(x)"


# pod groups of Kueue


def in_a_queue(num_nodes: int) -> tuple[dict[str, Any], ...]:
    nodes = (node(f"gpu-{index}", A100, 1) for index in range(num_nodes))
    return pods_of(spec(A100, *nodes), parse_pod_rules(PLAIN + "kueue_queue: research\n"))


def test_a_pod_group_that_failed_gives_its_quota_back_and_a_single_pod_is_no_group() -> None:
    for pod in in_a_queue(2):
        assert pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"
        assert pod["metadata"]["annotations"]["kueue.x-k8s.io/retriable-in-group"] == "false"
    (alone,) = in_a_queue(1)
    assert not any("kueue" in each for each in alone["metadata"]["annotations"])


def test_a_job_on_more_nodes_than_a_pod_group_may_have_is_refused_and_not_left_waiting() -> None:
    assert len(in_a_queue(8)) == 8
    with pytest.raises(PermanentError, match="9 nodes"):
        in_a_queue(9)


# names that users chose


# Specifications and messages with a NUL are refused where they are read.
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200)


@given(name=NAMES, team=NAMES, queue=NAMES, run_key=NAMES)
def test_whatever_the_names_are_kubernetes_accepts_the_labels(name: str, team: str, queue: str, run_key: str) -> None:
    given_ = replace(spec(A100, node("a", A100, 1), name=name, team=team, queue=queue), run_key=run_key)
    (pod,) = pods_of(given_, parse_pod_rules(PLAIN + "kueue_queue: q\n"))
    for value in pod["metadata"]["labels"].values():
        assert labels._VALID_VALUE.fullmatch(value), value
    assert labels._VALID_NAME.fullmatch(pod["metadata"]["name"])
    text = manifest_yaml([pod])
    assert yaml.safe_load(text) == pod
    assert load_yaml(text) == pod


@pytest.mark.parametrize(
    "text", ["no", "ON", "1e5", "0x1f", "1:30", "~", "null", "2027-01-01", "1_000", "", " a", "=", ".5"]
)
def test_text_stays_text_to_every_reader(text: str) -> None:
    written = manifest_yaml([{"label": text}])
    assert yaml.safe_load(written) == {"label": text}
    assert load_yaml(written) == {"label": text}
    assert '"' in written


def test_names_that_differ_only_where_labels_cannot_say_it_stay_apart() -> None:
    values = {labels.label_value(each) for each in ("a b", "a/b", "a?b", "ü", "ö", "x" * 64, "x" * 65)}
    assert len(values) == 7
    assert labels.label_value("plain-1.x_y") == "plain-1.x_y"
    assert labels.pod_name("Run_A", 1, 0) != labels.pod_name("run-a", 1, 0)


def test_the_selector_finds_one_attempt_of_one_run() -> None:
    assert labels.selector(RUN_KEY, 2).split(",") == [
        "app.kubernetes.io/managed-by=frenzy",
        f"frenzy.dev/run={RUN_KEY}",
        "frenzy.dev/attempt=2",
    ]
    assert "attempt" not in labels.selector(RUN_KEY)


def test_shared_memory_grows_with_the_gpus_of_the_pod() -> None:
    pods = pods_of(spec(A100, node("a", A100, 8), node("b", A100, 1)), RULES)
    sizes = [pod["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] for pod in pods]
    assert sizes == [f"{8 * GIB // MIB}Mi", f"{GIB // MIB}Mi"]


def test_no_node_means_no_pod() -> None:
    nowhere = replace(spec(A100, node("a", A100, 1)), placement=Placement(allocations=()), nodes=())
    assert pods_of(nowhere, RULES) == ()


def test_nodes_are_those_of_the_placement_or_none() -> None:
    from frenzy.core.values.cluster import Cluster

    one, two = node("a", A100, 1), node("b", A100, 1)
    cluster = Cluster((A100,), (one, two))
    wanted = Placement(allocations=tuple(NodeAllocation(node=name, num_gpus=1) for name in ("b", "a")))
    assert cluster.nodes_of(wanted) == (two, one)
    assert Cluster((A100,), (one,)).nodes_of(wanted) == ()
    assert isinstance(one, Node)
