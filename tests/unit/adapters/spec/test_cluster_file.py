"""The cluster file: what it may say, and how a wrong one is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from frenzy.adapters.spec.cluster_file import ClusterFileInventory, load_cluster, parse_cluster, parse_cluster_file
from frenzy.core.values.cluster import NODE_GROUP, NodeState
from frenzy.core.values.errors import SpecError
from frenzy.core.values.gpu_catalogue import CATALOGUE, card_called
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.core.values.units import GIB, MIB

SHIPPED = sorted((Path(__file__).parents[4] / "include" / "clusters").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_cluster_loads(path: Path) -> None:
    cluster = load_cluster(path)
    assert set(cluster.num_gpus_by_type) == {each.name for each in cluster.gpu_types}
    assert len(cluster.nodes_by_name) == len(cluster.nodes)


def test_the_papers_cluster_has_its_288_gpus() -> None:
    path = next(path for path in SHIPPED if path.stem == "frenzy-paper-288")
    expected = {"a100-40": 64, "a100-80": 32, "v100-32": 80, "rtx-3090": 80, "t4": 32}
    assert load_cluster(path).num_gpus_by_type == expected


def test_the_laptop_mixes_three_types_of_virtual_gpus() -> None:
    cluster = load_cluster(next(path for path in SHIPPED if path.stem == "laptop"))
    assert {each.kind for each in cluster.gpu_types} == {DeviceKind.VIRTUAL}
    budgets = {each.memory_bytes for each in cluster.gpu_types}
    speeds = {each.flops_per_s for each in cluster.gpu_types}
    assert len(budgets) >= 3
    assert len(speeds) >= 3
    assert len(set(cluster.num_gpus_by_type.values())) >= 3
    assert len(cluster.nodes) >= 3


def test_a_virtual_type_takes_its_budget_and_rate_from_the_file() -> None:
    cluster = parse_cluster(
        """
        gpu_types: {v: {kind: virtual, memory: 640 MiB, flops: 40 GFLOPS, link: 1 GB/s, price_per_hour: 0.5}}
        nodes: [{name: n, gpu_type: v, gpus: 2, cpus: 1.5, host_memory: 8 GiB}]
        """
    )
    v = cluster.types_by_name["v"]
    assert (v.kind, v.memory_bytes, v.flops_per_s) == (DeviceKind.VIRTUAL, 640 * MIB, 40e9)
    assert (v.link_bytes_per_s, v.price_per_hour) == (1e9, 0.5)
    assert (cluster.nodes[0].num_cpus, cluster.nodes[0].host_memory_bytes) == (1.5, 8 * GIB)


@pytest.mark.parametrize(("written", "price"), [("", None), ("price_per_hour: 0", 0.0)])
def test_a_price_that_nobody_gave_is_not_one_of_0(written: str, price: float | None) -> None:
    file = parse_cluster_file(f"gpu_types: {{t4: {{{written}}}}}")
    assert file.gpu_types["t4"].price_per_hour == price


def test_a_catalogue_card_needs_nothing_more_and_may_be_changed_or_renamed() -> None:
    cluster = parse_cluster(
        """
        gpu_types:
          a100-80: {price_per_hour: 1.5}
          cheap-t4: {card: t4, memory: 14 GiB}
        nodes:
          - {name: a, gpu_type: a100-80, gpus: 8}
          - {name: b, gpu_type: cheap-t4, gpus: 4}
          - {name: c, gpu_type: l4, gpus: 1}
        """
    )
    types = cluster.types_by_name
    assert types["a100-80"].flops_per_s == CATALOGUE["a100-80"].gpu.flops_per_s
    assert types["a100-80"].price_per_hour == 1.5
    assert (types["cheap-t4"].memory_bytes, types["cheap-t4"].compute_capability) == (14 * GIB, "7.5")
    assert types["l4"] == CATALOGUE["l4"].gpu


def test_a_card_may_be_called_by_the_memory_that_it_has_and_by_no_other() -> None:
    cluster = parse_cluster("nodes: [{name: n, gpu_type: h100-80, gpus: 8}]")
    assert cluster.types_by_name["h100-80"] == replace(CATALOGUE["h100"].gpu, name="h100-80")
    assert card_called("h200-141") == "h200"
    assert card_called("a100-80") == "a100-80"
    for other in ("h100-40", "h100-", "a100", "-80", "x-80"):
        assert card_called(other) is None


def test_a_type_of_the_users_own_carries_all_its_rates() -> None:
    cluster = parse_cluster(
        """
        gpu_types:
          desk: {memory: 12 GiB, flops: 70 TFLOPS, bf16_flops: 60 TFLOPS, tf32_flops: 35 TFLOPS, fp32_flops: 30e12,
                 power_w: 220}
        nodes: [{name: n, gpu_type: desk, gpus: 1}]
        """
    )
    desk = cluster.types_by_name["desk"]
    assert (desk.bf16_flops_per_s, desk.tf32_flops_per_s, desk.power_w) == (60e12, 35e12, 220)
    assert desk.peak_flops_per_s(Precision.BF16) == 60e12


def test_a_changed_rate_of_a_card_holds_for_bf16_too() -> None:
    cluster = parse_cluster("gpu_types: {l4: {flops: 90 TFLOPS}}\nnodes: [{name: n, gpu_type: l4, gpus: 1}]")
    assert cluster.types_by_name["l4"].peak_flops_per_s(Precision.BF16) == 90e12


def test_counts_number_the_nodes() -> None:
    cluster = parse_cluster(
        """
        nodes:
          - {name: t, count: 2, gpu_type: t4, gpus: 1}
          - {name: "rack{i:02}-l", count: 3, gpu_type: l4, gpus: 1, state: draining, labels: {zone: b}}
          - {name: one, gpu_type: l4, gpus: 1, topology: [z, r]}
        """
    )
    assert [node.name for node in cluster.nodes] == ["t-1", "t-2", "rack01-l", "rack02-l", "rack03-l", "one"]
    assert cluster.nodes_by_name["rack02-l"].state is NodeState.DRAINING
    assert cluster.nodes_by_name["rack02-l"].labels == {"zone": "b"}
    assert [node.topology for node in cluster.nodes] == [(), (), (), (), (), ("z", "r")]


NODE = "nodes: [{name: n, gpu_type: t4, gpus: 1}]"
VIRTUAL = "gpu_types: {v: {kind: virtual, memory: 1 GiB, flops: 1 GFLOPS}}\n"


@pytest.mark.parametrize(
    ("text", "path", "value", "allowed"),
    [
        ("", "cluster file", "None", "gpu_types and nodes"),
        ("a: [", "cluster file, line 2, column 1", "the end of the text", "not valid YAML"),
        ("nodes: []", "nodes", "nothing", "at least one"),
        ("gpu_types: {t4: }", "nodes", "nothing", "at least one"),
        ("autoscaled: [{name: a, max_nodes: 2, gpu_type: t4, gpus: 1}]", "autoscaled[0].labels", "nothing", "required"),
        (
            "autoscaled: [{name: a, max_nodes: 2, gpu_type: t5, gpus: 1, labels: {a: b}}]",
            "autoscaled[0].gpu_type",
            "'t5'",
            "t4",
        ),
        (
            "autoscaled: [{name: a, max: 2, max_nodes: 1, gpu_type: t4, gpus: 1, labels: {a: b}}]",
            "autoscaled[0].max",
            "2",
            "max_nodes",
        ),
        (f"{NODE}\n{NODE}", "cluster file, line 2, column 1", "nodes: ", "'nodes' is given twice"),
        ("nodes: [{name: n, gpu_type: a100, gpus: 1}]", "nodes[0].gpu_type", "'a100'", "did you mean 'a100-80'"),
        ("nodes: [{name: n, gpu_type: t4, gpus: 0}]", "nodes[0].gpus", "0", "at least 1"),
        ("nodes: [{name: n, gpu_type: t4, gpus: 1.5}]", "nodes[0].gpus", "1.5", "whole number"),
        ("nodes: [{name: n, gpu_type: t4, gpus: 1, cpu: 3}]", "nodes[0].cpu", "3", "did you mean 'cpus'"),
        ("nodes: [{name: n, gpu_type: t4, gpus: 1, host_memory: yes}]", "nodes[0].host_memory", "'yes'", "640 MiB"),
        ("nodes: [{name: N, gpu_type: t4, gpus: 1}]", "nodes[0].name", "'N'", "lower-case"),
        ("nodes: [{name: 'n{j}', gpu_type: t4, gpus: 1}]", "nodes[0].name", "'n{j}'", "{i}"),
        (f"gpu_types: {{x: {{kind: virtual, memory: 1 GiB}}}}\n{NODE}", "gpu_types.x.flops", "nothing", "needs flops"),
        (f"gpu_types: {{gtx: {{flops: 1e12}}}}\n{NODE}", "gpu_types.gtx.memory", "nothing", "not in the catalogue"),
        (f"gpu_types: {{t4: {{memory: 5 parsec}}}}\n{NODE}", "gpu_types.t4.memory", "'5 parsec'", "640 MiB"),
        (f"gpu_types: {{t4: {{memory: -1}}}}\n{NODE}", "gpu_types.t4.memory", "-1", "more than 0"),
        (f"gpu_types: {{t4: {{memory: 80}}}}\n{NODE}", "gpu_types.t4.memory", "80", "write 80 GB or 80 GiB"),
        ("nodes: [{name: n, gpu_type: t4, gpus: 1, host_memory: '64'}]", "nodes[0].host_memory", "64", "64 GiB"),
        (f"gpu_types: {{t4: {{flops: 989}}}}\n{NODE}", "gpu_types.t4.flops", "989", "write 989 TFLOPS"),
        (f"gpu_types: {{t4: {{flops: fast}}}}\n{NODE}", "gpu_types.t4.flops", "'fast'", "40 GFLOPS"),
        (f"gpu_types: {{t4: {{flops: 40 GB/s}}}}\n{NODE}", "gpu_types.t4.flops", "'40 GB/s'", "40 GFLOPS"),
        (f"gpu_types: {{t4: {{node_link: 4 TFLOPS}}}}\n{NODE}", "gpu_types.t4.node_link", "'4 TFLOPS'", "400 Gbit/s"),
        (f"gpu_types: {{t4: {{kind: tpu}}}}\n{NODE}", "gpu_types.t4.kind", "'tpu'", "'cuda' or 'virtual'"),
        (f"gpu_types: {{x: {{card: t5}}}}\n{NODE}", "gpu_types.x.card", "'t5'", "did you mean 't4'"),
        (f"gpu_types: {{X y: }}\n{NODE}", "gpu_types.X y", "'X y'", "must match"),
        (
            f"{VIRTUAL}nodes: [{{name: n, gpu_type: v, gpus: 1}}, {{name: n, gpu_type: t4, gpus: 1}}]",
            "nodes[1].name",
            "'n'",
            "unique",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_path_value_and_what_is_allowed(
    text: str, path: str, value: str, allowed: str
) -> None:
    with pytest.raises(SpecError) as refused:
        parse_cluster(text)
    (violation,) = refused.value.violations
    assert violation.path == path
    assert value in violation.value
    assert allowed in violation.allowed


def test_an_autoscaled_group_counts_as_large_as_it_may_become() -> None:
    text = "autoscaled: [{name: spot, max_nodes: 3, gpu_type: t4, gpus: 2, labels: {pool: spot}}]"
    cluster = parse_cluster(text)
    assert [each.name for each in cluster.nodes] == ["spot/1", "spot/2", "spot/3"]
    assert cluster.num_gpus_by_type == {"t4": 6}
    assert cluster.nodes[0].labels == {"pool": "spot", NODE_GROUP: "spot"}


def test_a_file_without_nodes_describes_types_for_a_cluster_that_tells_its_own() -> None:
    file = parse_cluster_file("gpu_types: {t4: {price_per_hour: 0.3}}")
    assert file.gpu_types["t4"].price_per_hour == 0.3
    assert (file.nodes, file.groups) == ((), ())


def test_plain_numbers_of_bytes_and_rates_are_taken_where_they_can_be_meant() -> None:
    (gpu,) = parse_cluster(f"gpu_types: {{t4: {{memory: 15000000000, flops: 65e12}}}}\n{NODE}").gpu_types
    assert (gpu.memory_bytes, gpu.flops_per_s) == (15_000_000_000, 65e12)


def test_every_mistake_is_listed_at_once() -> None:
    with pytest.raises(SpecError) as refused:
        parse_cluster("nodes: [{name: n, gpu_type: t4, gpus: 0, rack: 1}, {gpu_type: t4, gpus: 1}]")
    assert [each.path for each in refused.value.violations] == ["nodes[0].gpus", "nodes[0].rack", "nodes[1].name"]


def test_a_missing_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.yaml"):
        load_cluster(tmp_path / "nowhere.yaml")


def test_the_inventory_sees_a_change_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: [{name: n, gpu_type: t4, gpus: 1}]")
    inventory = ClusterFileInventory(file)
    assert inventory.cluster().num_gpus_by_type == {"t4": 1}
    file.write_text("nodes: [{name: n, gpu_type: t4, gpus: 3}]")
    assert inventory.cluster().num_gpus_by_type == {"t4": 3}
