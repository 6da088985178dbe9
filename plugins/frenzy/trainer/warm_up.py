"""Let the libraries take the memory they keep, before the baseline of a virtual GPU is read."""

from __future__ import annotations

import torch
from torch import distributed

from frenzy.core.job import Precision
from frenzy.core.launch import LaunchSpec
from frenzy.trainer.device import Device

_WIDTH = 64


def warm_up(spec: LaunchSpec, device: Device) -> None:
    """A small forward, backward, optimizer step and every collective, in the job's number format."""
    dtype = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}.get(
        spec.job.training.precision, torch.float32
    )
    layer = torch.nn.Linear(_WIDTH, _WIDTH).to(device=device.torch_device, dtype=dtype)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    inputs = torch.randn(4, _WIDTH, _WIDTH, device=device.torch_device, dtype=dtype)
    heads = layer(inputs).view(4, 4, _WIDTH, _WIDTH // 4)
    attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    loss = torch.nn.functional.cross_entropy(attended.reshape(-1, _WIDTH).float(), torch.zeros(4 * _WIDTH, dtype=torch.long, device=device.torch_device))
    loss.backward()
    optimizer.step()
    _collectives(layer.weight.detach())


def _collectives(tensor: torch.Tensor) -> None:
    world_size = distributed.get_world_size()
    distributed.all_reduce(tensor)
    distributed.broadcast(tensor, src=0)
    distributed.all_gather_into_tensor(tensor.new_empty(world_size * tensor.numel()), tensor.flatten())
    distributed.all_gather_object([None] * world_size, 1)
    distributed.barrier()
