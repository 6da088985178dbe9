"""Stand-ins for CUDA kernels: they allocate what the kernel allocates, and compute nothing.

Tensors of a trace have no data and lie on the CPU, where torch would take other kernels. Sources of
the sizes: FlashAttention 2's interface (``mha_fwd``, ``mha_bwd`` in csrc/flash_attn/flash_api.cpp) and
torch's own copies of it and of the memory-efficient kernel (aten/src/ATen/native/transformers/cuda).
"""

from __future__ import annotations

from typing import Any, Final

import torch

_BLOCK: Final = 128
_LARGEST_FLASH_HEAD: Final = 256
_EFFICIENT_BLOCK: Final = 32


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class _Flash(torch.autograd.Function):
    """Attention that never holds its scores: q (b, s, heads, d); k, v (b, s, key/value heads, d).

    Kept: q, k, v, the output, and the log-sum-exp in fp32 (b, heads, s). Backward: softmax_d in
    fp32 (b, heads, s rounded to 128), dq in fp32 (b, s rounded, heads, d rounded to 32, beyond 128
    to 64), and dk, dv for each query head where heads share them.
    """

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        batch, length, heads, _ = query.shape
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        log_sum = query.new_empty((batch, heads, length), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, log_sum)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value, _out, _log_sum = ctx.saved_tensors
        batch, length, heads, width = query.shape
        grads = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in (query, key, value)]
        rows = _rounded(length, _BLOCK)
        held = [
            query.new_empty((batch, heads, rows), dtype=torch.float32),
            query.new_empty((batch, rows, heads, _rounded(width, 32 if width <= _BLOCK else 64)), dtype=torch.float32),
        ]
        if key.shape[2] != heads:
            held += [key.new_empty((batch, key.shape[1], heads, width)) for _ in range(2)]
        del held
        return grads[0], grads[1], grads[2]


class _Efficient(torch.autograd.Function):
    """The memory-efficient kernel, for fp32 and for masks; b, s, heads, d as in ``_Flash``.

    Kept: q, k, v, mask, output, and the log-sum-exp in fp32 (b, heads, s rounded to 32). Backward:
    the output's product with its gradient in fp32 (b, heads, s).
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        batch, length, heads, _ = query.shape
        out = query.new_empty((batch, length, heads, value.shape[-1]))
        log_sum = query.new_empty((batch, heads, _rounded(length, _EFFICIENT_BLOCK)), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, log_sum, mask)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        query, key, value = ctx.saved_tensors[:3]
        batch, length, heads, _ = query.shape
        grads = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in (query, key, value)]
        query.new_empty((batch, heads, length), dtype=torch.float32)
        return grads[0], grads[1], grads[2], None


def flash_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """FlashAttention 2 on (batch, length, heads, width); widths are padded to a multiple of eight."""
    width = query.shape[-1]
    padding = -width % 8
    if padding:
        query, key, value = (torch.nn.functional.pad(each, (0, padding)) for each in (query, key, value))
    out: torch.Tensor = _Flash.apply(query, key, value)  # type: ignore[no-untyped-call]
    return out[..., :width] if padding else out


def scaled_dot_product_attention(  # noqa: PLR0913  # torch's own signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch's choice of kernel on a GPU from Ampere on; tensors are (batch, heads, length, width).

    Flash for half precision without a mask; the memory-efficient kernel for fp32 or with a mask;
    the plain formula where neither can: shared key/value heads in the latter case. Autocast hands all of them
    tensors in 16 bits (``AT_FORALL_LOWER_PRECISION_FP`` in aten/src/ATen/autocast_mode.h).
    """
    query, key, value = (_in_lower_precision(each) for each in (query, key, value))
    attn_mask = None if attn_mask is None else _in_lower_precision(attn_mask)
    half = query.dtype in (torch.float16, torch.bfloat16)
    same_width = query.shape[-1] == value.shape[-1]
    if half and attn_mask is None and same_width and query.shape[-1] <= _LARGEST_FLASH_HEAD:
        return flash_attention(*(each.transpose(1, 2) for each in (query, key, value))).transpose(1, 2)
    if enable_gqa and key.shape[1] != query.shape[1]:
        return torch.ops.aten._scaled_dot_product_attention_math(  # type: ignore[no-any-return]
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=True
        )[0]
    mask = _additive(attn_mask, query.dtype)
    swapped = (each.transpose(1, 2) for each in (query, key, value))
    out: torch.Tensor = _Efficient.apply(*swapped, mask)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2)


def _in_lower_precision(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as autocast, where it is on, hands it to a kernel of its list of lower precision."""
    if torch.is_autocast_enabled("cpu") and tensor.dtype == torch.float32:
        return tensor.to(torch.get_autocast_dtype("cpu"))
    return tensor


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """The kernel wants a mask to add; a yes-or-no mask is converted."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))


def dropout(tensor: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """CUDA's fused dropout: the output and a mask of one byte for each element."""
    if not training or p == 0:
        return tensor
    out: torch.Tensor = torch.native_dropout(tensor, p, True)[0]
    return tensor.copy_(out) if inplace else out


def bytes_on_cuda(func: Any, index: int, output: torch.Tensor) -> int | None:
    """Bytes of ``output`` where CUDA's kernel makes another one than the CPU's: norms keep fp32 statistics."""
    if index > 0 and func is torch.ops.aten.native_layer_norm.default:
        return output.numel() * torch.float32.itemsize
    return None
