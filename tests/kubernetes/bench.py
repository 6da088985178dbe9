"""A launcher over real pods on two fake nodes, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubernetes import client
from tests.contract import values
from tests.contract.eventually import eventually
from tests.kubernetes.plays import Play, Pod

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.adapters.k8s.launcher.kubernetes_launcher import KubernetesLauncher
from frenzy.adapters.k8s.launcher.pod_mirror import PodMirror
from frenzy.adapters.k8s.pod_rules import PodRules, RunDirectory
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.units import MIB
from frenzy.ports import WorkersAccount, WorkersState


class Bench:
    """A launcher in a namespace of its own, with the nodes n1 and n2; specs put one pod on each.

    core: the administrator's. ours: what the launcher may use.
    """

    def __init__(self, core: client.CoreV1Api, ours: client.CoreV1Api, namespace: str, folder: Path) -> None:
        self.core, self.ours, self.namespace, self.folder = core, ours, namespace, folder
        self.runs = FsspecRunStore(str(folder))
        self.mirror = PodMirror(namespace, lambda: self.ours)
        self.launcher = self.made(self.mirror)

    def made(self, mirror: PodMirror | None = None, **rules: Any) -> KubernetesLauncher:
        """Another launcher over the same pods, as another process would have."""
        common = PodRules(
            image="example.test/trainer:1",
            namespace=self.namespace,
            run_directory=RunDirectory(mount_path=str(self.folder), host_path=str(self.folder)),
            extra_host_memory_per_gpu_bytes=64 * MIB,
            shm_per_gpu_bytes=16 * MIB,
            ephemeral_storage_bytes=64 * MIB,
        )
        return KubernetesLauncher(self.runs, replace(common, **rules), core_api=lambda: self.ours, mirror=mirror)

    def spec(self, attempt: int = 1, *, node: str | None = None) -> LaunchSpec:
        spec = values.launch_spec(f"{self.folder}/0123456789ab", attempt_number=attempt)
        return spec if node is None else replace(spec, placement=values.placement(**{node: 2}))

    def launched(self, **spec: Any) -> LaunchSpec:
        made = self.spec(**spec)
        self.launcher.launch(made)
        return made

    def end_of(self, spec: LaunchSpec, launcher: KubernetesLauncher | None = None) -> WorkersAccount:
        """What is known once the workers are gone."""
        seen = launcher or self.launcher

        def look() -> WorkersAccount | None:
            account = seen.account(spec)
            return account if account.state is WorkersState.GONE else None

        found = eventually(look)
        assert found is not None
        return found

    def pods(self) -> list[Any]:
        found: list[Any] = self.core.list_namespaced_pod(self.namespace).items
        return found

    def code_of(self, spec: LaunchSpec) -> ReasonCode | None:
        reason = self.end_of(spec).reason
        return None if reason is None else reason.code


def on_node(**plays: Play) -> Callable[[Pod], Play]:
    """What becomes of a pod by the node that it is on."""
    return lambda pod: plays[pod["spec"]["nodeName"]]
