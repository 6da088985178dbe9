"""How many optimizer steps a job has."""

from __future__ import annotations

import math

from frenzy.core.runs.ledger import FINAL_STATES, DataFacts, RunRecord
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import MAX_STEPS, TrainingJob, TrainingSpec


def total_steps(job: TrainingJob, facts: DataFacts) -> int | None:
    """The estimate before the sequences are counted; None when it is unknown. Raises SpecError as ``steps_of``."""
    if job.training.max_steps is None and (job.training.epochs is None or facts.num_tokens is None):
        return None
    sequences = (facts.num_tokens or 0) * (1.0 - job.data.validation_fraction) / job.data.sequence_length
    return steps_of(job.training, num_sequences=sequences)


def steps_are_estimated(run: RunRecord) -> bool:
    """Whether ``run.total_steps`` is of tokens that nobody has counted: where no task prepares the data, workers do."""
    is_of_tokens = run.total_steps is not None and run.job.training.max_steps is None
    if not is_of_tokens or run.prepared is not None or run.state in FINAL_STATES:
        return False
    return run.total_steps == total_steps(run.job, run.data_facts)


def steps_of(training: TrainingSpec, *, num_sequences: float) -> int:
    """``max_steps``, or epochs x sequences / global batch, rounded up. Raises SpecError for more than ``MAX_STEPS``."""
    if training.max_steps is not None:
        return training.max_steps
    assert training.epochs is not None
    steps = max(1, math.ceil(training.epochs * num_sequences / training.global_batch_size))
    if steps > MAX_STEPS:
        allowed = f"at most {MAX_STEPS} optimizer steps in all; these would be {steps:.3g}"
        raise SpecError([Violation(path="training.epochs", value=f"{training.epochs:g}", allowed=allowed)])
    return steps
