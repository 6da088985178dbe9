"""The simulator's clusters: as many GPUs as they are named after, of the types and nodes they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from frenzy.core.values.errors import SpecError
from frenzy.core.values.units import MIB
from frenzy.sim.clusters import CLUSTERS, cluster_label, cluster_named

HEADER = "sn,cpu_milli,memory_mib,gpu,model\n"


@pytest.mark.parametrize(
    ("name", "nodes", "gpus"),
    [
        ("44", 6, {"rtx-2080-ti": 24, "a100-40": 16, "rtx-6000": 4}),
        ("64", 11, {"t4": 24, "a100-40": 16, "rtx-2080-ti": 24}),
        ("288", 40, {"a100-40": 64, "a100-80": 32, "v100-32": 80, "rtx-3090": 80, "t4": 32}),
        (
            "6212",
            1213,
            {"a10": 2, "g2": 4392, "g3": 312, "p100-16": 265, "t4": 842, "v100-16": 195, "v100-32": 204},
        ),
    ],
)
def test_a_named_cluster_has_the_gpus_it_is_named_after(name: str, nodes: int, gpus: dict[str, int]) -> None:
    cluster = cluster_named(name)
    assert cluster.num_gpus_by_type == gpus
    assert sum(gpus.values()) == int(name)
    assert len(cluster.nodes) == len(cluster.nodes_by_name) == nodes


def test_the_node_list_keeps_cpus_and_host_memory() -> None:
    node = cluster_named("6212").nodes_by_name["openb-node-0000"]
    assert (node.num_cpus, node.host_memory_bytes, node.num_gpus) == (64, 262_144 * MIB, 2)


def test_cards_whose_names_are_not_disclosed_have_the_memory_their_simulator_counts_with() -> None:
    types = cluster_named("6212").types_by_name
    assert (types["g2"].memory_bytes, types["g3"].memory_bytes) == (20_000 * MIB, 30_000 * MIB)


def test_a_cluster_file_and_a_list_of_nodes_are_read_by_path(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text(f"{HEADER}n1,8000,65536,2,T4\nn2,8000,65536,4,h100\n", encoding="utf-8")
    assert cluster_named(str(nodes)).num_gpus_by_type == {"h100": 4, "t4": 2}
    assert cluster_label(str(nodes)) == "nodes"
    assert cluster_named(str(CLUSTERS["44"])) == cluster_named("44")


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("n1,8000,65536,2,Q9", "line 2, column model: 'Q9'"),
        ("n1,8000,65536,0,T4", "line 2, column gpu: '0'"),
        ("n1,0,65536,1,T4", "line 2, column cpu_milli: '0'"),
        ("n1,8000,,1,T4", "line 2, column memory_mib: ''"),
        (",8000,65536,1,T4", "line 2, column sn: ''"),
        ("n1,8000,65536,1,T4\nn1,8000,65536,1,T4", "line 3, column sn: 'n1'"),
    ],
)
def test_a_node_that_cannot_be_is_told_by_line_and_column(tmp_path: Path, row: str, place: str) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text(f"{HEADER}{row}\n", encoding="utf-8")
    with pytest.raises(SpecError, match=place):
        cluster_named(str(nodes))


def test_an_unknown_cluster_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match="44, 64, 288, 6212"):
        cluster_named("45")
