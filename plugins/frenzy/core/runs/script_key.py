"""Which runs are of the same script: what decides its memory, as a digest. What they took is kept under it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from frenzy.core.memory.measured_runs import (
    GRADIENT_COPY,
    GRADIENT_COPY_OF_SMALL_STATES,
    MeasuredRuns,
)
from frenzy.core.runs.ledger import CalibrationSample, RunRecord
from frenzy.core.runs.masking import masked_at
from frenzy.core.values import codec
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.resource_plan import short_hash
from frenzy.core.values.workload import Honour

# Settings that change no tensor's size, and the batch that each plan divides anew.
_NOT_OF_MEMORY: Final = frozenset(
    {
        "beta1",
        "beta2",
        "epochs",
        "global_batch_size",
        "gradient_clipping",
        "learning_rate",
        "lr_decay_share",
        "lr_min_share",
        "lr_schedule",
        "max_steps",
        "seed",
        "warmup_share",
        "warmup_steps",
        "weight_decay",
        "weight_decay_on",
    }
)
# Of a plan's limits nothing depends: a run on more GPUs is of the same script. Of its task only predictions do.
_NOT_OF_SCRIPT: Final = frozenset({"folder", "min_gpus", "max_gpus", "resumable", "task"})


def script_key(run: RunRecord) -> str:
    """The digest; empty where the built-in trainer trains, or the memory of a named model is predicted.

    Where the folder could not be read, its path stands for what is in it. Masked texts are not in the digest.
    """
    job: TrainingJob = masked_at(run.job, run.masked)
    if job.workload is None or job.names_a_model:
        return ""
    workload = {name: each for name, each in asdict(job.workload).items() if name not in _NOT_OF_SCRIPT}
    training = {name: each for name, each in asdict(job.training).items() if name not in _NOT_OF_MEMORY}
    content = run.script_content or job.workload.folder or ""
    parts = (workload, training, dict(job.env), content, job.data.sequence_length)
    return f"script-{short_hash(*(codec.dumps(each) for each in parts))}"


def script_environment(job: TrainingJob) -> tuple[object, ...]:
    """What tells whether two jobs find the same libraries installed; empty where the built-in trainer trains."""
    workload = job.workload
    if workload is None:
        return ()
    return job.name, workload.image, workload.command, workload.folder, dict(workload.packages)


def measured_runs(run: RunRecord, samples: tuple[CalibrationSample, ...]) -> MeasuredRuns:
    """What ``samples`` of the run's script say of its plans.

    Of a job that declares its memory only whole runs count, and those that ran out.
    """
    workload, training = run.job.workload, run.job.training
    counted = (each for each in samples if run.job.memory is None or each.is_whole or each.censored)
    found = (each.measured_run for each in counted)
    return MeasuredRuns(
        runs=tuple(each for each in found if each is not None),
        divides_states=workload is not None and workload.takes(Honour.ZERO),
        gradient_copy=GRADIENT_COPY if training.optimizer == "adamw" else GRADIENT_COPY_OF_SMALL_STATES,
    )
