"""A model's operations as CUDA would dispatch them, and answers to questions about data.

What is modelled: attention and dropout kernels, the wider list of operations that CUDA's autocast
runs in fp32, and the allocator's 512 bytes. What is not: workspaces inside kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.trainer.outcome import one_line
from frenzy.trainer.trace.kernels import dropout, scaled_dot_product_attention

# The caching allocator hands out multiples of this (kMinBlockSize in c10/cuda/CUDACachingAllocator).
ALLOCATION_GRANULE_BYTES: Final = 512

_functional = torch.nn.functional
_STAND_INS: Final[tuple[tuple[Any, str, Callable[..., Any]], ...]] = (
    (_functional, "scaled_dot_product_attention", scaled_dot_product_attention),
    (_functional, "dropout", dropout),
    (torch, "dropout", dropout),
)
# torch's documentation, "Automatic Mixed Precision": CUDA operations that autocast to float32.
_FP32_UNDER_AUTOCAST: Final[tuple[tuple[Any, str], ...]] = (
    (_functional, "layer_norm"),
    (_functional, "softmax"),
    (_functional, "log_softmax"),
    (_functional, "softplus"),
    *((torch, name) for name in ("softmax", "log_softmax", "pow", "rsqrt", "exp", "log", "cumsum")),
    *((torch.Tensor, name) for name in ("softmax", "log_softmax", "pow", "__pow__", "rsqrt", "exp", "log", "cumsum")),
)


@contextmanager
def cuda_choices() -> Iterator[None]:
    """torch as CUDA would dispatch it, while the context lasts; backward passes and recomputation included."""
    stand_ins = (*_STAND_INS, *((owner, name, _in_fp32(getattr(owner, name))) for owner, name in _FP32_UNDER_AUTOCAST))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in stand_ins]
    try:
        for owner, name, stand_in in stand_ins:
            setattr(owner, name, stand_in)
        yield
    finally:
        for owner, name, theirs in before:
            setattr(owner, name, theirs)


def _in_fp32(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` on fp32 tensors where autocast is on."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            args = tuple(_upcast(each) for each in args)
        return function(*args, **kwargs)

    return run


def _upcast(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value


class Answers:
    """Runs an operation; where it asks for data, gives the answer for sequences without padding.

    ``all`` is true, ``any`` is false, the largest of some integers is the last position. Where no
    allocation depends on a number (in the optimizer), any will do. Every other question is refused
    with the operation's name.
    """

    def __init__(self, sequence_length: int) -> None:
        self._any_number: float | None = None
        self._known = {
            torch.ops.aten.all.default: True,
            torch.ops.aten.any.default: False,
            torch.ops.aten.max.default: sequence_length - 1,
        }

    @contextmanager
    def any_number(self, number: float) -> Iterator[None]:
        """Answer with ``number`` where nothing else is known."""
        before, self._any_number = self._any_number, number
        try:
            yield
        finally:
            self._any_number = before

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.ops.prim.device.default:  # asked for more often than all else together
            return args[0].fake_device
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._answer(args[0])
        try:
            outputs = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise unsupported(str(error.func), "its result depends on the data") from error
        except UnsupportedOperatorException as error:
            raise unsupported(str(error.func), "it has no rule for tensors without data") from error
        except NotImplementedError as error:
            raise unsupported(str(func), one_line(error)) from error
        if func in self._known and (outputs.dtype == torch.bool or not args[0].is_floating_point()):
            outputs._known_answer = self._known[func]
        return outputs

    def _answer(self, scalar: torch.Tensor) -> bool | float:
        known: bool | int | None = getattr(scalar, "_known_answer", None)
        if known is not None:
            return known
        constant = getattr(scalar, "constant", None)
        if constant is not None:
            return constant.item()  # type: ignore[no-any-return]
        if self._any_number is not None:
            return self._any_number
        raise unsupported("aten._local_scalar_dense", "a number is read from a tensor")


def unsupported(operation: str, why: str) -> PermanentError:
    """The refusal of a trace at ``operation``."""
    return PermanentError(
        Reason(
            code=ReasonCode.TRACE_UNSUPPORTED,
            detail=f"The trace stopped at {operation}: {why}.",
            remedy="Predict with the closed form (`frenzy plan`), or measure on a card.",
        )
    )
