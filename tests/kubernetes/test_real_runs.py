"""What a pod of the product sees of the volume of all runs, on a real kubelet: its own run, and its source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from kubernetes import client
from tests.kubernetes import images
from tests.kubernetes.host_python import USER
from tests.kubernetes.pods import create, ended, read_log, wait_for_pod
from tests.unit.adapters.k8s.pod_examples import VIRTUAL, node, spec

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.pod_manifest import pods_of
from frenzy.adapters.k8s.pod_rules import PodRules, RunDirectory
from frenzy.core.values.job import CheckpointSpec
from frenzy.core.values.units import MIB

pytestmark = pytest.mark.kubelet

_ATTACK: Final = """
cd "$RUNS"
echo "runs: $(ls | sort | tr '\\n' ' ')"
cat source/model/weights
cat victim/model/weights source/link/weights "$OWN/../victim/model/weights" && echo READ
echo x >source/model/weights && echo WROTE THE SOURCE
echo x >victim/model/weights && echo WROTE THE VICTIM
mkdir future && echo MADE A RUN
mv "$OWN" aside && echo MOVED ITS OWN
ln -s ../victim "$OWN/link" && cat "$OWN/link/model/weights" && echo FOLLOWED A LINK
echo mine >"$OWN/checkpoint" && cat "$OWN/checkpoint"
true
"""


def test_a_pod_reads_and_writes_no_run_but_its_own_and_reads_its_source(
    core_api: client.CoreV1Api, kube_namespace: str, real_node: str, tmp_path: Path
) -> None:
    """The source's own pods have put a link to another run into their folder."""
    runs = tmp_path / "runs"
    given = spec(VIRTUAL, replace(node(real_node, VIRTUAL, 1), labels={labels.HOSTNAME: real_node}), run_root=str(runs))
    given = replace(given, job=replace(given.job, checkpoint=CheckpointSpec(warm_start="source"), secrets={}))
    for name in ("victim", "source", given.run_key):
        (runs / name / "model").mkdir(parents=True)
        (runs / name / "model/weights").write_text(f"weights of {name}\n")
        for each in (runs, *runs.rglob("*")):
            each.chmod(0o777)  # nothing but the mounts is to be in the way
    (runs / "source/link").symlink_to("../victim/model")
    (pod,) = pods_of(given, rules(kube_namespace, runs))
    container = pod["spec"]["containers"][0]
    container["command"], container["args"] = ["sh", "-c", _ATTACK], []
    container["env"] += [{"name": "RUNS", "value": str(runs)}, {"name": "OWN", "value": given.run_key}]

    create(core_api, kube_namespace, pod)
    name = pod["metadata"]["name"]
    wait_for_pod(core_api, kube_namespace, name, ended)

    said = [
        line for line in read_log(core_api, kube_namespace, name).splitlines() if ": " not in line or "runs:" in line
    ]
    assert said == [f"runs: {given.run_key} source ", "weights of source", "mine"]
    assert sorted(each.name for each in runs.iterdir()) == sorted(["victim", "source", given.run_key])
    assert (runs / "victim/model/weights").read_text() == "weights of victim\n"
    assert (runs / given.run_key / "checkpoint").read_text() == "mine\n"


def rules(namespace: str, runs: Path) -> PodRules:
    return PodRules(
        image=images.BUSYBOX,
        namespace=namespace,
        run_directory=RunDirectory(host_path=str(runs), mount_path=str(runs)),
        run_as_user=USER,
        run_as_group=USER,
        fs_group=None,
        cpus_per_gpu=0.1,
        cpu_limit_per_gpu=1.0,
        extra_host_memory_per_gpu_bytes=256 * MIB,
        shm_per_gpu_bytes=16 * MIB,
        ephemeral_storage_bytes=16 * MIB,
        ephemeral_storage_request_bytes=1 * MIB,
    )
