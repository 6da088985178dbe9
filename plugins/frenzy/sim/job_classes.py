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

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from frenzy.core.models.family_fields import Config
from frenzy.core.models.shape import ModelShape, model_shape
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.job import DataSpec, LoraSpec, ModelSpec, Precision, TrainingJob, TrainingSpec

# Published models, as complete configs.
MODELS: Final[Mapping[str, Config]] = json.loads(Path(__file__).with_name("models.json").read_text())
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


CLASSES: Final = tuple(
    JobClass(model=model, sequence_length=length, global_batch_size=batch, sizes=tuple(map(JobSize, sizes)), lora=lora)
    for model, length, batch, sizes, lora in json.loads(Path(__file__).with_name("job_classes.json").read_text())
)


def precision_for(cluster: Cluster) -> Precision:
    """The 16-bit format that all cards of ``cluster`` compute at full rate."""
    types = (each for each in cluster.gpu_types if cluster.num_gpus_by_type[each.name])
    have_bf16 = all(each.peak_flops_per_s(Precision.BF16) == each.flops_per_s for each in types)
    return Precision.BF16 if have_bf16 else Precision.FP16
