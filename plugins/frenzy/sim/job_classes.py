"""Classes of LLM jobs: a model, how it is trained, and for which sizes of job it is drawn.

No public trace records what its jobs trained. The sizes are those of the workloads of Pollux (OSDI
2021) and Sia (SOSP 2023), by GPU-hours: small below 1, medium to 10, large to 100, xlarge beyond.
Which models belong to which size is this project's assumption: small jobs try things out with models
of 124M to 410M or adapters on small ones, xlarge ones train 1.4B to 7B. Each class of a size is as
likely as any other. Full training and adapters (LoRA, rank 16), sequences of 512 to 4,096 tokens,
global batches of 16 to 512 sequences.

All jobs of a workload train in the same 16-bit format, unless it names one: bf16 where every card of
the cluster has units for it, else fp16, which older cards compute many times faster than bf16.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from frenzy.core.models.shape import ModelShape, model_shape
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.job import DataSpec, LoraSpec, ModelSpec, Precision, TrainingJob, TrainingSpec
from frenzy.sim.model_sizes import MODELS

# Steps of a job of work 1.0; jobs are multiples of it.
UNIT_STEPS: Final = 1000


class JobSize(StrEnum):
    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"
    XLARGE = "xlarge"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClass:
    """Jobs that differ only in how long they train. sizes: those it is drawn for."""

    model: str
    sequence_length: int
    global_batch_size: int
    sizes: tuple[JobSize, ...]
    lora: bool = False

    @property
    def name(self) -> str:
        """Model, sequence length, global batch and, if so, that adapters are trained."""
        return f"{self.model}-s{self.sequence_length}-b{self.global_batch_size}" + ("-lora" if self.lora else "")

    @property
    def shape(self) -> ModelShape:
        return model_shape(MODELS[self.model])

    def training_job(self, precision: Precision) -> TrainingJob:
        """The job as a user would hand it over."""
        return TrainingJob(
            name=self.name.replace(".", "-"),
            model=ModelSpec(config=MODELS[self.model]),
            data=DataSpec(path="corpus", sequence_length=self.sequence_length),
            training=TrainingSpec(
                global_batch_size=self.global_batch_size,
                max_steps=UNIT_STEPS,
                precision=precision,
                lora=LoraSpec() if self.lora else None,
            ),
        )


def _class(model: str, sequence_length: int, batch: int, *sizes: JobSize, lora: bool = False) -> JobClass:
    return JobClass(
        model=model, sequence_length=sequence_length, global_batch_size=batch, sizes=tuple(sizes), lora=lora
    )


_SMALL, _MEDIUM, _LARGE, _XLARGE = JobSize

CLASSES: Final = (
    _class("gpt2-124m", 512, 32, _SMALL),
    _class("gpt2-124m", 1024, 64, _SMALL, _MEDIUM),
    _class("opt-125m", 1024, 64, _SMALL),
    _class("pythia-160m", 2048, 64, _SMALL, _MEDIUM),
    _class("gpt2-355m", 1024, 32, _SMALL),
    _class("pythia-410m", 1024, 64, _SMALL),
    _class("qwen2.5-0.5b", 1024, 16, _SMALL, lora=True),
    _class("tinyllama-1.1b", 1024, 16, _SMALL, lora=True),
    _class("gpt2-355m", 1024, 128, _MEDIUM),
    _class("pythia-410m", 2048, 128, _MEDIUM),
    _class("gpt2-774m", 1024, 64, _MEDIUM),
    _class("qwen2.5-0.5b", 2048, 64, _MEDIUM),
    _class("llama-3.2-1b", 2048, 32, _MEDIUM, lora=True),
    _class("qwen2.5-1.5b", 2048, 32, _MEDIUM, lora=True),
    _class("pythia-1b", 2048, 128, _LARGE),
    _class("gpt2-1.5b", 1024, 128, _LARGE),
    _class("opt-1.3b", 2048, 128, _LARGE),
    _class("tinyllama-1.1b", 2048, 256, _LARGE),
    _class("llama-3.2-1b", 4096, 64, _LARGE),
    _class("qwen2.5-1.5b", 2048, 128, _LARGE),
    _class("llama-3.2-3b", 4096, 64, _LARGE, lora=True),
    _class("llama-2-7b", 2048, 64, _LARGE, lora=True),
    _class("pythia-1.4b", 2048, 512, _XLARGE),
    _class("opt-2.7b", 2048, 256, _XLARGE),
    _class("pythia-2.8b", 2048, 512, _XLARGE),
    _class("llama-3.2-3b", 4096, 128, _XLARGE),
    _class("qwen2.5-7b", 4096, 128, _XLARGE, lora=True),
    _class("llama-2-7b", 4096, 256, _XLARGE),
    _class("pythia-6.9b", 2048, 512, _XLARGE),
    _class("llama-2-13b", 4096, 128, _XLARGE, lora=True),
)


def precision_for(cluster: Cluster) -> Precision:
    """The 16-bit format that all cards of ``cluster`` compute at full rate."""
    types = (each for each in cluster.gpu_types if cluster.num_gpus_by_type[each.name])
    have_bf16 = all(each.peak_flops_per_s(Precision.BF16) == each.flops_per_s for each in types)
    return Precision.BF16 if have_bf16 else Precision.FP16
