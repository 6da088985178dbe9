"""Values the MARP tests share: configs, shapes, clusters, jobs."""

from __future__ import annotations

from typing import Any

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.models.shape import ModelShape, model_shape
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.job import (
    ConstraintsSpec,
    DataSpec,
    ModelSpec,
    Objective,
    TrainingJob,
    TrainingSpec,
)
from frenzy.core.values.units import GIB, MIB

CALIBRATION = default_calibration()


def gpt2_config(hidden: int = 192, layers: int = 3, heads: int = 6, vocab: int = 1000, **other: Any) -> dict[str, Any]:
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": None,
        "n_positions": 1024,
        "vocab_size": vocab,
        **rates,
        **other,
    }


def llama_config(hidden: int = 192, layers: int = 3, heads: int = 6, vocab: int = 1000, **other: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "intermediate_size": 3 * hidden,
        "max_position_embeddings": 1024,
        "vocab_size": vocab,
        **other,
    }


def job(
    *,
    global_batch: int = 16,
    sequence_length: int = 128,
    objective: Objective = Objective.TIME,
    constraints: ConstraintsSpec | None = None,
    **training: Any,
) -> TrainingJob:
    return TrainingJob(
        name="job",
        model=ModelSpec(config={"model_type": "gpt2"}),
        data=DataSpec(path="text", sequence_length=sequence_length),
        training=TrainingSpec(global_batch_size=global_batch, max_steps=100, **training),
        objective=objective,
        constraints=constraints or ConstraintsSpec(),
    )


def request(shape: ModelShape | None = None, of: TrainingJob | None = None, **other: Any) -> PlanRequest:
    return PlanRequest(job=of or job(), shape=shape or model_shape(gpt2_config()), total_steps=100, **other)


def virtual(name: str, mebibytes: int, gflops: float = 20.0, price: float | None = 0.1) -> GpuType:
    return GpuType(
        name=name,
        memory_bytes=mebibytes * MIB,
        flops_per_s=gflops * 1e9,
        kind=DeviceKind.VIRTUAL,
        link_bytes_per_s=1e9,
        price_per_hour=price,
    )


def card(name: str, gibibytes: float, tflops: float = 100.0, price: float | None = 1.0) -> GpuType:
    """A real GPU."""
    return GpuType(
        name=name,
        memory_bytes=round(gibibytes * GIB),
        flops_per_s=tflops * 1e12,
        link_bytes_per_s=64e9,
        price_per_hour=price,
    )


def node(name: str, gpu_type: str, gpus: int) -> Node:
    return Node(name=name, gpu_type=gpu_type, num_gpus=gpus, host_memory_bytes=64 * GIB, num_cpus=8)


def mixed_cluster() -> Cluster:
    types = (virtual("a", 200, 20, 0.1), virtual("b", 350, 30, 0.2), virtual("c", 700, 60, 0.5))
    return Cluster(types, (node("a0", "a", 2), node("a1", "a", 2), node("b0", "b", 2), node("c0", "c", 1)))
