"""The rules of a job specification that span its fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from frenzy.core.values.errors import Violation
from frenzy.core.values.job import (
    GENERATION_MARK,
    LONGEST_NAME,
    MASKING_ATTENTION,
    OUTPUT_HEADS,
    ConstraintsSpec,
    DataSpec,
    Precision,
    TrackerSpec,
    TrainingJob,
    TrainingSpec,
    ValidationSpec,
)
from frenzy.core.values.job_environment import environment_violations
from frenzy.core.values.workload import WorkloadSpec, memory_violations, workload_violations


def cross_field_violations(job: TrainingJob) -> tuple[Violation, ...]:
    """Every rule that spans fields and that ``job`` breaks, in the order of the fields."""
    found: list[Violation] = []
    sources = job.model.sources
    if len(sources) > 1 or (not sources and job.workload is None):
        found.append(_violation("model", ", ".join(sources) or "no source", "give exactly one of config, path, hub_id"))
    if job.model.revision is not None and job.model.hub_id is None:
        found.append(_violation("model.revision", job.model.revision, "only model.hub_id has revisions; leave it out"))
    if not job.data.path and job.workload is None:
        found.append(Violation(path="data.path", value="nothing", allowed="required: a file, folder, glob or URL"))
    if job.model.config is not None and not isinstance(job.model.config.get("model_type"), str):
        found.append(
            _violation(
                "model.config.model_type", job.model.config.get("model_type"), "name the family, e.g. gpt2 or llama"
            )
        )
    if job.model.config is not None and job.model.tokenizer == "model" and job.workload is None:
        allowed = "a model.config has no tokenizer of its own: give byte, train or a folder"
        found.append(_violation("model.tokenizer", "model", allowed))
    found += _vocabulary_violations(job)
    found += _workload_violations(job)
    if job.workload is None and (job.training.max_steps is None) == (job.training.epochs is None):
        found.append(
            _violation("training.max_steps", job.training.max_steps, "give exactly one of max_steps and epochs")
        )
    found += _schedule_violations(job.training)
    found += _option_violations(job.training)
    found += _document_violations(job)
    found += _conversation_violations(job)
    found += _validation_violations(job.validation, job.data)
    found += _tracking_violations(job.tracking)
    if job.constraints.deadline is not None and not _is_time_with_zone(job.constraints.deadline):
        found.append(
            _violation(
                "constraints.deadline", job.constraints.deadline, "give ISO 8601 with a zone, e.g. 2027-01-31T18:00:00Z"
            )
        )
    found += _type_name_violations(job.constraints)
    if job.trigger.cron and job.trigger.assets:
        found.append(_violation("trigger", "cron and assets", "give at most one of cron and assets"))
    found += environment_violations(job.env, job.secrets)
    return tuple(found)


def _vocabulary_violations(job: TrainingJob) -> Iterator[Violation]:
    """A model that has no row for some of its tokenizer's tokens."""
    words, tokens = (job.model.config or {}).get("vocab_size"), job.model.tokenizer_size
    if job.workload is None and isinstance(words, int) and tokens is not None and words < tokens:
        size = " (model.tokenizer_vocab_size)" if job.model.tokenizer_used == "train" else ""
        allowed = f"at least {tokens}, the tokens of the tokenizer {job.model.tokenizer_used!r}{size}"
        yield _violation("model.config.vocab_size", words, allowed)


