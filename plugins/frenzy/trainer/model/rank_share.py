"""What a rank keeps of a model's weights: whole parameters, or its slices under ZeRO-3.

Either way a value goes straight from where it is into its place and precision: no copy of the whole
model in another format comes first, and under ZeRO-3 no rank reads what others keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import torch
from torch import distributed

from frenzy.trainer.model.weight_files import Values

_HOST: Final = torch.device("cpu")


class RankShare(Protocol):
    """Where weights go. dtype: the precision they are kept in. device: the rank's own."""

    dtype: torch.dtype
    device: torch.device

    def keep(self, like: torch.nn.Parameter, values: Values | None) -> torch.nn.Parameter:
        """A parameter of the shape of ``like`` that holds this rank's part of ``values``; zeros if None."""
        ...

    def keep_rest(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Bring ``parameters``, the same on all ranks, to what is kept. Collective for some shares."""
        ...


class WholeWeights:
    """Whole parameters on ``device``: the rank's own under ZeRO 1 and 2.

    On the host they are those that will be cut by tensor parallelism, or quantised.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device = _HOST) -> None:
        self.dtype, self.device = dtype, device

    def keep(self, like: torch.nn.Parameter, values: Values | None) -> torch.nn.Parameter:
        whole = torch.zeros(like.shape, dtype=self.dtype, device=self.device)
        if values is not None:
            values.read_into(whole.view(-1))
        return torch.nn.Parameter(whole, requires_grad=like.requires_grad)

    def keep_rest(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for each in parameters:
            if each.is_floating_point():
                each.data = each.data.to(self.device, self.dtype)


class SlicedWeights:
    """This rank's slices on its device, as DeepSpeed's own ``zero.Init`` leaves them.

    ``zero.Init`` takes whole parameters from rank 0. Here each parameter is registered with it by its shape
    alone and its slice is filled in place (DeepSpeed 0.19: ``_convert_to_deepspeed_param``, ``ds_tensor``).
    """

    def __init__(self, settings: Mapping[str, Any], dtype: torch.dtype) -> None:
        import deepspeed

        self.dtype = dtype
        self._whole = WholeWeights(dtype)
        self._zero = deepspeed.zero.Init(module=torch.nn.Module(), config_dict_or_path=dict(settings), dtype=dtype)
        self.device = torch.device(self._zero.local_device)

    def keep(self, like: torch.nn.Parameter, values: Values | None) -> torch.nn.Parameter:
        # Of the right shape, and without memory behind it.
        shape_only = torch.empty(1, dtype=self.dtype, device=self._zero.local_device).expand(like.shape)
        parameter: Any = torch.nn.Parameter(shape_only, requires_grad=like.requires_grad)
        self._zero._convert_to_deepspeed_param(parameter)
        parameter.ds_tensor = self._slice(parameter, values)
        parameter.partition()
        return parameter  # type: ignore[no-any-return]

    def _slice(self, parameter: Any, values: Values | None) -> torch.Tensor:
        from deepspeed.runtime.zero.partition_parameters import PartitionedParamStatus

        aligned = self._zero._aligned_size(parameter)
        numel = aligned // self._zero._partition_world_size(parameter)
        device = self._zero.local_device if parameter.ds_persist else self._zero.remote_device
        kept: Any = torch.zeros(numel, dtype=self.dtype, device=device)
        kept.ds_numel, kept.status, kept.final_location = numel, PartitionedParamStatus.AVAILABLE, None
        parameter.ds_numel_aligned = aligned
        start = numel * distributed.get_rank(parameter.ds_process_group)
        held = max(0, min(numel, parameter.ds_numel - start))
        if values is not None and held > 0:
            values.read_into(kept.narrow(0, 0, held), start)
        return kept  # type: ignore[no-any-return]

    def keep_rest(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        left = [each for each in parameters if not hasattr(each, "ds_id")]
        self._whole.keep_rest(left)
        self._zero._convert_to_zero_parameters(left)
