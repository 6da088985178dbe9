"""Cards of clouds' machines, by the clouds' own lists."""

from __future__ import annotations

import pytest

from frenzy.adapters.k8s.inventory.machine_types import machine_of


@pytest.mark.parametrize(
    ("instance_type", "card", "num_cards"),
    [
        ("p3.2xlarge", "v100-16", 1),
        ("p3.16xlarge", "v100-16", 8),
        ("p5.4xlarge", "h100", 1),
        ("p5e.48xlarge", "h200", 8),
        ("g4dn.xlarge", "t4", 1),
        ("g4dn.12xlarge", "t4", 4),
        ("g4dn.metal", "t4", 8),
        ("g5.48xlarge", "a10g", 8),
        ("g6.xlarge", "l4", 1),
        ("gr6.8xlarge", "l4", 1),
        ("g6e.24xlarge", "l40s", 4),
        ("g7e.12xlarge", "rtx-pro-6000", 2),
        ("Standard_NC64as_T4_v3", "t4", 4),
        ("Standard_NC24rs_v3", "v100-16-pcie", 4),
        ("Standard_NC24ads_A100_v4", "a100-80-pcie", 1),
        ("standard_nc96ads_a100_v4", "a100-80-pcie", 4),
        ("Standard_NC80adis_H100_v5", "h100-nvl", 2),
        ("Standard_NV72ads_A10_v5", "a10", 2),
        ("a2-megagpu-16g", "a100-40", 16),
        ("a3-highgpu-1g", "h100", 1),
        ("a4x-highgpu-4g", "gb200", 4),
        ("g4-standard-96", "rtx-pro-6000", 2),
        ("g2-standard-8", "l4", 1),
        ("g2-standard-96", "l4", 8),
        ("BM.GPU3.8", "v100-16", 8),
        ("VM.GPU.A10.2", "a10", 2),
    ],
)
def test_a_machines_type_tells_its_cards(instance_type: str, card: str, num_cards: int) -> None:
    machine = machine_of(instance_type)
    assert machine is not None
    assert (machine.card.name, machine.num_cards, machine.parts) == (card, num_cards, 1)


@pytest.mark.parametrize(("instance_type", "parts"), [("g6f.large", 8), ("g6f.2xlarge", 4), ("gr6f.4xlarge", 2)])
def test_a_machine_may_have_a_part_of_a_card(instance_type: str, parts: int) -> None:
    machine = machine_of(instance_type)
    assert machine is not None
    assert (machine.card.name, machine.num_cards, machine.parts) == ("l4", 1, parts)


@pytest.mark.parametrize("instance_type", ["", "m5.large", "g6f", "Standard_NV12ads_A10_v5", "g4-standard-6"])
def test_of_other_machines_nothing_is_said(instance_type: str) -> None:
    assert machine_of(instance_type) is None
