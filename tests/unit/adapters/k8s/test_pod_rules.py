"""The file of pod rules: what is read from it, and how it is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from frenzy.adapters.k8s.pod_rules import (
    GPU_TOLERATION,
    PodRules,
    RunDirectory,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
    load_pod_rules,
    parse_pod_rules,
)
from frenzy.core.values.errors import SpecError
from frenzy.core.values.units import GIB
from frenzy.settings import CHECKOUT, Settings

FILE = CHECKOUT / "include/kubernetes/pods.yaml"
IMAGE = "image: trainer:1\n"


def refusal(text: str) -> dict[str, str]:
    """Path to what is allowed, of each violation in ``text``."""
    with pytest.raises(SpecError) as caught:
        parse_pod_rules(text)
    return {each.path: each.allowed for each in caught.value.violations}


def test_an_image_is_enough() -> None:
    assert parse_pod_rules(IMAGE) == PodRules(image="trainer:1")


def test_the_file_that_comes_with_us_holds_the_defaults_of_every_field() -> None:
    rules = load_pod_rules(FILE, stop_grace_s=30)
    assert Settings().pod_rules_file == FILE
    assert rules == PodRules(
        image="frenzy-trainer:latest",
        namespace="frenzy-jobs",
        service_account="frenzy-trainer",
        run_directory=RunDirectory(claim="frenzy-runs", mount_path="/var/lib/frenzy/runs"),
    )


def test_every_field_stands_in_the_file_that_comes_with_us_and_its_examples_are_accepted() -> None:
    text = FILE.read_text(encoding="utf-8")
    whole = re.sub(r"^# ([a-z_]+:|  - )", r"\1", text, flags=re.MULTILINE)
    rules = parse_pod_rules(whole)
    not_written = {"stop_grace_s", "startup_s", "collective_timeout_s"}
    written = {re.sub(r"_(bytes|s)$", "", each) for each in PodRules.__dataclass_fields__ if each not in not_written}
    assert written == {re.sub(r"_(bytes|s)$", "", each) for each in yaml.safe_load(whole)}
    assert all(getattr(rules, each) not in (None, (), {}) for each in PodRules.__dataclass_fields__)


def test_sizes_and_times_are_written_with_their_units() -> None:
    rules = parse_pod_rules(
        IMAGE + "extra_host_memory_per_gpu: 24 GiB\nscheduling_patience: 10m\nautoscaling_patience: 1h\n",
        stop_grace_s=45,
    )
    assert rules.extra_host_memory_per_gpu_bytes == 24 * GIB
    assert rules.scheduling_patience_s == 600
    assert rules.autoscaling_patience_s == 3600
    assert rules.stop_grace_s == 45


def test_every_violation_is_told_at_once_with_path_value_and_what_is_allowed() -> None:
    told = refusal(
        "imagee: x\ncpus_per_gpu: -1\nimage_pull_policy: Sometimes\nextra_host_memory_per_gpu: 8 apples\n"
        "tolerations:\n  - {keys: a}\nvolumes:\n  - {name: A_B, mount_path: data, claim: c}\n"
    )
    assert "did you mean 'image'" in told["imagee"]
    assert told["image"] == "this field is required"
    assert "more than 0" in told["cpus_per_gpu"]
    assert "IfNotPresent" in told["image_pull_policy"]
    assert "24 GiB" in told["extra_host_memory_per_gpu"]
    assert "did you mean 'key'" in told["tolerations[0].keys"]
    assert {"volumes[0].name", "volumes[0].mount_path"} <= told.keys()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("run_directory: {mount_path: /runs}\n", "run_directory"),
        ("run_directory: {mount_path: /runs, claim: a, host_path: /b}\n", "run_directory"),
        ("volumes: [{name: a, mount_path: /a}]\n", "volumes[0]"),
        ("volumes: [{name: a, mount_path: /a, claim: b, secret: c}]\n", "volumes[0]"),
        ("volumes: [{name: a, mount_path: /a, host_path: /b, read_only: false}]\n", "volumes[0].read_only"),
        ("volumes: [{name: frenzy-tmp, mount_path: /a, claim: b}]\n", "volumes[0].name"),
        ("volumes: [{name: frenzy-launcher, mount_path: /a, claim: b}]\n", "volumes[0].name"),
        ("volumes: [{name: a, mount_path: /opt/frenzy-launcher, claim: b}]\n", "volumes[0].mount_path"),
        ("volumes: [{name: a, mount_path: /tmp, claim: b}]\n", "volumes[0].mount_path"),
        (
            "run_directory: {mount_path: /r, claim: a}\nvolumes: [{name: a, mount_path: /a, claim: a}]\n",
            "volumes[0].sub_path",
        ),
        (
            "run_directory: {mount_path: /r, host_path: /r}\nvolumes: [{name: a, mount_path: /a, host_path: /r}]\n",
            "volumes[0].sub_path",
        ),
        ("tolerations: [{key: a, operator: Exists, value: b}]\n", "tolerations[0].value"),
        ("tolerations: [{value: b}]\n", "tolerations[0].key"),
        ("tolerations: [{key: a, value: b, toleration_seconds: 3}]\n", "tolerations[0].toleration_seconds"),
        ("cpus_per_gpu: 4\ncpu_limit_per_gpu: 2\n", "cpu_limit_per_gpu"),
        ("host_memory_per_gpu: 8 GiB\n", "host_memory_per_gpu"),
        ("labels: {frenzy.dev/run: mine}\n", "labels.frenzy.dev/run"),
        ("extra_host_memory_per_gpu_bytes: 1\n", "extra_host_memory_per_gpu_bytes"),
        ("stop_grace_s: 1\n", "stop_grace_s"),
        ("run_as_user: 0\n", "run_as_user"),
        ("namespace: Frenzy\n", "namespace"),
        ("env: {A-B: c}\n", "env.A-B"),
        ("env: {A: 1}\n", "env.A"),
    ],
)
def test_what_contradicts_itself_or_the_pods_is_refused(text: str, path: str) -> None:
    assert path in refusal(IMAGE + text)


@pytest.mark.parametrize("text", ["", "- a\n", "image: [\n", "image: a\nimage: b\n"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    assert refusal(text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.yaml.*No such file"):
        load_pod_rules(tmp_path / "nowhere.yaml", stop_grace_s=1)


TAINT = Taint(key="team", value="a", effect=TaintEffect.NO_SCHEDULE)


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration(key="team", value="a"), True),
        (Toleration(key="team", value="b"), False),
        (Toleration(key="team", operator=TolerationOperator.EXISTS), True),
        (Toleration(operator=TolerationOperator.EXISTS), True),
        (Toleration(key="other", operator=TolerationOperator.EXISTS), False),
        (Toleration(key="team", value="a", effect=TaintEffect.NO_SCHEDULE), True),
        (Toleration(key="team", value="a", effect=TaintEffect.NO_EXECUTE), False),
    ],
)
def test_taints_are_tolerated_as_kubernetes_does(toleration: Toleration, tolerates: bool) -> None:
    assert PodRules(image="a", tolerations=(toleration,)).tolerates(TAINT) is tolerates


def test_the_taint_of_gpu_nodes_is_always_tolerated_and_a_preference_keeps_nobody_away() -> None:
    rules = PodRules(image="a", tolerations=(GPU_TOLERATION,))
    assert rules.all_tolerations == (GPU_TOLERATION,)
    assert rules.tolerates(Taint(key="nvidia.com/gpu", value="present", effect=TaintEffect.NO_SCHEDULE))
    assert rules.tolerates(Taint(key="any", effect=TaintEffect.PREFER_NO_SCHEDULE))
    assert not rules.tolerates(Taint(key="nvidia.com/gpu", effect=TaintEffect.NO_EXECUTE))
