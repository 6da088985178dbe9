"""Which pieces of which parameters a rank holds under DeepSpeed's ZeRO, and how to publish new ones.

Every stage keeps a rank's fp32 weights and optimizer states in flat tensors. What differs is
where a parameter's piece lies in them; this module is the only one that knows. It reads
DeepSpeed's own bookkeeping (0.19: ``_hp_mapping`` in stages 1 and 2, ``grad_position`` in 3).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed.utils import groups
from torch import distributed

from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values.errors import ContractError
from frenzy.trainer.model import four_bit
from frenzy.trainer.model.eight_bit_adam import is_eight_bit, moments, store_moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Elements [start, start + numel) of a flattened parameter, at ``offset`` in a flat tensor.

    of_numel: elements the whole parameter has (its tensor-parallel shard, where it is split).
    """

    name: str
    start: int
    numel: int
    offset: int
    of_numel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One flat fp32 tensor of this rank, its optimizer states and the parameter pieces in it."""

    weights: torch.Tensor
    state: MutableMapping[str, Any]
    group: MutableMapping[str, Any]
    shards: tuple[Shard, ...]
    eight_bit: bool = False

    def flat_states(self) -> dict[str, Any]:
        """Optimizer states with one element for each weight, such as Adam's moments, as flat fp32 tensors."""
        if self.eight_bit:
            return moments(self.state)
        return {
            key: value
            for key, value in self.state.items()
            if torch.is_tensor(value) and value.shape == self.weights.shape and value.dim() == 1
        }

    def scalar_states(self) -> dict[str, Any]:
        """States the optimizer keeps once for all of the weights, such as Adam's step."""
        if self.eight_bit:
            return {"step": self.state["step"]} if "step" in self.state else {}
        flats = self.flat_states()
        return {key: value for key, value in self.state.items() if key not in flats and value is not None}

    @contextmanager
    def filling(self, key: str) -> Iterator[torch.Tensor]:
        """A flat tensor for new values of the state ``key``, made if the optimizer has not made it yet."""
        if self.eight_bit:
            values = torch.zeros(self.weights.numel())
            yield values
            store_moment(self.state, key, values, self.weights.device)
            return
        if not torch.is_tensor(self.state.get(key)):
            self.state[key] = torch.zeros_like(self.weights, requires_grad=False)
        yield self.state[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensor:
    """A frozen parameter's or buffer's piece: ``values`` is flat and may be written to."""

    name: str
    start: int
    values: torch.Tensor
    of_numel: int


def partitions(engine: Any) -> tuple[Partition, ...]:
    """This rank's flat tensors, in the optimizer's order. Raises ContractError for other optimizers."""
    optimizer = engine.optimizer
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        return tuple(_stage3_partitions(optimizer, names))
    if hasattr(optimizer, "single_partition_of_fp32_groups"):
        flats = optimizer.single_partition_of_fp32_groups
        return tuple(_stage12_partitions(optimizer, names, optimizer.bit16_groups, flats))
    if hasattr(optimizer, "fp32_groups_flat_partition"):
        flats = optimizer.fp32_groups_flat_partition
        return tuple(_stage12_partitions(optimizer, names, optimizer.bf16_groups, flats))
    raise ContractError(f"checkpoints need ZeRO stage 1, 2 or 3; the engine runs {type(optimizer).__name__}")


def _stage12_partitions(
    optimizer: Any, names: dict[int, str], groups: list[list[Any]], flats: list[torch.Tensor]
) -> Iterator[Partition]:
    eight_bit = is_eight_bit(optimizer.optimizer)
    for parameters, flat, group in zip(groups, flats, optimizer.optimizer.param_groups, strict=True):
        shards = tuple(_stage12_shard(names[id(each)], each) for each in parameters if each._hp_mapping is not None)
        state = optimizer.optimizer.state[flat]
        yield Partition(weights=flat, state=state, group=group, shards=shards, eight_bit=eight_bit)


def _stage12_shard(name: str, parameter: Any) -> Shard:
    mapping = parameter._hp_mapping
    return Shard(
        name=name,
        start=mapping.lp_fragment_address.start,
        numel=mapping.lp_fragment_address.numel,
        offset=mapping.get_hp_fragment_address().start,
        of_numel=parameter.numel(),
    )


def _stage3_partitions(optimizer: Any, names: dict[int, str]) -> Iterator[Partition]:
    eight_bit = is_eight_bit(optimizer.optimizer)
    for index, (parameters, flat) in enumerate(
        zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True)
    ):
        shards = tuple(_stage3_shard(optimizer, names, each) for each in parameters)
        group = optimizer.optimizer.param_groups[optimizer.sub_group_to_group_id[index]]
        held = tuple(each for each in shards if each.numel > 0)
        state = optimizer.optimizer.state[flat]
        yield Partition(weights=flat, state=state, group=group, shards=held, eight_bit=eight_bit)


