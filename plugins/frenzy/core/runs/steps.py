"""How many optimizer steps a job has."""

from __future__ import annotations

import math

from frenzy.core.runs.ledger import DataFacts
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import MAX_STEPS, TrainingJob


def total_steps(job: TrainingJob, facts: DataFacts) -> int | None:
    """``max_steps``, or epochs x sequences / global batch, rounded up; None when that is unknown.

    The trainer counts the packed sequences itself; this is the estimate before it has. Raises SpecError
    for more than ``MAX_STEPS``.
    """
    if job.training.max_steps is not None:
        return job.training.max_steps
    if job.training.epochs is None or facts.num_tokens is None:
        return None
    sequences = facts.num_tokens * (1.0 - job.data.validation_fraction) / job.data.sequence_length
    steps = max(1, math.ceil(job.training.epochs * sequences / job.training.global_batch_size))
    if steps > MAX_STEPS:
        allowed = f"at most {MAX_STEPS} optimizer steps in all; these would be {steps:.3g}"
        raise SpecError([Violation(path="training.epochs", value=f"{job.training.epochs:g}", allowed=allowed)])
    return steps
