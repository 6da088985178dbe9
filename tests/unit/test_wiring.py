"""Which adapters the settings pick."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frenzy.adapters.cluster_file import ClusterFileInventory
from frenzy.adapters.k8s.inventory import KubernetesInventory
from frenzy.core.errors import SpecError
from frenzy.settings import LauncherKind, Settings
from frenzy.wiring import inventory, pod_rules

KUBERNETES = Settings(launcher=LauncherKind.KUBERNETES, stop_grace_s=45)


def test_gpus_are_told_by_the_cluster_file_or_by_the_cluster_that_workers_run_on() -> None:
    assert isinstance(inventory(Settings()), ClusterFileInventory)
    assert isinstance(inventory(KUBERNETES), KubernetesInventory)


def test_pod_rules_come_from_the_settings_file_with_the_settings_grace() -> None:
    assert pod_rules(KUBERNETES).stop_grace_s == 45
    with pytest.raises(SpecError, match="nowhere"):
        pod_rules(replace(KUBERNETES, pod_rules_file=KUBERNETES.pod_rules_file.with_name("nowhere.yaml")))
