"""Which variables a job may set, and what is a reference to a secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.values.job_environment import (
    KubernetesSecret,
    environment_violations,
    is_of_control_plane,
    kubernetes_secret_of,
    segments_grow,
    variable_of,
)


@pytest.mark.parametrize(
    "name",
    [
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
        "AIRFLOW_CONN_FRENZY_DEFAULT",
        "_AIRFLOW_PROCESS_CONTEXT",
        "FRENZY_DATABASE",
        "FRENZY_AIRFLOW_PASSWORDS",
        "frenzy_password",
    ],
)
def test_no_job_refers_to_or_sets_a_variable_of_the_control_plane(name: str) -> None:
    assert is_of_control_plane(name)
    assert variable_of(f"env:{name}") is None
    for given_ in ({"env": {name: "x"}, "secrets": {}}, {"env": {}, "secrets": {"MINE": f"env:{name}"}}):
        assert len(list(environment_violations(**given_))) == 1
    (violation,) = environment_violations({name: "x"}, {})
    assert (violation.path, violation.value) == (f"env.{name}", "the name")


@pytest.mark.parametrize(
    "reference",
    [
        *("", "env", "env:", "env:A B", "env:A\n", "env:1A", "env:A-B", "env:A$(B)", "ENV:A", " env:A", "env:*"),
        *("k8s:", "k8s:a", "k8s:a/", "k8s:/b", "k8s:a/b/c", "k8s:../a/b", "k8s:A/b", "k8s:a./b", "k8s:a..b/c"),
        *("k8s:a/..", "k8s:a/.", "k8s:a/..b", "k8s:a/b c", "k8s:a/b\n", "k8s:-a/b", f"k8s:{'a' * 254}/b", "k8s:*/b"),
        *(f"k8s:a/{'b' * 254}", f"env:{'A' * 256}", "file:/etc/passwd", "k8s:other-namespace:a/b"),
    ],
)
def test_what_is_no_name_is_no_reference_and_is_not_repeated(reference: str) -> None:
    assert (variable_of(reference), kubernetes_secret_of(reference)) == (None, None)
    (violation,) = environment_violations({}, {"MINE": reference})
    assert (violation.path, violation.value) == ("secrets.MINE", "a value")


def test_references_are_taken_apart() -> None:
    assert variable_of("env:HF_TOKEN") == "HF_TOKEN"
    assert kubernetes_secret_of("k8s:hub.login-2/.dockerconfigjson") == KubernetesSecret(
        "hub.login-2", ".dockerconfigjson"
    )
    assert list(environment_violations({"LD_PRELOAD": "x", "_": "y"}, {"T": "env:T", "U": "k8s:a/b"})) == []


@given(st.text())
def test_whatever_it_is_it_is_at_most_one_kind_of_reference(text: str) -> None:
    assert variable_of(text) is None or kubernetes_secret_of(text) is None


@pytest.mark.parametrize(
    ("env", "grow"),
    [
        ({}, True),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments: True"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}, False),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True,expandable_segments:False"}, False),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}, False),
    ],
)
def test_segments_grow_unless_a_variable_that_may_be_in_force_says_otherwise(env: dict[str, str], grow: bool) -> None:
    assert segments_grow(env) is grow
