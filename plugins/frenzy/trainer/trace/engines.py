"""What a trace drives: torch's own loop, or the trainer's DeepSpeed engine as one of so many ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import torch

from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.trainer import env
from frenzy.trainer.trace.cuda import Answers
from frenzy.trainer.trace.storages import StorageLog

WEIGHTS: Final = "weights"
MASTERS: Final = "fp32 master weights"
STATES: Final = "optimizer states"
BUFFERS: Final = "ZeRO buffers"
HOST: Final = "host"
OPTIMIZERS: Final = ("adamw", "adamw-fused", "sgd")


class TraceEngine(Protocol):
    """One micro-batch forward and backward, an optimizer step, and what its tensors are for."""

    num_micro_batches: int

    def forward(self, tokens: torch.Tensor) -> torch.Tensor: ...

    def backward(self, loss: torch.Tensor) -> None: ...

    def step(self) -> None: ...

    def sort(self, log: StorageLog) -> None:
        """Tell ``log`` what the tensors that outlast a step are for."""


class PlainEngine:
    """torch's optimizer on one card."""

    num_micro_batches = 1

    def __init__(self, model: Any, optimizer: str, answers: Answers) -> None:
        self._model, self._answers = model, answers
        self._is_fused = optimizer.endswith("fused")
        self._optimizer = torch_optimizer([each for each in model.parameters() if each.requires_grad], optimizer)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self._model(input_ids=tokens, labels=tokens).loss
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        with self._answers.any_number(1.0):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def sort(self, log: StorageLog) -> None:
        """The step counters lie on the host, unless the kernel is fused."""
        sort_states(log, self._optimizer, counters=STATES if self._is_fused else HOST)


def sort_states(log: StorageLog, optimizer: torch.optim.Optimizer, *, counters: str) -> None:
    """The tensors of ``optimizer``; ``counters``: what those that count steps are for."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                log.assign([value], counters if name == "step" else STATES)


def torch_optimizer(parameters: list[torch.Tensor], name: str) -> torch.optim.Optimizer:
    """torch's optimizer of this name (``OPTIMIZERS``) as it is on a card: one call for all tensors."""
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True)
    fused = name.endswith("fused")
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, fused=fused, foreach=not fused)


class DeepSpeedEngine:
    """DeepSpeed's engine with the run's own settings. Call it inside ``one_of``.

    Its accelerator is the CPU's: sizes and order of its buffers are the same, streams are not there.
    """

    def __init__(self, model: Any, settings: Mapping[str, Any], answers: Answers, *, on_cuda: bool) -> None:
        import deepspeed

        self._answers = answers
        self.num_micro_batches = int(settings["gradient_accumulation_steps"])
        trainable = [each for each in model.parameters() if each.requires_grad]
        with answers.any_number(0.0):
            self._engine, *_ = deepspeed.initialize(
                model=model, model_parameters=trainable, config=dict(settings), dist_init_required=False
            )
        inner = self._engine.optimizer.optimizer
        inner.step = _answering(inner.step, answers)
        self._is_fused = any(each.get("fused") for each in inner.param_groups)
        for group in inner.param_groups:
            group["foreach"] = on_cuda and not self._is_fused  # torch's own choices

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self._engine(input_ids=tokens, labels=tokens, use_cache=False).loss
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        with self._answers.any_number(0.0):
            self._engine.backward(loss)

    def step(self) -> None:
        with self._answers.any_number(0.0):
            self._engine.step()

    def when_reducing(self, mark: Callable[[], None]) -> None:
        """Call ``mark`` when the gradients of all tensors are there and their reduction is completed."""
        theirs = self._engine.allreduce_gradients

        def reduce(*args: Any, **kwargs: Any) -> Any:
            mark()
            return theirs(*args, **kwargs)

        self._engine.allreduce_gradients = reduce

    def sort(self, log: StorageLog) -> None:
        optimizer = self._engine.optimizer
        parameters = list(self._engine.module.parameters())
        log.assign([*parameters, *self._engine.module.buffers()], WEIGHTS)
        log.assign([each.ds_tensor for each in parameters if hasattr(each, "ds_tensor")], WEIGHTS)
        for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition"):
            log.assign(getattr(optimizer, name, ()), MASTERS)
        sort_states(log, optimizer.optimizer, counters=STATES if self._is_fused else HOST)
        log.assign_live(BUFFERS)

    def close(self) -> None:
        self._engine.destroy()


def _answering(step: Callable[..., Any], answers: Answers) -> Callable[..., Any]:
    """The optimizer's ``step``; its counter of steps reads as one."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with answers.any_number(1.0):
            return step(*args, **kwargs)

    return run


@contextmanager
def one_of(num_ranks: int, rank: int = 0) -> Iterator[None]:
    """This process as ``rank`` of ``num_ranks`` whose messages go nowhere. Raises PermanentError in a real group."""
    from torch import distributed
    from torch.nn import functional
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if distributed.is_initialized():
        detail = "A trace needs a process that is in no group of ranks."
        raise PermanentError(Reason(code=ReasonCode.TRACE_UNSUPPORTED, detail=detail))
    env.use_cpu_accelerator()
    import deepspeed
    from deepspeed.comm import comm
    from deepspeed.runtime.zero import partitioned_param_coordinator as coordinator
    from deepspeed.utils import groups

    env.set_rank(
        rank=rank,
        local_rank=rank,
        world_size=num_ranks,
        local_world_size=num_ranks,
        address="127.0.0.1",
        port=1,
    )
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
    remembered = [(module, dict(vars(module))) for module in (coordinator, groups, comm)]
    linear = functional.linear
    coordinator.assert_ints_same_as_other_ranks = _nothing  # the other ranks say nothing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library asks for addresses of tensors, which are all zero here
            deepspeed.init_distributed(dist_backend="fake", dist_init_required=False, verbose=False)
            yield
    finally:
        for module, names in remembered:  # the library keeps its groups in globals
            vars(module).update(names)
        functional.linear = linear  # stage 3 puts its own there for good, which keeps other tensors under autocast
        distributed.destroy_process_group()


def _nothing(*_: Any) -> None:
    return None
