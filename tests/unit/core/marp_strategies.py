"""Random models, clusters and requests for the search of plans."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st
from tests.unit.core.marp_values import (
    CALIBRATION,
    card,
    gpt2_config,
    job,
    llama_config,
    node,
    request,
    virtual,
)

from frenzy.core.models.shape import model_shape
from frenzy.core.planning.marp import plan_candidates
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.job import Checkpointing, ConstraintsSpec, Objective, Precision
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.units import GIB

configs = st.builds(
    lambda family, heads, width, layers, vocab: (gpt2_config if family else llama_config)(
        heads * width, layers, heads, vocab
    ),
    st.booleans(),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([16, 64, 256]),
    st.integers(1, 12),
    st.sampled_from([300, 5_000, 60_000]),
)
batches = st.sampled_from([1, 2, 5, 6, 12, 16, 30])


@st.composite
def gpu_types(draw: st.DrawFn) -> tuple[GpuType, ...]:
    """One to three types, real or virtual, some too small for anything."""
    count = draw(st.integers(1, 3))
    price = st.sampled_from([None, 0.0, 0.5, 2.0])
    real = st.builds(card, st.just("x"), st.sampled_from([0.3, 1.0, 4.0, 16.0]), st.sampled_from([20.0, 300.0]), price)
    fake = st.builds(virtual, st.just("x"), st.sampled_from([150, 300, 2000]), st.sampled_from([10.0, 50.0]), price)
    return tuple(dataclasses.replace(draw(st.one_of(real, fake)), name=f"type{index}") for index in range(count))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Each type on one to three nodes of one to four GPUs, with much or little host memory."""
    types = draw(gpu_types())
    nodes = [
        dataclasses.replace(
            node(f"{gpu.name}-{index}", gpu.name, draw(st.integers(1, 4))),
            host_memory_bytes=round(draw(st.sampled_from([0.5, 4, 64])) * GIB),
        )
        for gpu in types
        for index in range(draw(st.integers(1, 3)))
    ]
    return Cluster(types, tuple(nodes))


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    limits = ConstraintsSpec(
        max_gpus=draw(st.sampled_from([None, None, 1, 3])), max_cost=draw(st.sampled_from([None, None, 0.01, 10.0]))
    )
    of = job(
        global_batch=draw(batches),
        sequence_length=draw(st.sampled_from([32, 256, 1024])),
        objective=draw(st.sampled_from(list(Objective))),
        constraints=limits,
        precision=draw(st.sampled_from([Precision.FP32, Precision.BF16])),
        gradient_checkpointing=draw(st.sampled_from(list(Checkpointing))),
    )
    return request(
        model_shape(draw(configs)),
        of,
        extra_bytes_per_gpu=draw(st.sampled_from([0, 0, 50 * 1024**2])),
        seconds_to_deadline=draw(st.sampled_from([None, None, 60.0])),
    )


def candidates(of: PlanRequest, there: Cluster) -> tuple[Candidate, ...]:
    return plan_candidates(of, there, CALIBRATION)
