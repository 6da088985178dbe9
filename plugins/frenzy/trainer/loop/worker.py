"""One rank: joins the others, takes its device, makes the engine, trains, reports how it ended."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from frenzy.core.lifecycle.preflight import Needs, counted_bytes, refusal
from frenzy.core.values import codec
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.failure_classes import name_error
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import TrainingSpec
from frenzy.core.values.launch import ADAMW_8BIT, LaunchSpec, deepspeed_config
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer import env, heartbeats
from frenzy.trainer.callbacks import load_callbacks
from frenzy.trainer.loop.control import StopRequest
from frenzy.trainer.loop.prepare import Prepared
from frenzy.trainer.loop.rank_run import Run
from frenzy.trainer.loop.train import TrainEnd, train
from frenzy.trainer.loop.warm_up import warm_up, warm_up_kernels
from frenzy.trainer.model.eight_bit_adam import make_adamw_8bit
from frenzy.trainer.model.faster_layers import compile_layers, layers_of, recompute_layers
from frenzy.trainer.model.flat_groups import groups_for_card, least_free_bytes
from frenzy.trainer.model.loading import flops_shape, load_config
from frenzy.trainer.model.making import make_model, weights_dtype
from frenzy.trainer.model.rank_share import RankShare, SlicedWeights, WholeWeights
from frenzy.trainer.model.weight_decay import parameter_groups
from frenzy.trainer.outcome import RankReport, describe_failure
from frenzy.trainer.telemetry.device import CudaDevice, Device, VirtualDevice
from frenzy.trainer.telemetry.rank_facts import raise_limits, read_node_facts
from frenzy.trainer.telemetry.shared_progress import SharedProgress
from frenzy.trainer.telemetry.writer import RecordPipe

logger = logging.getLogger("frenzy.trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """Who this rank is and whom it meets where. listen_fd: rank 0's socket for the meeting."""

    spec: LaunchSpec
    prepared: Prepared
    board: SharedProgress
    records: RecordPipe
    rank: int
    local_rank: int
    local_world_size: int
    address: str
    port: int
    listen_fd: int | None
    scratch: Path

    @property
    def world_size(self) -> int:
        return self.spec.plan.num_gpus

    @property
    def is_virtual(self) -> bool:
        return self.spec.gpu.kind is DeviceKind.VIRTUAL

    @property
    def is_alone(self) -> bool:
        """Whether the plan's other ranks are imagined."""
        return self.spec.rehearsal is not None and self.spec.rehearsal.alone

    @property
    def report_file(self) -> Path:
        return self.scratch / f"rank-{self.rank}.json"


def run_rank(context: RankContext) -> int:
    """Train as this rank; the exit code. Never raises: the report file says what happened."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    device: Device | None = None
    stop = StopRequest()
    if context.local_rank > 0:
        heartbeats.begin(None)  # the node's first rank tells for it
    try:
        heartbeats.beat("meeting the other ranks")
        _check_place(context)
        _join(context)
        _check_link(context)
        device = _take_device(context)
        with _bounded(context):
            end = _train(context, device, stop)
        _leave()
        code, detail = int(end.code), end.detail
    except BaseException as error:  # whatever it is becomes an exit code and a sentence
        if isinstance(device, VirtualDevice):
            device.unbound()
        full = None if device is None else device.is_full()
        code, detail = describe_failure(error, virtual=context.is_virtual, device_is_full=full)
        logger.error("rank %d failed: %s", context.rank, detail, exc_info=error)
    _report(context, code, detail)
    return code


def _train(context: RankContext, device: Device, stop: StopRequest) -> TrainEnd:
    prepared = context.prepared
    spec = replace(context.spec, job=replace(context.spec.job, model=prepared.model))
    config = load_config(spec.job.model, eos_token_id=prepared.eos_token_id)
    settings = deepspeed_config(spec.job, spec.plan, spec.gpu.kind)
    warm_up(make_engine, settings, device.torch_device)
    if context.is_virtual:
        warm_up_kernels(spec.job, config, micro_batch_size=spec.plan.micro_batch_size)
    device.enter()
    heartbeats.beat("loading the weights")
    with device.host_work():
        model = make_model(
            spec.job,
            config,
            run_root=os.path.dirname(spec.run_dir),  # noqa: PTH120  # may be a URL
            scratch=context.scratch,
            share=rank_share(spec, settings, device.torch_device),
            resumes=prepared.resume is not None,
        )
        shape = flops_shape(model, config)
    if spec.plan.activation_checkpointing:
        checkpoint_activations(model, spec.job.training.checkpoint_every_layers)
    if spec.job.training.compile:
        compile_layers(model)
    heartbeats.beat("building the engine")
    # Tensor parallelism cuts the whole model to this rank's part while the engine is made.
    with device.host_work() if spec.plan.tp > 1 else contextlib.nullcontext():
        engine = make_engine(model, settings, spec.job.training)
    run = Run(
        spec=spec,
        prepared=prepared,
        paths=RunPaths(spec.run_dir),
        engine=engine,
        config=config,
        device=device,
        board=context.board,
        records=context.records,
        rank=context.rank,
        local_rank=context.local_rank,
        callbacks=load_callbacks(spec.job.training.callbacks),
        flops_shape=shape,
        stop_is_set=lambda: stop.received() or context.board.stop_requested,
        scratch=context.scratch,
    )
    return train(run)


def make_engine(model: torch.nn.Module, settings: dict[str, Any], training: TrainingSpec | None = None) -> Any:
    """DeepSpeed's engine around the trainable parameters of ``model``, grouped as ``training`` asks."""
    import deepspeed

    named = ((name, each) for name, each in model.named_parameters() if each.requires_grad)
    trainable = parameter_groups(named, training or TrainingSpec())
    if settings["zero_optimization"]["stage"] < 3 and next(model.parameters()).is_cuda:
        trainable = groups_for_card(trainable, free_bytes=least_free_bytes())
    own = settings["optimizer"]["type"] == ADAMW_8BIT
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=trainable,
        optimizer=make_adamw_8bit(trainable, settings["optimizer"]["params"]) if own else None,
        config={key: value for key, value in settings.items() if not (own and key == "optimizer")},
        dist_init_required=False,
    )
    return engine


