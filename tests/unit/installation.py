"""A small installation over in-memory ports, on which tests of use cases, routes, commands and tasks run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tests.in_memory.job_store import InMemoryJobStore
from tests.in_memory.ledger import InMemoryLedger
from tests.in_memory.run_store import InMemoryRunStore
from tests.in_memory.sources import FakeClock, FixedInventory

from frenzy.app.services import Services
from frenzy.core.memory.calibration import Calibration
from frenzy.core.scheduling import policy_named
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.sources import DATA_SCHEMES, SourceRules
from frenzy.core.values.units import GIB

CONFIG: Final = {
    "model_type": "gpt2",
    "vocab_size": 1000,
    "n_positions": 128,
    "n_embd": 256,
    "n_layer": 4,
    "n_head": 4,
    "n_inner": None,
    "tie_word_embeddings": True,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "activation_function": "gelu_new",
}
"""A model of which every GPU of ``small_cluster`` holds one."""


def small_cluster() -> Cluster:
    """Node a with two small GPUs, node b with two large ones."""
    return Cluster(
        # so slow that two of them are faster for the model than one: it does not wait for launches
        gpu_types=(
            GpuType(name="small", memory_bytes=1 * GIB, flops_per_s=7e11),
            GpuType(name="large", memory_bytes=4 * GIB, flops_per_s=7e11),
        ),
        nodes=(
            Node(name="a", gpu_type="small", num_gpus=2, host_memory_bytes=64 * GIB, num_cpus=16),
            Node(name="b", gpu_type="large", num_gpus=2, host_memory_bytes=64 * GIB, num_cpus=16),
        ),
    )


def in_memory_services(**changes: Any) -> Services:
    """Services on ``small_cluster``, which their ledger knows already, with other ports where ``changes`` say so."""
    made = Services(
        clock=FakeClock(),
        ledger=InMemoryLedger(),
        runs=InMemoryRunStore(),
        jobs=InMemoryJobStore(),
        inventory=FixedInventory(small_cluster()),
        calibration=Calibration(),
        policy=policy_named("has"),
        marp_policy="paper",
        lease_s=60.0,
        sources=SourceRules(schemes=(*DATA_SCHEMES, "memory")),  # where these runs are
    )
    with made.ledger.transaction() as tx:
        tx.put_cluster(small_cluster())
    return replace(made, **changes)
