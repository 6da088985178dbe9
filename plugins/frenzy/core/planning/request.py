"""What MARP is asked: a job, its model, and what earlier attempts taught."""

from __future__ import annotations

from dataclasses import dataclass

from frenzy.core.memory.measured_runs import NOTHING_MEASURED, MeasuredRuns
from frenzy.core.memory.model_trace import ModelTrace
from frenzy.core.memory.residuals import NOTHING_LEARNED, Residuals, residual_family
from frenzy.core.models.parameters import ModelShape
from frenzy.core.values.gpu_catalogue import SoldAs, sold_as_nothing
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.resource_plan import PlanShape


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """One planning of one job.

    total_steps: optimizer steps still to do. excluded_shapes: plans that failed, never offered again. only_shapes: the
    only plans that are looked at, where there are any; for the closed form. extra_bytes_per_gpu: memory seen beyond the
    prediction; every plan must have room for it. seconds_to_deadline: from now, when the job has a deadline. residuals:
    what runs of other jobs taught about the predictions. resumes_as: the plan that wrote the checkpoint of a script
    that goes on in the same shape only. every_plan: list also what other plans beat, and all that is refused
    for GPUs that there are. micro_batch_size: of the only plans that are looked at. measured_runs: what runs of the
    same script took, where nobody names its model. trace: of a model whose family has no coefficients. known_tokens:
    of a tokenizer that exists already, where its size is known. reported_release: of transformers, as the agent
    found it installed beside the script. sold_as: what drivers' names in constraints.gpu_types may mean.
    """

    job: TrainingJob
    shape: ModelShape
    total_steps: int
    excluded_shapes: tuple[PlanShape, ...] = ()
    only_shapes: tuple[PlanShape, ...] = ()
    extra_bytes_per_gpu: int = 0
    seconds_to_deadline: float | None = None
    residuals: Residuals = NOTHING_LEARNED
    resumes_as: PlanShape | None = None
    every_plan: bool = False
    micro_batch_size: int | None = None
    measured_runs: MeasuredRuns = NOTHING_MEASURED
    trace: ModelTrace | None = None
    known_tokens: int | None = None
    reported_release: str | None = None
    sold_as: SoldAs = sold_as_nothing

    @property
    def is_narrowed(self) -> bool:
        """Whether only certain plans are looked at."""
        return self.micro_batch_size is not None or bool(self.only_shapes)

    @property
    def script_release(self) -> str | None:
        """Of transformers, as far as it is known what the script runs; what was seen counts more than a word."""
        workload = self.job.workload
        return self.reported_release or (None if workload is None else workload.transformers_release)

    @property
    def residual_family(self) -> str:
        """The family by which residuals are grouped: adapters err otherwise than full training."""
        return residual_family(self.shape.family, adapters=self.job.training.lora is not None)

    @property
    def global_batch_size(self) -> int:
        return self.job.training.global_batch_size

    @property
    def sequence_length(self) -> int:
        return self.job.data.sequence_length
