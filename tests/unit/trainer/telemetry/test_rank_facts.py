"""Facts of this machine are read for what they are; a virtual GPU needs none of a real one."""

from __future__ import annotations

import resource
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from frenzy.core.lifecycle.preflight import Needs, refusal
from frenzy.core.values.errors import ReasonCode
from frenzy.trainer.telemetry.rank_facts import driver_cuda, nccl_may_use_rdma, raised_limit, read_node_facts

COMPILER = shutil.which("cc") or shutil.which("gcc")
NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "needed", "limit"),
    [
        (1024, 524_288, 4352, 4352),
        (1024, 2048, 4352, 2048),
        (8192, 524_288, 4352, 8192),
        (1024, NONE, 4352, 4352),
        (65_536, NONE, NONE, NONE),
        (65_536, 65_536, NONE, 65_536),
        (NONE, NONE, 4352, NONE),
    ],
)
def test_a_soft_limit_is_raised_as_far_as_is_needed_and_allowed(soft: int, hard: int, needed: int, limit: int) -> None:
    assert raised_limit(soft, hard, needed) == limit


def test_rdma_that_nccl_is_told_to_leave_alone_is_none() -> None:
    assert nccl_may_use_rdma({})
    assert nccl_may_use_rdma({"NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"})
    assert not nccl_may_use_rdma({"NCCL_IB_DISABLE": "1"})
    assert not nccl_may_use_rdma({"NCCL_NET": "Socket"})


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the fake driver with")
@pytest.mark.parametrize(("answer", "expected"), [("*v = 13020; return 0;", (13, 2)), ("return 3;", None)])
def test_the_driver_is_asked_itself_what_cuda_it_runs(
    tmp_path: Path, answer: str, expected: tuple[int, int] | None
) -> None:
    # torch's own question is not in every release: without this answer no card of 2.11 was let in.
    (tmp_path / "driver.c").write_text(f"int cuDriverGetVersion(int *v) {{ {answer} }}\n")
    library = tmp_path / "libcuda.so.1"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", str(library), str(tmp_path / "driver.c")], check=True)
    assert driver_cuda(str(library)) == expected


def test_a_machine_without_a_driver_runs_no_cuda(tmp_path: Path) -> None:
    assert driver_cuda(str(tmp_path / "libcuda.so.1")) is None
    assert driver_cuda("libc.so.6") is None  # there, and another library


def test_this_machine_may_train_on_a_virtual_gpu() -> None:
    facts = read_node_facts(local_rank=0, is_virtual=True)
    assert facts.gpu is None
    assert facts.max_open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needs = Needs(local_rank=0, num_local_ranks=2, num_ranks=2, num_nodes=1, counted_bytes=2**50)
    assert refusal(facts, needs) is None


def test_a_torch_without_cuda_has_no_gpu_to_offer() -> None:
    facts = read_node_facts(local_rank=0, is_virtual=False)
    assert facts.gpu is not None
    if torch.version.cuda is None:
        found = refusal(facts, Needs(local_rank=0, num_local_ranks=1, num_ranks=1, num_nodes=1, counted_bytes=0))
        assert found is not None
        assert found.code is ReasonCode.GPU_NOT_SUPPORTED
