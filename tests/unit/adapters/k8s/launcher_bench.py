"""A launcher over pods in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from kubernetes.client import CoreV1Api
from tests.in_memory.sources import FakeClock
from tests.unit.adapters.k8s.fake_core import FakeCore
from tests.unit.adapters.k8s.pod_examples import EXAMPLES

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.kubernetes_launcher import KubernetesLauncher
from frenzy.adapters.k8s.launcher.pod_mirror import PodMirror
from frenzy.core.values.launch import LaunchSpec


class Bench:
    """A launcher over pods in memory, with a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.core, self.clock, self.runs = FakeCore(), FakeClock(), FsspecRunStore(str(folder))
        self.slept: list[float] = []

    def launcher(
        self,
        example: str = "two-nodes-of-eight",
        *,
        sleep: Callable[[float], None] | None = None,
        mirror: PodMirror | None = None,
        **rules: Any,
    ) -> KubernetesLauncher:
        return KubernetesLauncher(
            self.runs,
            replace(EXAMPLES[example].rules, **rules),
            core_api=lambda: cast(CoreV1Api, self.core),
            mirror=mirror,
            now_s=self.clock.now_s,
            sleep=sleep or self.slept.append,
        )

    def spec(self, example: str = "two-nodes-of-eight") -> LaunchSpec:
        return EXAMPLES[example].spec


def running(at: str) -> dict[str, Any]:
    return {
        "phase": "Running",
        "containerStatuses": [{"name": labels.CONTAINER, "state": {"running": {"startedAt": at}}}],
    }
