"""The figures of docs/host-memory.md are those of the planner and of the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
from tests.unit.adapters.k8s import pod_examples
from tests.unit.core.marp_values import CALIBRATION

from frenzy.adapters.k8s.launcher.pod_manifest import pods_of
from frenzy.adapters.k8s.pod_rules import parse_pod_rules
from frenzy.core.memory.closed_form import PlanRow, predict_memory
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.candidates import TypeFacts, workload_of
from frenzy.core.planning.grid import grid_of
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.job import DataSpec, LoraSpec, ModelSpec, Precision, TrainingJob, TrainingSpec
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.units import format_bytes
from frenzy.settings import CHECKOUT

PAGE: Final = CHECKOUT / "docs/host-memory.md"
SEQUENCE_LENGTH: Final = 4096
LLAMA: Final = {"model_type": "llama", "max_position_embeddings": 8192, "tie_word_embeddings": False}


def llama(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int, **other: Any) -> dict[str, Any]:
    widths = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": vocab}
    return {**LLAMA, **widths, "num_attention_heads": heads, "num_key_value_heads": kv_heads, **other}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    config: Mapping[str, Any]
    card: str
    row: PlanRow
    lora: LoraSpec | None = None
    optimizer: str = "adamw"

    @property
    def request(self) -> PlanRequest:
        batch = self.row.dp * self.row.micro_batch * self.row.accumulation
        training = TrainingSpec(
            global_batch_size=batch, max_steps=1000, precision=Precision.BF16, lora=self.lora, optimizer=self.optimizer
        )
        job = TrainingJob(
            name="example",
            model=ModelSpec(path="/models/example"),
            data=DataSpec(path="/data", sequence_length=SEQUENCE_LENGTH),
            training=training,
        )
        return PlanRequest(job=job, shape=model_shape(self.config), total_steps=1000)

    @property
    def plan(self) -> ResourcePlan:
        gpu, ranks = CATALOGUE[self.card].gpu, self.row.dp * self.row.tp
        found = predict_memory(workload_of(self.request, gpu.kind), grid_of([self.row]), CALIBRATION)
        assert found is not None
        facts = TypeFacts(self.request, gpu, CALIBRATION, ranks, ranks, 2**50)
        return facts.plan(self.row, found.prediction(0, ranks))

    @property
    def spec(self) -> LaunchSpec:
        gpu, plan = CATALOGUE[self.card].gpu, self.plan
        made = pod_examples.spec(gpu, pod_examples.node("node", gpu, plan.num_gpus))
        return LaunchSpec(**{name: getattr(made, name) for name in made.__slots__} | {"plan": plan})


EXAMPLES: Final[Mapping[str, Example]] = {
    "8B, all weights, 8 x H100": Example(
        config=llama(4096, 14336, 32, 32, 8, 128256),
        card="h100",
        row=PlanRow(dp=8, tp=1, zero_stage=3, micro_batch=1, accumulation=8, checkpointing=True),
    ),
    "70B, QLoRA, 2 x A100 80 GB": Example(
        config=llama(8192, 28672, 80, 64, 8, 128256),
        card="a100-80",
        row=PlanRow(dp=2, tp=1, zero_stage=1, micro_batch=1, accumulation=8, checkpointing=True),
        lora=LoraSpec(rank=16, quantization="nf4", double_quantization=True),
    ),
    "1B, all weights, 8-bit AdamW, one RTX 4090": Example(
        config=llama(2048, 5632, 22, 32, 4, 32000),
        optimizer="adamw-8bit",
        card="rtx-4090",
        row=PlanRow(dp=1, tp=1, zero_stage=1, micro_batch=1, accumulation=16, checkpointing=True),
    ),
    "7B, ZeRO-2 with offload, 2 x A100 40 GB": Example(
        config=llama(4096, 11008, 32, 32, 32, 32000),
        card="a100-40",
        row=PlanRow(dp=2, tp=1, zero_stage=2, micro_batch=1, accumulation=8, checkpointing=True, offload=True),
    ),
}


def lines(name: str) -> Iterator[str]:
    """The lines of an example on the page."""
    spec = EXAMPLES[name].spec
    memory, ranks = spec.plan.memory, spec.plan.num_gpus
    rules = parse_pod_rules(pod_examples.PLAIN)
    (pod,) = pods_of(spec, rules)
    yield f"### {name}"
    yield f"`{spec.plan.plan_id}`"
    for term in memory.host_terms:
        times = f"{ranks} × {format_bytes(term.num_bytes)}" if term.of_each_rank else "once"
        yield f"| {term.name} | {times} | {format_bytes(term.bytes_of(ranks))} |"
    yield f"| **the plan's host memory** | | **{format_bytes(memory.host_bytes)}** |"
    for field, each in (
        ("shm_per_gpu", rules.shm_per_gpu_bytes),
        ("extra_host_memory_per_gpu", rules.extra_host_memory_per_gpu_bytes),
    ):
        yield f"| `{field}` | {ranks} × {format_bytes(each)} | {format_bytes(ranks * each)} |"
    asked = pod_examples.container(pod)["resources"]["limits"]["memory"]
    assert asked == pod_examples.container(pod)["resources"]["requests"]["memory"]
    yield f"| **memory of the pod** | request = limit | **`{asked}`** |"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_says_what_the_planner_and_the_manifest_say(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [line for line in lines(name) if line not in text]
    assert missing == [], "put these lines on the page:\n" + "\n".join(lines(name))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_plans_of_the_page_fit_their_cards(name: str) -> None:
    plan = EXAMPLES[name].plan
    assert plan.memory.required_bytes <= plan.gpu_memory_bytes