def rank_share(spec: LaunchSpec, settings: dict[str, Any], device: torch.device) -> RankShare:
    """What this rank keeps of the weights before the engine is made: on ``device``, its own."""
    dtype = weights_dtype(spec.job.training.precision)
    if spec.plan.tp > 1:  # cut on the host, from the whole
        return WholeWeights(dtype)
    return SlicedWeights(settings, dtype) if spec.plan.zero_stage == 3 else WholeWeights(dtype, device)


def checkpoint_activations(model: Any, every: int) -> None:
    """Keep only the input of one of ``every`` layers, the first among them, and compute the rest of it again."""
    recompute_layers(model, use_reentrant=False)
    for index, layer in enumerate(layers_of(model)):
        layer.gradient_checkpointing = index % every == 0
    if hasattr(model, "peft_config"):
        model.enable_input_require_grads()


def _check_place(context: RankContext) -> None:
    """Raises PermanentError where this rank is sure to fail: driver, GPU, its free memory, limits."""
    spec = context.spec
    needs = Needs(
        local_rank=context.local_rank,
        num_local_ranks=context.local_world_size,
        num_ranks=1 if context.is_alone else context.world_size,
        num_nodes=len(spec.gpus_per_node),
        counted_bytes=0 if spec.rehearsal is not None else counted_bytes(spec.plan.memory),
    )
    raise_limits(needs.num_open_files)
    reason = refusal(read_node_facts(local_rank=context.local_rank, is_virtual=context.is_virtual), needs)
    if reason is not None:
        raise PermanentError(reason)


def _check_link(context: RankContext) -> None:
    """A small exchange of all ranks, before anything large is made. Raises PermanentError where it fails."""
    if context.is_alone:
        return
    try:
        total = torch.ones(1, device="cpu" if context.is_virtual else "cuda")
        distributed.all_reduce(total)
        reached = round(float(total))
    except Exception as error:
        named = name_error(error)
        if named is None or not named.failure.is_echo:
            raise
        detail = f"The ranks cannot reach one another: {named.line}"
        raise PermanentError(Reason(code=named.failure.code, detail=detail)) from error
    if reached != context.world_size:
        detail = f"A first exchange of {context.world_size} ranks counted {reached} of them."
        raise PermanentError(Reason(code=ReasonCode.COLLECTIVE_FAILED, detail=detail))


def _join(context: RankContext) -> None:
    """Meet the other ranks. Rank 0 serves the store on the socket its launcher has bound."""
    import deepspeed

    env.set_rank(
        rank=context.rank,
        local_rank=context.local_rank,
        world_size=context.world_size,
        local_world_size=context.local_world_size,
        address=context.address,
        port=context.port,
    )
    # Without a compiler DeepSpeed's shared-memory collectives cannot be built, and trying takes long.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not context.is_virtual:
        torch.cuda.set_device(context.local_rank)
    backend = _imagine_others(context) if context.is_alone else _meet_others(context)
    deepspeed.init_distributed(dist_backend=backend, dist_init_required=False, verbose=False)


def _meet_others(context: RankContext) -> str:
    """The process group of all ranks; the name of its backend."""
    timeout = timedelta(seconds=env.collective_timeout_s())
    store = distributed.TCPStore(
        context.address,
        context.port,
        context.world_size,
        is_master=context.rank == 0,
        timeout=timeout,
        master_listen_fd=context.listen_fd if context.rank == 0 else None,
    )
    backend = "gloo" if context.is_virtual else "nccl"
    distributed.init_process_group(
        backend, store=store, rank=context.rank, world_size=context.world_size, timeout=timeout
    )
    return backend


def _imagine_others(context: RankContext) -> str:
    """A process group whose exchanges return at once and move nothing; the name of its backend."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=context.rank, world_size=context.world_size)
    return "fake"


def _take_device(context: RankContext) -> Device:
    if context.is_virtual:
        return VirtualDevice(context.spec.gpu, context.board, context.local_rank)
    return CudaDevice(context.spec.gpu, context.local_rank)


@contextlib.contextmanager
def _bounded(context: RankContext) -> Iterator[None]:
    """While a rehearsal lasts, a real GPU's allocator has what the GPU type has, and the whole device afterwards."""
    if context.spec.rehearsal is None or context.is_virtual:
        yield
        return
    card = context.local_rank
    whole = int(torch.cuda.get_device_properties(card).total_memory)
    torch.cuda.set_per_process_memory_fraction(min(1.0, context.spec.gpu.memory_bytes / whole), card)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, card)


def _leave() -> None:
    distributed.barrier()
    distributed.destroy_process_group()


def _report(context: RankContext, code: int, detail: str) -> None:
    report = RankReport(exit_code=code, detail=detail, last_step=context.board.last_step(context.local_rank))
    context.report_file.write_text(codec.dumps(report))
