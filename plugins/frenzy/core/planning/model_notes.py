"""What a job trains, in one line, and what its user may not expect of that; the same words in every list of plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from frenzy.core.models.parameters import ModelShape
from frenzy.core.values.job import BYTE_TOKENS, TrainingJob
from frenzy.core.values.units import counted, large_number

# From so many entries on a vocabulary was made for a tokenizer of its own, not for bytes and a few marks.
_OWN_VOCABULARY: Final = 1024


def model_line(job: TrainingJob, shape: ModelShape, total_steps: int) -> str | None:
    """Family and parameters, first weights, tokenizer, and the tokens of ``total_steps``; None where no model is named.

    Of a script only the model is known: the rest is its own.
    """
    if not job.names_a_model:
        return None
    model = f"{shape.family} of {large_number(shape.num_parameters)} parameters"
    if job.workload is not None:
        return f"{model}; the script brings weights, tokenizer and data"
    num_tokens = total_steps * job.training.global_batch_size * job.data.sequence_length
    tokens = f"{large_number(num_tokens)} tokens in {counted(total_steps, 'step')}"
    return f"{model}, {_first_weights(job)}; {_tokenizer(job, shape)}; {tokens}"


def model_notes(job: TrainingJob, shape: ModelShape) -> tuple[str, ...]:
    """What the job does by default although hardly anybody means it; nothing of a script, whose own it is."""
    return () if job.workload is not None or not job.names_a_model else tuple(_notes(job, shape))


def _notes(job: TrainingJob, shape: ModelShape) -> Iterator[str]:
    model = job.model
    if model.tokenizer is None and model.tokenizer_size == BYTE_TOKENS and shape.vocab_size >= _OWN_VOCABULARY:
        yield (
            f"model.tokenizer is byte where none is named: each byte is a token, and {BYTE_TOKENS} of the vocabulary's "
            f"{shape.vocab_size:,} entries are used, for several times the tokens. Set model.tokenizer: the folder of "
            "the model's tokenizer, train, or byte where that is meant."
        )
    if job.training.lora is not None and job.starts_random:
        yield (
            "training.lora adapts random weights, which stay as they were drawn. Set model.path, model.hub_id or "
            "checkpoint.warm_start to adapt weights that are trained, or leave training.lora out."
        )


def _first_weights(job: TrainingJob) -> str:
    model, earlier = job.model, job.checkpoint.warm_start
    if earlier is not None:
        return f"weights of {earlier}"
    if model.path is not None:
        return f"weights of {model.path}, or random ones if it has none"
    return "random weights" if model.hub_id is None else f"weights of the hub's {model.hub_id}"


def _tokenizer(job: TrainingJob, shape: ModelShape) -> str:
    size = job.model.tokenizer_size
    of = f"vocabulary of {shape.vocab_size:,}"
    return f"tokenizer {job.model.tokenizer_used}, {of if size is None else f'{size:,} of the {of}'}"
