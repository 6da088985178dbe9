"""Which folders of the volume of runs an attempt's pods can read and write."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.adapters.k8s import pod_examples
from tests.unit.adapters.k8s.pod_examples import A100, EXAMPLES, OBJECT_STORE, PLAIN, RUN_KEY, container, node, spec

from frenzy.adapters.k8s.launcher.pod_manifest import pods_of
from frenzy.adapters.k8s.pod_rules import PodRules, parse_pod_rules
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.job import CheckpointSpec, ModelSpec
from frenzy.core.values.launch import LaunchSpec

RULES = parse_pod_rules(PLAIN)


def test_a_path_without_a_volume_is_refused_with_both_remedies() -> None:
    with pytest.raises(PermanentError, match="FRENZY_RUN_ROOT.*run_directory"):
        pods_of(spec(A100, node("a", A100, 1)), parse_pod_rules(OBJECT_STORE))


@pytest.mark.parametrize(
    "root", ["/tmp/runs", "/var/lib/frenzy/runs-2", "/var/lib/frenzy/runs/../other", "file:///tmp"]
)
def test_a_path_outside_the_volume_is_refused(root: str) -> None:
    with pytest.raises(PermanentError, match="mount_path"):
        pods_of(spec(A100, node("a", A100, 1), run_root=root), RULES)


def runs_mounted(given_: LaunchSpec, rules: PodRules = RULES) -> dict[str, tuple[str, bool]]:
    """Place in the pod to (folder of the volume of all runs, whether it can be written)."""
    (pod,) = pods_of(given_, rules)
    mounts = [each for each in container(pod)["volumeMounts"] if each["name"] == "frenzy-runs"]
    return {each["mountPath"]: (each["subPath"], not each.get("readOnly", False)) for each in mounts}


def starting_from(warm_start: str | None = None, *, run_root: str = pod_examples.RUN_ROOT, **model: str) -> LaunchSpec:
    changes = {"checkpoint": CheckpointSpec(warm_start=warm_start), "model": ModelSpec(**model)}
    return spec(A100, node("a", A100, 1), run_root=run_root, **changes)


@pytest.mark.parametrize("name", EXAMPLES)
def test_of_all_runs_a_pod_can_write_its_own_alone(name: str) -> None:
    """With the whole volume mounted, a job could read and write what every other run trained."""
    for pod in pods_of(EXAMPLES[name].spec, EXAMPLES[name].rules):
        mounts = [each for each in container(pod)["volumeMounts"] if each["name"] == "frenzy-runs"]
        assert all(each["subPath"] for each in mounts)
        own = {"name": "frenzy-runs", "mountPath": f"{pod_examples.RUN_ROOT}/{RUN_KEY}", "subPath": RUN_KEY}
        assert [each for each in mounts if not each.get("readOnly")] == ([] if name == "object-store" else [own])


def test_a_run_root_below_the_volumes_folder_is_a_folder_of_the_volume() -> None:
    given_ = starting_from("other", run_root="file:///var/lib/frenzy/runs/team-a")
    assert runs_mounted(given_) == {
        f"/var/lib/frenzy/runs/team-a/{RUN_KEY}": (f"team-a/{RUN_KEY}", True),
        "/var/lib/frenzy/runs/team-a/other": ("team-a/other", False),
    }


OWN: Final = {f"/var/lib/frenzy/runs/{RUN_KEY}": (RUN_KEY, True)}


@pytest.mark.parametrize(
    "given_",
    [
        starting_from("456"),
        starting_from("/var/lib/frenzy/runs/456"),
        starting_from("/var/lib/frenzy/runs/456/model"),
        starting_from("file:///var/lib/frenzy/runs/456/model"),
        starting_from("/var/lib/frenzy/runs/../runs/456/checkpoints/../model"),
        starting_from(path="/var/lib/frenzy/runs/456/model"),
        starting_from(tokenizer="/var/lib/frenzy/runs/456/tokenizer"),
        starting_from("456", path="/var/lib/frenzy/runs/456/model"),
    ],
)
def test_the_run_that_a_model_comes_from_can_be_read_and_not_written(given_: LaunchSpec) -> None:
    assert runs_mounted(given_) == {**OWN, "/var/lib/frenzy/runs/456": ("456", False)}


@pytest.mark.parametrize(
    "given_",
    [
        starting_from(),
        starting_from("."),
        starting_from(".."),
        starting_from("../456"),
        starting_from("/var/lib/frenzy/runs"),
        starting_from("/var/lib/frenzy/runs/"),
        starting_from("/var/lib/frenzy/runs/456/../.."),
        starting_from("/var/lib/frenzy"),
        starting_from("/models/gpt2"),
        starting_from("s3://bucket/runs/456/model"),
        starting_from(RUN_KEY),
        starting_from(tokenizer="456"),
    ],
)
def test_no_other_way_to_write_a_source_mounts_more_than_the_own_run(given_: LaunchSpec) -> None:
    """Not the folder of all runs, and nothing above it."""
    assert runs_mounted(given_) == OWN


@given(warm_start=st.text(max_size=60) | st.lists(st.sampled_from(["..", ".", "a", "", "runs"])).map("/".join))
def test_whatever_the_source_is_called_the_volume_is_mounted_by_single_folders(warm_start: str) -> None:
    for place, (folder, writable) in runs_mounted(starting_from(warm_start)).items():
        assert folder and folder != ".." and "/" not in folder
        assert place == f"{pod_examples.RUN_ROOT}/{folder}"
        assert writable is (folder == RUN_KEY)


def test_a_folder_that_the_rules_mount_themselves_is_mounted_once() -> None:
    volume = "volumes: [{name: d, claim: runs, sub_path: data, mount_path: /var/lib/frenzy/runs/data}]\n"
    assert runs_mounted(starting_from(path="/var/lib/frenzy/runs/data/gpt2"), parse_pod_rules(PLAIN + volume)) == OWN


def test_an_object_store_needs_no_volume_even_where_there_is_one() -> None:
    (pod,) = pods_of(spec(A100, node("a", A100, 1), run_root="gs://bucket"), RULES)
    assert "frenzy-runs" not in [each["name"] for each in pod["spec"]["volumes"]]
