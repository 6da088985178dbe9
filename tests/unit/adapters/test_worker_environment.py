"""What processes that run users' choices inherit on this machine: a list of variables, and what is added to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.contract.values import job

from frenzy.adapters.local.worker_environment import helper_environment, preparing_environment
from frenzy.core.values.prepared_data import PreparingSpec

SECRETS = {
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://me:geheim@db/x",
    "AIRFLOW_CONN_FRENZY_DEFAULT": "http://frenzy:geheim@api",
    "_AIRFLOW_PROCESS_CONTEXT": "server",
    "FRENZY_DATABASE": "postgresql://me:geheim@db/x",
    "FRENZY_AIRFLOW_PASSWORDS": "{}",
    "FRENZY_RUN_KEY": "another's",
    "AWS_SECRET_ACCESS_KEY": "geheim",
    "HF_TOKEN": "geheim",
    "NVIDIA_API_KEY": "geheim",
    "WANDB_API_KEY": "geheim",
    "PGPASSWORD": "geheim",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "KUBECONFIG": "/root/.kube/config",
    "https_proxy": "http://me:geheim@proxy",
}
NEEDED = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "LC_ALL": "C.UTF-8",
    "CUDA_HOME": "/usr/local/cuda",
    "NCCL_SOCKET_IFNAME": "eth0",
    "HF_HUB_OFFLINE": "1",
    "HTTP_PROXY": "http://proxy:3128",
    "FRENZY_STACK": "/srv/frenzy",
    "FRENZY_STOP_GRACE_S": "30",
    "FRENZY_STARTUP_S": "900",
    "FRENZY_COLLECTIVE_TIMEOUT_S": "600",
    "SPT_NOENV": "1",
}


def inherited(**more: str) -> set[str]:
    return set(helper_environment({**NEEDED, **SECRETS, **more})) - {"PYTHONPATH"}


def test_what_the_machine_needs_is_inherited_and_nothing_that_is_not_on_the_list() -> None:
    assert inherited() == set(NEEDED)
    assert "geheim" not in str(helper_environment(SECRETS))


def test_an_administrator_adds_names_and_patterns() -> None:
    assert inherited(FRENZY_WORKER_ENV="HF_TOKEN, AWS_*") == {*NEEDED, "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"}


@pytest.mark.parametrize("more", ["*", "FRENZY_*,AIRFLOW*,_AIRFLOW*", "FRENZY_DATABASE"])
def test_no_pattern_adds_what_is_the_control_planes(more: str) -> None:
    ours = {name for name in SECRETS if "AIRFLOW" in name or "FRENZY" in name}
    assert not ours & inherited(FRENZY_WORKER_ENV=more)


def test_our_own_package_comes_first_on_the_path() -> None:
    path = helper_environment({"PYTHONPATH": "/theirs"})["PYTHONPATH"].split(":")
    assert path[0].endswith("plugins") and path[1] == "/theirs"


def test_what_prepares_data_has_the_jobs_variables_and_secrets_and_no_mark_of_an_attempt() -> None:
    given = replace(job(), env={"AWS_REGION": "eu-1"}, secrets={"AWS_SECRET_ACCESS_KEY": "env:LAKE_KEY"})
    spec = PreparingSpec(run_key="r1", number=1, job=given, run_dir="/runs/r1")
    found = preparing_environment(spec, {**NEEDED, **SECRETS, "LAKE_KEY": "of the lake"})
    assert (found["AWS_REGION"], found["AWS_SECRET_ACCESS_KEY"]) == ("eu-1", "of the lake")
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"FRENZY_RUN_KEY", "FRENZY_ATTEMPT", "FRENZY_RUN_DIR"} & set(found)
    assert "geheim" not in str(found)
