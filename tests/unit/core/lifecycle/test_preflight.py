"""Before the first step: what is sure to fail is refused, with its reason and what helps, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frenzy.core.lifecycle.preflight import (
    GpuFacts,
    Needs,
    NodeFacts,
    Version,
    counted_bytes,
    refusal,
    runs_on,
)
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.failure_classes import NextStep, codes_of
from frenzy.core.values.resource_plan import MemoryPrediction, MemoryTerm
from frenzy.core.values.units import GIB, MIB

H100 = GpuFacts(
    wheel_cuda=(13, 0),
    driver_cuda=(13, 0),
    num_devices=8,
    name="NVIDIA H100 80GB HBM3",
    capability=(9, 0),
    architectures=("sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_120"),
    free_bytes=79 * GIB,
)
NODE = NodeFacts(max_open_files=1024, max_locked_bytes=8 * MIB, gpu=H100)
NEEDS = Needs(local_rank=3, num_local_ranks=8, num_ranks=8, num_nodes=1, counted_bytes=70 * GIB)


def test_a_good_node_is_not_refused() -> None:
    assert refusal(NODE, NEEDS) is None


@pytest.mark.parametrize(
    ("gpu", "code", "says"),
    [
        (replace(H100, wheel_cuda=None), ReasonCode.GPU_NOT_SUPPORTED, "without CUDA"),
        (replace(H100, driver_cuda=None, num_devices=0), ReasonCode.GPU_UNAVAILABLE, "no NVIDIA driver"),
        (replace(H100, driver_cuda=(12, 8), num_devices=0), ReasonCode.DRIVER_TOO_OLD, "12.8"),
        (replace(H100, num_devices=3), ReasonCode.GPU_UNAVAILABLE, "3 GPUs of the 8"),
        (replace(H100, name="Tesla V100", capability=(7, 0)), ReasonCode.GPU_NOT_SUPPORTED, "7.0"),
        (replace(H100, free_bytes=20 * GIB), ReasonCode.CUDA_OUT_OF_MEMORY, "something else holds"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused(gpu: GpuFacts, code: ReasonCode, says: str) -> None:
    found = refusal(replace(NODE, gpu=gpu), NEEDS)
    assert found is not None
    assert found.code is code
    assert says in found.sentence


@pytest.mark.parametrize(
    "gpu",
    [
        replace(H100, driver_cuda=(13, 2)),
        replace(H100, wheel_cuda=(12, 9), driver_cuda=(12, 2)),
        replace(H100, architectures=()),
        replace(H100, free_bytes=None, capability=None),
    ],
)
def test_what_may_work_is_tried(gpu: GpuFacts) -> None:
    assert refusal(replace(NODE, gpu=gpu), NEEDS) is None


def test_an_estimate_refuses_no_card_and_what_is_counted_does() -> None:
    terms = (("activations of the layers", 12), ("weights", 4), ("optimizer states", 4), ("fp32 master weights", 2))
    memory = MemoryPrediction(
        peak_allocated_bytes=22 * GIB,
        required_bytes=23 * GIB,
        host_bytes=0,
        at="forward pass",
        terms=tuple(MemoryTerm(name=name, num_bytes=size * GIB, equation="") for name, size in terms),
    )
    needs = replace(NEEDS, counted_bytes=counted_bytes(memory))
    assert refusal(replace(NODE, gpu=replace(H100, free_bytes=10 * GIB)), needs) is None
    found = refusal(replace(NODE, gpu=replace(H100, free_bytes=9 * GIB)), needs)
    assert found is not None
    assert found.code in codes_of(NextStep.OTHER_PLAN)


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 9), ("sm_80",), True),
        ((8, 0), ("sm_86",), False),
        ((9, 0), ("sm_80",), False),
        ((12, 1), ("sm_80", "compute_80"), True),
        ((9, 0), ("sm_90a",), True),
        ((10, 3), ("sm_100a",), False),
        ((10, 3), ("sm_100f",), True),
        ((10, 0), ("compute_90a",), False),
        ((10, 0), ("gfx942",), True),
    ],
)
def test_code_runs_where_cuda_says_it_does(capability: Version, architectures: tuple[str, ...], runs: bool) -> None:
    assert runs_on(capability, architectures) is runs


def test_open_files_must_do_for_all_ranks() -> None:
    assert refusal(NODE, replace(NEEDS, num_ranks=96)) is None
    found = refusal(NODE, replace(NEEDS, num_ranks=512))
    assert found is not None
    assert (found.code, "4352" in found.sentence) == (ReasonCode.NODE_LIMITS_TOO_LOW, True)
    assert refusal(replace(NODE, max_open_files=None), replace(NEEDS, num_ranks=512)) is None


def test_locked_memory_counts_where_nodes_reach_one_another_by_rdma() -> None:
    rdma, many = replace(NODE, has_rdma=True), replace(NEEDS, num_nodes=2)
    found = refusal(rdma, many)
    assert found is not None
    assert found.code is ReasonCode.NODE_LIMITS_TOO_LOW
    assert refusal(rdma, NEEDS) is None
    assert refusal(NODE, many) is None
    assert refusal(replace(rdma, max_locked_bytes=None), many) is None
    assert refusal(replace(rdma, gpu=None), many) is None, "gloo uses no RDMA"
