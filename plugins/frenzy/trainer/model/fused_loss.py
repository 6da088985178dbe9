"""The language-modelling loss and its gradients from the last hidden states, chunk by chunk.

The plain loss keeps the logits of all tokens, in the weights' format and again in fp32, until the
backward pass. Here the output matrix is applied to a chunk of tokens at a time: the chunk's loss
and its gradients are added up at once and its logits are gone before the next. The mathematics is
the plain loss's: mean of the fp32 cross-entropy over the labels that are not ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn import functional

from frenzy.core.memory.loss_chunks import loss_chunk_tokens
from frenzy.trainer.outcome import BadInputError

IGNORED: Final = -100


def shifted_labels(labels: torch.Tensor) -> torch.Tensor:
    """[batch, length] -> [batch * length]: at each position the token that follows; the last is ignored."""
    return functional.pad(labels[..., 1:], (0, 1), value=IGNORED).reshape(-1)


class LinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of ``softmax(scale * (hidden @ weight.T + bias))`` against ``labels``.

    hidden [tokens, width], weight [vocabulary, width], bias [vocabulary] or None, labels [tokens]
    with IGNORED where a position does not count. The result is an fp32 scalar.

    Held from the forward to the backward pass: the gradient of hidden in its format and, where the
    weight is trained, the gradient of the weight in fp32. They are those of the sum over tokens,
    so that fp16 neither under- nor overflows, and are divided by the count in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        scale: float,
        chunk_tokens: int,
    ) -> torch.Tensor:
        kind = hidden.device.type
        ctx.formats = (hidden.dtype, weight.dtype)
        if torch.is_autocast_enabled(kind):
            compute = torch.get_autocast_dtype(kind)
            hidden, weight = hidden.to(compute), weight.to(compute)
        with torch.autocast(kind, enabled=False):
            total, ctx.gradients = _by_chunks(
                _Head(weight, bias, scale), hidden, labels, chunk_tokens, ctx.needs_input_grad
            )
        count = (labels != IGNORED).sum()
        ctx.count = count
        return total / count

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradients of the fused loss can be used once")
        factor = grad_output / ctx.count
        (of_hidden, of_weight, of_bias), ctx.gradients = ctx.gradients, None
        hidden_dtype, weight_dtype = ctx.formats
        return (
            None if of_hidden is None else of_hidden.mul_(factor).to(hidden_dtype),
            None if of_weight is None else of_weight.mul_(factor).to(weight_dtype),
            None if of_bias is None else of_bias.mul_(factor).to(weight_dtype),
            None,
            None,
            None,
        )


_Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class _Head:
    weight: torch.Tensor
    bias: torch.Tensor | None
    scale: float

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, vocabulary] in fp32, computed in the weight's format."""
        logits = hidden @ self.weight.t()
        if self.bias is not None:
            logits += self.bias
        logits = logits.float()
        return logits.mul_(self.scale) if self.scale != 1.0 else logits


def _by_chunks(
    head: _Head, hidden: torch.Tensor, labels: torch.Tensor, chunk_tokens: int, needed: tuple[bool, ...]
) -> tuple[torch.Tensor, _Gradients]:
    """Sum of the losses, and the gradients of that sum."""
    weight, bias = head.weight, head.bias
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    of_hidden = torch.empty_like(hidden) if needed[0] else None
    of_weight = torch.zeros_like(weight, dtype=torch.float32) if needed[1] else None
    of_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and needed[2] else None
    for start in range(0, hidden.shape[0], chunk_tokens):
        piece = hidden[start : start + chunk_tokens]
        loss, of_logits = _loss_and_gradient(head, piece, labels[start : start + chunk_tokens])
        total += loss
        if of_bias is not None:
            of_bias += of_logits.sum(0)
        of_logits = of_logits.to(weight.dtype)
        if of_hidden is not None:
            torch.matmul(of_logits, weight, out=of_hidden[start : start + chunk_tokens])
        if of_weight is not None:
            _add_product(of_weight, of_logits, piece)
        del of_logits
    return total, (of_hidden, of_weight, of_bias)


def _loss_and_gradient(head: _Head, hidden: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A chunk's summed loss, and that sum's gradient by the unscaled logits, in fp32 and in their place."""
    logits = head.logits(hidden)
    counts = (labels != IGNORED).unsqueeze(1)
    index = labels.clamp(min=0).unsqueeze(1)
    logits -= logits.amax(1, keepdim=True)
    of_label = logits.gather(1, index)
    sums = logits.exp_().sum(1, keepdim=True)
    loss = ((sums.log() - of_label) * counts).sum()
    logits.div_(sums)
    logits.scatter_add_(1, index, torch.full_like(sums, -1.0))
    logits *= counts * head.scale
    return loss, logits


def _add_product(total: torch.Tensor, of_logits: torch.Tensor, hidden: torch.Tensor) -> None:
    if of_logits.dtype == total.dtype:
        total.addmm_(of_logits.t(), hidden)
    else:
        total += of_logits.t() @ hidden


class FusedHead(torch.nn.Module):
    """An output layer that returns the loss instead of the logits while labels are set.

    It holds the very parameters of the layer it stands for, under the same names, so that tied
    weights, adapters, ZeRO and checkpoints see no difference.
    """

    def __init__(self, head: Any, scale: float) -> None:
        super().__init__()
        self.weight, self.bias = head.weight, head.bias
        self.scale = scale
        self.labels: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.labels is None:
            return functional.linear(hidden, self.weight, self.bias)
        labels, self.labels = shifted_labels(self.labels), None
        flat = hidden.reshape(-1, hidden.shape[-1])
        chunk = loss_chunk_tokens(flat.shape[0], self.weight.shape[0])
        apply: Callable[..., torch.Tensor] = LinearCrossEntropy.apply  # torch gives it no types
        return apply(flat, self.weight, self.bias, labels, self.scale, chunk)


def fuse_loss(model: Any) -> None:
    """Make ``model``, a causal language model of transformers, compute its loss without all logits.

    Raises BadInputError for a model whose logits go through more than a scale before the loss.
    """
    config, head = model.config, model.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        kind = type(head).__name__
        raise BadInputError("training.loss", "fused", f"the output layer is a {kind}, not a plain matrix; use torch")
    if getattr(config, "final_logit_softcapping", None) is not None:
        raise BadInputError("training.loss", "fused", "this model caps its logits before the loss; use torch")
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    fused = FusedHead(head, scale)
    model.set_output_embeddings(fused)

    def note_labels(module: Any, arguments: Any, named: dict[str, Any]) -> None:
        fused.labels = named.get("labels")

    def loss_of(logits: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        # The model scales what it takes for logits, which is the loss by now.
        return logits / scale if scale != 1.0 else logits

    model.register_forward_pre_hook(note_labels, with_kwargs=True)
    model.loss_function = loss_of
