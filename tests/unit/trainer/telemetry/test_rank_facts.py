"""Facts of this machine are read for what they are; a virtual GPU needs none of a real one."""

from __future__ import annotations

import os
import resource

import torch

from frenzy.core.lifecycle.preflight import Needs, refusal
from frenzy.core.values.errors import ReasonCode
from frenzy.trainer.telemetry.rank_facts import read_node_facts


def test_this_machine_may_train_on_a_virtual_gpu() -> None:
    facts = read_node_facts(local_rank=0, is_virtual=True)
    assert facts.gpu is None
    assert facts.max_open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    room = os.statvfs("/dev/shm")  # noqa: S108  # a mount of the kernel's
    assert facts.shm_free_bytes is not None
    assert 0 <= facts.shm_free_bytes <= room.f_blocks * room.f_frsize
    needs = Needs(local_rank=0, num_local_ranks=2, num_ranks=2, num_nodes=1, counted_bytes=2**50)
    assert refusal(facts, needs) is None


def test_a_torch_without_cuda_has_no_gpu_to_offer() -> None:
    facts = read_node_facts(local_rank=0, is_virtual=False)
    assert facts.gpu is not None
    if torch.version.cuda is None:
        found = refusal(facts, Needs(local_rank=0, num_local_ranks=1, num_ranks=1, num_nodes=1, counted_bytes=0))
        assert found is not None
        assert found.code is ReasonCode.GPU_NOT_SUPPORTED
