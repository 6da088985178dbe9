"""What is read of pods and of amounts, as Kubernetes counts and writes them."""

from __future__ import annotations

from typing import Any

import pytest

from frenzy.adapters.k8s.objects import pod_requests
from frenzy.adapters.k8s.quantity import parse_quantity
from frenzy.core.values.units import GIB, MIB


def test_requests_are_what_the_scheduler_counts() -> None:
    spec = {
        "containers": [
            {"resources": {"requests": {"cpu": "1"}}},
            {"resources": {"limits": {"cpu": "500m", "x/y": "2"}}},
        ],
        "initContainers": [
            {"resources": {"requests": {"cpu": "4"}}},
            {"restartPolicy": "Always", "resources": {"requests": {"memory": "1Ki"}}},
        ],
        "overhead": {"cpu": "250m"},
    }
    assert pod_requests(spec) == {"cpu": 4.25, "x/y": 2, "memory": 1024}


def test_an_early_container_needs_the_sidecars_before_it_and_no_others() -> None:
    def asking(cpus: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpus}}, **more}

    sidecar = asking("1", restartPolicy="Always")
    spec = {"containers": [asking("2")], "initContainers": [asking("4"), sidecar, asking("3500m"), sidecar]}
    assert pod_requests(spec) == {"cpu": 4.5}


def test_what_a_pod_asks_for_as_a_whole_takes_the_place_of_its_containers() -> None:
    container = {"resources": {"requests": {"cpu": "1", "memory": "1Ki", "nvidia.com/gpu": "2"}}}
    whole = {
        "requests": {"cpu": "6", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": "9"},
        "limits": {"cpu": "8", "memory": "64Gi"},
    }
    asked = pod_requests({"containers": [container], "resources": whole, "overhead": {"cpu": "250m"}})
    assert asked == {"cpu": 6.25, "memory": 1024, "nvidia.com/gpu": 2, "hugepages-2Mi": 4 * MIB}
    assert pod_requests({"containers": [{}], "resources": {"limits": {"memory": "1Gi"}}}) == {"memory": GIB}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7910m", 7.91),
        ("16Gi", 16 * GIB),
        ("1e3", 1000),
        ("0", 0),
        ("1k", 1000),
        ("128974848", 128974848),
        ("5E", 5e18),
        ("2n", 2e-9),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, number: float) -> None:
    assert parse_quantity(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1Q", "one"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_quantity(text)
