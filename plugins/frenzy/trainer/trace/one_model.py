"""Coefficients of one model of any family: ``python -m frenzy.trainer.trace.one_model`` < question.

The question is JSON: ``config`` (complete), ``module_tree`` (its parameters), ``precision`` and ``attentions``.
Each line of the answer is JSON: ``{"done": settings traced, "of": all}``, and last a ``ModelTrace``.

The model's own class runs on tensors without data, in its own widths, with as few layers as tell what a further one
adds. Bytes are solved for what they grow with: batch, sequence length and vocabulary; no other width changes.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from frenzy.core.memory.activation_coefficients import (
    ActivationCoefficients,
    ActivationSetting,
    Attention,
    TokenBytes,
    same_width,
)
from frenzy.core.memory.model_trace import ModelTrace
from frenzy.core.models.module_tree import MODULE_TREE, LayerPattern, layer_pattern
from frenzy.core.models.shape import ModelShape, model_shape
from frenzy.core.values.codec import encode
from frenzy.core.values.errors import FrenzyError
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.trainer.trace.cuda import Answers
from frenzy.trainer.trace.held_bytes import ActivationTrace, trace_activations
from frenzy.trainer.trace.traced_model import traced_model, without_data

# Layers that are built, at least, of at least two repetitions of their pattern: the last one's bytes are what each
# further one adds.
_LAYERS: Final = 3
# Not 1: a dimension of one element makes copies into views.
_FEW, _MORE = 2, 3
# Kernels round positions to 128.
_LENGTHS: Final = (512, 1024)
_VOCABULARY_STEP: Final = 4096
_LAYER_COUNTS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Lengths at which the operations are looked for that hold the most.
_PLAUSIBLE_LENGTHS: Final = tuple(2**power for power in range(6, 18))
# Of an element of a weight, the bytes of its copy under autocast.
_COPY_BYTES: Final = 2.0

Floats = NDArray[np.float64]
Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class OneModel:
    """A model to trace: its complete config, the pattern of its layers and its shape."""

    config: Mapping[str, Any]
    pattern: LayerPattern
    shape: ModelShape

    @classmethod
    def of(cls, config: Mapping[str, Any], tree: list[Any]) -> OneModel:
        """Raises PermanentError or ValueError for what is no stack of layers."""
        return cls(config, layer_pattern(tree), model_shape({**config, MODULE_TREE: tree}))

    @property
    def repeats(self) -> int:
        return max(2, -(-_LAYERS // self.pattern.period))

    @property
    def lengths(self) -> tuple[int, int]:
        longest = self.shape.max_positions or max(_LENGTHS)
        return (longest // 2, longest) if longest < max(_LENGTHS) else _LENGTHS

    def shortened(self, *, more_words: int) -> dict[str, Any]:
        """The config with few layers; lists with a value for each layer are cut or go on as they do."""
        config, pattern = dict(self.config), self.pattern
        whole = pattern.first + pattern.period * pattern.repeats
        built = pattern.first + pattern.period * self.repeats
        for name, value in self.config.items():
            if name in _LAYER_COUNTS and value == whole:
                config[name] = built
            elif isinstance(value, list) and len(value) == whole:
                config[name] = [*value, *(value[-pattern.period :] * self.repeats)][:built]
        return {**config, "vocab_size": self.shape.vocab_size + more_words}


def traced(model: OneModel, precision: Precision, attentions: Iterable[Attention], told: Told) -> ModelTrace:
    """What ``model`` keeps on either kind of device, with and without checkpointing.

    Raises PermanentError for a model that cannot be traced.
    """
    precision = same_width(precision)
    usable = [each for each in attentions if _can_be_built(model, precision, each)] or [Attention.EAGER]
    settings = [
        ActivationSetting(precision=precision, checkpointing=checkpointing, kind=kind, attention=attention)
        for attention, kind, checkpointing in itertools.product(usable, DeviceKind, (False, True))
    ]
    found = []
    for done, setting in enumerate(settings):
        told(done, len(settings))
        found.append(solved(model, setting))
    return ModelTrace(activations=tuple(found), fuses_loss=_fuses_loss(model, usable[0]))


def _can_be_built(model: OneModel, precision: Precision, attention: Attention) -> bool:
    try:
        with without_data():
            traced_model(model.shortened(more_words=0), precision, attention.value)
    except FrenzyError:
        return False
    return True


def _fuses_loss(model: OneModel, attention: Attention) -> bool:
    """Whether the trainer's own loss takes the place of this model's."""
    from frenzy.trainer.model.fused_loss import fuse_loss

    try:
        with without_data():
            fuse_loss(traced_model(model.shortened(more_words=0), Precision.BF16, attention.value))
    except FrenzyError:
        return False
    return True


def solved(model: OneModel, setting: ActivationSetting) -> ActivationCoefficients:
    """The coefficients of ``setting``; rows of ``growth`` are operations, and last what is kept of the forward pass.

    Raises PermanentError for a model that cannot be traced.
    """
    trace, growth, fixed = _growth(model, setting)
    before, after = trace.layer_ends[-1 - model.pattern.period] - 1, trace.layer_ends[-1] - 1
    layer = growth[after] - growth[before]
    above = growth[:-1] - growth[-1]
    return ActivationCoefficients(
        family=model.shape.family,
        precision=setting.precision,
        checkpointing=setting.checkpointing,
        attention_dropout=True,  # of the model's own rates, whatever they are
        hidden_dropout=True,
        layer=_token_bytes(layer, model.shape),
        outside=_token_bytes(growth[-1] - model.repeats * layer, model.shape),
        in_loss=_highest(above[before + 1 : trace.head_end], model.shape),
        in_backward=_highest(above[trace.head_end :], model.shape),
        weight_copies=_weight_copies(float(fixed[after] - fixed[before]), model.shape, setting),
        kind=setting.kind,
        attention=setting.attention,
    )


def _growth(model: OneModel, setting: ActivationSetting) -> tuple[ActivationTrace, Floats, Floats]:
    """(a trace; bytes for each token, token and position, and token and word; bytes whatever the batch is)."""
    short, long = model.lengths
    sizes = ((short, 0), (long, 0), (short, _VOCABULARY_STEP))
    traces = [_trace(model, setting, (batch, length), more) for length, more in sizes for batch in (_FEW, _MORE)]
    if len({len(each.live_bytes) for each in traces}) > 1:
        traces = [each.condensed(model.pattern.period) for each in traces]
    held = [_held(each) for each in traces]
    of_short, of_long, of_wordy = (
        (more - few) / (_MORE - _FEW) for few, more in zip(held[::2], held[1::2], strict=True)
    )
    by_pair = (of_long / long - of_short / short) / (long - short)
    by_word = (of_wordy - of_short) / short / _VOCABULARY_STEP
    by_token = of_short / short - by_pair * short - by_word * model.shape.vocab_size
    return traces[0], np.stack([by_token, by_pair, by_word], axis=1), held[0] - _FEW * of_short


def _trace(model: OneModel, setting: ActivationSetting, size: tuple[int, int], more_words: int) -> ActivationTrace:
    with without_data():
        built = traced_model(model.shortened(more_words=more_words), setting.precision, setting.attention.value)
        tokens, answers = torch.zeros(size, dtype=torch.long), Answers(size[1])
        return trace_activations(built, tokens, setting, stack=model.pattern.stack, call=answers.call)


def _held(trace: ActivationTrace) -> Floats:
    return np.asarray((*trace.live_bytes, trace.kept_bytes), dtype=np.float64)


def _token_bytes(row: Floats, shape: ModelShape) -> TokenBytes:
    token, pair, word = (round(float(each), 6) + 0.0 for each in row)
    return TokenBytes(constant=token, scores=pair / shape.num_heads, vocab=word)


def _highest(rows: Floats, shape: ModelShape) -> tuple[TokenBytes, ...]:
    """The operations that hold the most for some length, with the logits of all tokens or of none."""
    cases = np.asarray([(1, length, words) for length in _PLAUSIBLE_LENGTHS for words in (0, shape.vocab_size)])
    best = sorted(set((rows @ cases.T).argmax(axis=0).tolist()))
    return tuple(_token_bytes(rows[at], shape) for at in best)


def _weight_copies(fixed_bytes: float, shape: ModelShape, setting: ActivationSetting) -> float:
    """Bytes that autocast keeps for each element of a layer's linear maps."""
    linear = sum(each.num_elements for each in shape.layer if each.is_linear)
    if setting.precision is not Precision.AUTOCAST_BF16 or not linear:
        return 0.0
    return min(_COPY_BYTES, round(fixed_bytes / linear, 3))


def main() -> int:
    """Answer the question on standard input."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    question = json.load(sys.stdin)
    versions = {name: version(name) for name in ("torch", "transformers")}
    try:
        model = OneModel.of(question["config"], question[MODULE_TREE])
        attentions = [Attention(each) for each in question["attentions"]]
        found = traced(model, Precision(question["precision"]), attentions, _told)
    except FrenzyError as error:
        found = ModelTrace(problem=error.reason.detail)
    except Exception as error:  # a model can fail in as many ways as there are models
        found = ModelTrace(problem=" ".join(f"{type(error).__name__}: {error}".split())[:300])
    sys.stdout.write(json.dumps(encode(replace(found, versions=versions))) + "\n")
    return 0


def _told(done: int, of: int) -> None:
    sys.stdout.write(json.dumps({"done": done, "of": of}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