def _stage3_shard(optimizer: Any, names: dict[int, str], parameter: Any) -> Shard:
    _, offset, num_padded = optimizer.grad_position[optimizer.get_param_id(parameter)]
    start, numel = _stage3_range(parameter, num_padded)
    return Shard(name=names[id(parameter)], start=start, numel=numel, offset=offset, of_numel=parameter.ds_numel)


def _stage3_range(parameter: Any, num_padded: int) -> tuple[int, int]:
    """Stage 3 cuts each parameter evenly over the ranks; the last pieces are padded."""
    start = num_padded * distributed.get_rank(parameter.ds_process_group)
    return start, max(0, min(num_padded, parameter.ds_numel - start))


def frozen_parameters(engine: Any) -> tuple[HeldTensor, ...]:
    """Parameters that are not trained, 4-bit ones with their scales: pieces in stage 3, else whole ones."""
    frozen = [(name, each) for name, each in engine.module.named_parameters() if not each.requires_grad]
    held = [_frozen(name, each) for name, each in frozen]
    held += [_whole(f"{name}.{part}", values) for name, each in frozen for part, values in four_bit.scales(each)]
    return tuple(each for each in held if each.values.numel() > 0)


def _frozen(name: str, parameter: Any) -> HeldTensor:
    if not hasattr(parameter, "ds_tensor"):
        return _whole(name, parameter.data)
    start, numel = _stage3_range(parameter, parameter.ds_tensor.ds_numel)
    values = parameter.ds_tensor.data.view(-1).narrow(0, 0, numel)
    return HeldTensor(name=name, start=start, values=values, of_numel=parameter.ds_numel)


def _whole(name: str, tensor: torch.Tensor) -> HeldTensor:
    return HeldTensor(name=name, start=0, values=tensor.view(-1), of_numel=tensor.numel())


def persistent_buffers(engine: Any) -> tuple[HeldTensor, ...]:
    """Buffers that belong to the model's state (the same on every data-parallel rank)."""
    found = []
    for prefix, module in engine.module.named_modules():
        for key, buffer in module.named_buffers(recurse=False):
            if key not in module._non_persistent_buffers_set and buffer.numel() > 0:
                name = f"{prefix}.{key}" if prefix else key
                found.append(_whole(name, buffer.data))
    return tuple(found)


def tensor_parallel_rank(layout: ParallelLayout) -> int:
    """This rank's place among those that share each parameter's shards."""
    return int(groups.get_tensor_model_parallel_rank()) if layout.tp > 1 else 0


def before_access(engine: Any) -> None:
    """Bring the parameters to their partitioned form (stage 3). Collective."""
    if hasattr(engine.optimizer, "checkpoint_event_prologue"):
        engine.optimizer.checkpoint_event_prologue()


def after_access(engine: Any) -> None:
    """Gather what stage 3 keeps whole between steps. Collective."""
    if hasattr(engine.optimizer, "checkpoint_event_epilogue"):
        engine.optimizer.checkpoint_event_epilogue()


def publish_weights(engine: Any) -> None:
    """Make the model compute with the fp32 weights just written. Collective in stages 1 and 2."""
    optimizer = engine.optimizer
    if not hasattr(optimizer, "fp32_partitioned_groups_flat"):
        optimizer.update_lp_params()
        return
    for index, weights in enumerate(optimizer.fp32_partitioned_groups_flat):
        low_precision = optimizer.fp16_partitioned_groups_flat[index]
        if weights.numel() > 0:
            low_precision.data.copy_(weights.data)
        unflattened = optimizer.unflatten(low_precision, optimizer.fp16_partitioned_groups[index])
        for piece, values in zip(optimizer.fp16_partitioned_groups[index], unflattened, strict=True):
            piece.data = values.data
