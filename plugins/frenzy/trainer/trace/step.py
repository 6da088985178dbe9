"""Two training steps of a real model class on tensors without data: what is held, when, for what.

    result = traced_run({"model_type": "llama", ...}, TraceChoices(batch=4, sequence_length=4096))

No GPU, no weights; seconds and a few hundred megabytes for billions of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch

from frenzy.core.memory.cuda_memory import CUBLAS_WORKSPACES_BYTES
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.job import LoraSpec, Precision
from frenzy.trainer.trace.cuda import ALLOCATION_GRANULE_BYTES, Answers, cuda_choices, unsupported
from frenzy.trainer.trace.engines import OPTIMIZERS, WEIGHTS, DeepSpeedEngine, PlainEngine, TraceEngine, one_of
from frenzy.trainer.trace.kernels import bytes_on_cuda
from frenzy.trainer.trace.storages import StorageLog
from frenzy.trainer.trace.traced_model import (
    ATTENTION,
    checkpoint_activations,
    replaced_parameters,
    traced_model,
    with_adapters,
    without_data,
)
from frenzy.trainer.trace.traced_moments import TraceResult, read_log

DEVICES: Final = ("cuda", "cpu")
_NUM_STEPS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChoices:
    """What of a run decides its memory, beside the model.

    batch: sequences of a micro-batch. device: whose kernels and allocator are modelled.
    reentrant: the older way of checkpointing. optimizer: adamw (foreach), adamw-fused, sgd.
    fused_loss: the trainer's loss that never holds all logits.
    """

    batch: int
    sequence_length: int
    precision: Precision = Precision.BF16
    checkpointing: bool = False
    reentrant: bool = False
    attention: str = "sdpa"
    optimizer: str = "adamw"
    lora: LoraSpec | None = None
    fused_loss: bool = False
    device: str = "cuda"

    def __post_init__(self) -> None:
        _check("attention", self.attention, ATTENTION)
        _check("optimizer", self.optimizer, OPTIMIZERS)
        _check("device", self.device, DEVICES)
        if min(self.batch, self.sequence_length) < 1:
            raise _refusal(f"batch {self.batch} x sequence_length {self.sequence_length} is refused; at least 1 each.")


def traced_run(
    config: Mapping[str, Any],
    choices: TraceChoices,
    settings: Mapping[str, Any] | None = None,
    *,
    num_ranks: int = 1,
    rank: int = 0,
    seen: Callable[[StorageLog, int], None] | None = None,
) -> TraceResult:
    """The memory of two steps of ``config`` under ``choices``.

    settings: DeepSpeed's, for ``rank`` of ``num_ranks``; None: torch's own optimizer on one card.
    Ranks differ where a tensor lies across two partitions: stage 2 keeps its gradient whole. seen: gets the log of
    both steps, and the event with which the second begins.
    """
    ranks = one_of(num_ranks, rank) if settings is not None else nullcontext()
    answers = Answers(choices.sequence_length)
    with ranks, without_data():
        model = prepared_model(config, choices)
        log = _log(choices, answers)
        if choices.device == "cuda":
            log.reserve(CUBLAS_WORKSPACES_BYTES, "kernel workspaces")
        log.assign([*model.parameters(), *model.buffers()], WEIGHTS)
        run = _Run(model, choices, log)
        if settings is None:
            run.take(PlainEngine(model, choices.optimizer, answers))
        else:
            with log, replaced_parameters():
                engine = DeepSpeedEngine(model, settings, answers, on_cuda=choices.device == "cuda")
            engine.when_reducing(run.reduction_reached)
            run.take(engine)
        for _ in range(_NUM_STEPS):
            second = len(log.events)
            with _told_in_words():
                run.step()
        result = read_log(log, run.marks, kept_bytes=run.kept_bytes)
        if seen is not None:
            seen(log, second)
        if settings is not None:
            engine.close()
        return result


def num_trained(config: Mapping[str, Any], choices: TraceChoices) -> int:
    """Trained parameters of the model, by making it without data."""
    with without_data():
        model = prepared_model(config, choices)
        return sum(each.numel() for each in model.parameters() if each.requires_grad)


def prepared_model(config: Mapping[str, Any], choices: TraceChoices) -> Any:
    """The model as it enters its first step; call it under a fake tensor mode."""
    model = traced_model(config, choices.precision, choices.attention)
    if choices.fused_loss:
        from frenzy.trainer.model.fused_loss import fuse_loss

        fuse_loss(model)
    if choices.lora is not None:
        model = with_adapters(model, choices.lora)
    if choices.checkpointing:
        checkpoint_activations(model, reentrant=choices.reentrant)
    return model


def _log(choices: TraceChoices, answers: Answers) -> StorageLog:
    if choices.device == "cpu":
        return StorageLog(call=answers.call)
    return StorageLog(granule=ALLOCATION_GRANULE_BYTES, call=answers.call, size_of=bytes_on_cuda)


class _Run:
    """A model on its way through its steps; ``marks``: the event at which each moment begins."""

    def __init__(self, model: Any, choices: TraceChoices, log: StorageLog) -> None:
        self._choices, self._log = choices, log
        self.marks: list[tuple[str, int]] = []
        self.kept_bytes = 0
        for each in model.parameters():
            if each.requires_grad:
                each.register_post_accumulate_grad_hook(self._gradient_made)
        head = model.get_output_embeddings()
        if head is not None:
            head.register_forward_pre_hook(self._head_reached)

    def take(self, engine: TraceEngine) -> None:
        """Run with ``engine`` from now on."""
        self._engine = engine
        engine.sort(self._log)

    def step(self) -> None:
        # The kernels' stand-ins stay for the backward pass too: checkpointed layers run forward in it again.
        with self._log, self._kernels():
            for _ in range(self._engine.num_micro_batches - 1):
                self._micro_batch()
                self._engine.step()  # DeepSpeed counts by it; nothing is updated before the last one
            self._micro_batch()
            self._mark("optimizer step")
            self._engine.step()
            self._engine.sort(self._log)
            self._mark("between steps")

    def _micro_batch(self) -> None:
        self._mark("forward")
        tokens = torch.zeros((self._choices.batch, self._choices.sequence_length), dtype=torch.long)
        with self._autocast():
            loss = self._engine.forward(tokens)
        self.kept_bytes = self._log.assign_live("activations")
        self._engine.backward(loss)

    def reduction_reached(self) -> None:
        self._mark("reduction")

    def _kernels(self) -> AbstractContextManager[object]:
        return cuda_choices() if self._choices.device == "cuda" else nullcontext()

    def _autocast(self) -> AbstractContextManager[object]:
        if self._choices.precision is Precision.AUTOCAST_BF16:
            return torch.autocast("cpu", torch.bfloat16)
        return nullcontext()

    def _mark(self, moment: str) -> None:
        self.marks.append((moment, len(self._log.events)))

    def _gradient_made(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._log.assign([parameter.grad], "gradients")

    def _head_reached(self, _module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        if self.marks[-1][0] != "forward":
            return
        self._mark("loss")
        if inputs[0].requires_grad:
            inputs[0].register_hook(self._head_left)

    def _head_left(self, _gradient: torch.Tensor) -> None:
        self._mark("backward")


@contextmanager
def _told_in_words() -> Iterator[None]:
    """What fails inside a model's own code becomes a refusal that quotes it."""
    try:
        yield
    except PermanentError:
        raise
    except Exception as error:  # a model can fail in as many ways as there are models
        raise unsupported("the model's own code", f"{type(error).__name__}: {error}"[:300]) from error


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _refusal(f"{name} {value!r} is refused; allowed: {', '.join(allowed)}.")


def _refusal(detail: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail))