def _workload_violations(job: TrainingJob) -> Iterator[Violation]:
    """What only a script may have, and what only the built-in trainer does."""
    if job.workload is None:
        if job.memory is not None:
            yield _violation("memory", job.memory.per_gpu, "only for a workload; the built-in trainer's is predicted")
        return
    yield from workload_violations(job.workload)
    if job.memory is not None:
        yield from memory_violations(job.memory)
    batch, least = job.training.global_batch_size, job.workload.min_gpus
    if not any(batch % each == 0 for each in _widths(job.workload, job.training)):
        most = job.workload.most_gpus
        widths = (
            f"{least} GPUs" if most == least else f"one of {least} to {'any number of' if most is None else most} GPUs"
        )
        near = " or ".join(str(each) for each in sorted({batch // least * least, -(-batch // least) * least} - {0}))
        allowed = f"a number that {widths} can share evenly (workload.min_gpus, max_gpus, honours), such as {near}"
        yield _violation("training.global_batch_size", batch, allowed)
    theirs = (
        ("data.messages", job.data.messages is not None),
        ("data.document_masks", job.data.document_masks),
        ("training.epochs", job.training.epochs),
        ("training.callbacks", job.training.callbacks),
        ("checkpoint.warm_start", job.checkpoint.warm_start),
        ("validation.every_steps", job.validation.every_steps),
        ("validation.path", job.validation.path),
    )
    for path, value in theirs:
        if value:
            yield _violation(path, value, "the built-in trainer's alone; leave it out, the script does it itself")


def _widths(workload: WorkloadSpec, training: TrainingSpec) -> range:
    """Numbers of GPUs that the script may be given and that a batch can be cut over."""
    most = training.global_batch_size if workload.most_gpus is None else workload.most_gpus
    return range(workload.min_gpus, min(most, training.global_batch_size) + 1)


def _schedule_violations(training: TrainingSpec) -> Iterator[Violation]:
    """Learning rates that no run can follow."""
    if training.max_steps is not None and training.warmup_steps > training.max_steps:
        yield _violation("training.warmup_steps", training.warmup_steps, f"at most max_steps = {training.max_steps}")
    if training.warmup_steps and training.warmup_share:
        yield _violation("training.warmup_share", training.warmup_share, "give at most one of it and warmup_steps")
    if training.lr_min_share and training.lr_schedule == "constant":
        allowed = "only with training.lr_schedule = linear, cosine or wsd; constant has no decay"
        yield _violation("training.lr_min_share", training.lr_min_share, allowed)


def _option_violations(training: TrainingSpec) -> list[Violation]:
    """Choices of how to train that contradict each other."""
    found: list[Violation] = []
    lora = training.lora
    if training.attention.startswith("flash") and training.precision is Precision.FP32:
        found.append(_violation("training.attention", training.attention, "it computes in 16 bits; use sdpa or eager"))
    if lora is not None and lora.double_quantization and lora.quantization == "none":
        found.append(
            _violation("training.lora.double_quantization", True, "only with training.lora.quantization = nf4")
        )
    if training.compile and training.kernels == "liger":
        found.append(_violation("training.compile", True, "not with training.kernels = liger; use one of the two"))
    heads = [each for each in (lora.target_modules if lora else ()) if each.rsplit(".", 1)[-1] in OUTPUT_HEADS]
    if training.loss == "fused" and heads:
        allowed = f"the fused loss computes the output head itself; leave out {', '.join(heads)} or use loss = torch"
        found.append(_violation("training.lora.target_modules", heads, allowed))
    return found


def _document_violations(job: TrainingJob) -> Iterator[Violation]:
    """Attention that no document mask reaches: of several packed sequences FlashAttention here masks none."""
    if job.data.document_masks and job.training.attention not in MASKING_ATTENTION:
        allowed = f"data.document_masks needs {' or '.join(MASKING_ATTENTION)}"
        yield _violation("training.attention", job.training.attention, allowed)


def _conversation_violations(job: TrainingJob) -> Iterator[Violation]:
    """Conversations that could not be told from texts, or their answers from their questions."""
    asked = job.data.messages
    if asked is None:
        return
    if job.data.format == "text":
        yield _violation("data.format", "text", "data.messages needs jsonl, parquet or arrow")
    if asked.template and not re.search(GENERATION_MARK, asked.template):
        allowed = "put {% generation %} and {% endgeneration %} around the assistant's text: that is what is learnt"
        yield Violation(path="data.messages.template", value="no {% generation %}", allowed=allowed)
    if not asked.template and job.model.tokenizer_used in ("byte", "train"):
        allowed = f"required: the tokenizer {job.model.tokenizer_used!r} has no chat template of its own"
        yield Violation(path="data.messages.template", value="nothing", allowed=allowed)


def _validation_violations(validation: ValidationSpec, data: DataSpec) -> Iterator[Violation]:
    """What cannot be had without a validation, and what a validation cannot do without."""
    if validation.path is not None and data.validation_fraction:
        allowed = "0 beside validation.path: all of data.path is trained on"
        yield _violation("data.validation_fraction", data.validation_fraction, allowed)
    if validation.every_steps is not None and validation.path is None and data.validation_fraction == 0:
        allowed = "no text is held out; give data.validation_fraction above 0, or validation.path"
        yield _violation("validation.every_steps", validation.every_steps, allowed)
    if validation.final_model == "best" and not validation.keep_best:
        yield _violation("validation.final_model", "best", "only with validation.keep_best = true")
    if validation.every_steps is None:
        for name in ("patience", "keep_best"):
            if getattr(validation, name):
                yield _violation(f"validation.{name}", getattr(validation, name), "only with validation.every_steps")


def _tracking_violations(tracking: tuple[TrackerSpec, ...]) -> Iterator[Violation]:
    """Trackers that nobody could reach, and addresses that hold a password."""
    kinds = [each.kind for each in tracking]
    for index, each in enumerate(tracking):
        path = f"tracking[{index}]"
        if each.kind in kinds[:index]:
            yield _violation(f"{path}.kind", each.kind, "give each tracker once")
        if each.kind == "mlflow" and each.mode == "online" and each.uri is None:
            yield Violation(path=f"{path}.uri", value="nothing", allowed="required: MLflow's server, or mode: offline")
        if each.uri is not None:
            yield from _address_violations(f"{path}.uri", each)
        if each.kind == "tensorboard" and each.project:
            yield _violation(f"{path}.project", each.project, "TensorBoard's files lie in the run directory; leave out")


def _address_violations(path: str, tracker: TrackerSpec) -> Iterator[Violation]:
    if tracker.kind == "tensorboard" or tracker.mode == "offline":
        yield Violation(path=path, value="an address", allowed="its files lie in the run directory; leave it out")
    elif not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", tracker.uri or ""):
        allowed = "http(s)://host[:port][/path], without a password: give that by a reference in secrets"
        yield Violation(path=path, value="another address", allowed=allowed)


def _type_name_violations(constraints: ConstraintsSpec) -> list[Violation]:
    """Every refused plan quotes the names."""
    return [
        Violation(
            path=f"constraints.gpu_types[{index}]",
            value=f"{len(name)} characters",
            allowed=f"at most {LONGEST_NAME} characters",
        )
        for index, name in enumerate(constraints.gpu_types)
        if len(name) > LONGEST_NAME
    ]


def _is_time_with_zone(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _violation(path: str, value: object, allowed: str) -> Violation:
    return Violation(path=path, value=repr(value), allowed=allowed)
