"""What the launcher makes of pods that wait, are refused or leave, in memory; on a real server: tests/kubernetes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from kubernetes.client import CoreV1Api
from tests.unit.adapters.k8s.fake_core import FakeCore
from tests.unit.adapters.k8s.pod_examples import EXAMPLES

from frenzy.adapters.k8s.launcher import KubernetesLauncher
from frenzy.adapters.k8s.pods import Pods
from frenzy.adapters.memory import FakeClock
from frenzy.adapters.storage.run_store import FsspecRunStore
from frenzy.core.launch import LaunchSpec


class Bench:
    """A launcher over pods in memory, with a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.core, self.clock, self.runs = FakeCore(), FakeClock(), FsspecRunStore(str(folder))

    def launcher(self, example: str = "two-nodes-of-eight", **rules: Any) -> KubernetesLauncher:
        return KubernetesLauncher(
            self.runs,
            replace(EXAMPLES[example].rules, **rules),
            core_api=lambda: cast(CoreV1Api, self.core),
            now_s=self.clock.now_s,
        )

    def spec(self, example: str = "two-nodes-of-eight") -> LaunchSpec:
        return EXAMPLES[example].spec


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# what is kept


def test_of_a_long_output_its_end_is_kept(bench: Bench) -> None:
    bench.core.lines = [f"line {number}" for number in range(5000)]
    kept = Pods("train", lambda: cast(CoreV1Api, bench.core)).output("any")
    assert kept.splitlines()[0] == "line 3000"
    assert kept.splitlines()[-1] == "line 4999"


def test_of_long_lines_the_last_256_kib_are_kept(bench: Bench) -> None:
    bench.core.lines = ["x" * 1024 for _ in range(1000)] + ["the end"]
    kept = Pods("train", lambda: cast(CoreV1Api, bench.core)).output("any")
    assert len(kept) == 256 * 1024
    assert kept.endswith("the end")
