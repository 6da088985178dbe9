"""Tiny trainings on forked ranks, for the checkpoint tests: deepspeed is imported once, here."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import deepspeed
import peft
import torch
import transformers
from deepspeed.accelerator import get_accelerator
from torch import distributed

from frenzy.core.lifecycle.checkpoint_manifest import CheckpointManifest
from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values.job import TrainingSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer.checkpoint.fragment_index import FragmentIndex
from frenzy.trainer.checkpoint.load import load_checkpoint
from frenzy.trainer.checkpoint.save import CheckpointSaver
from frenzy.trainer.checkpoint.saved_state import TrainState
from frenzy.trainer.checkpoint.store import PreparedCheckpoint
from frenzy.trainer.model.flat_groups import groups_for_card
from frenzy.trainer.model.weight_decay import parameter_groups

with warnings.catch_warnings():
    # What a first engine imports late: once here instead of in every rank, whatever it warns of.
    warnings.simplefilter("ignore")
    for module in (
        "deepspeed.runtime.zero.muon.muon_optimizer",
        "deepspeed.runtime.zero.stage3",
        "transformers.models.gpt2.modeling_gpt2",
        "transformers.models.llama.modeling_llama",
    ):
        importlib.import_module(module)

torch.set_num_threads(1)
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

VOCAB = 64
LENGTH = 16
GLOBAL_BATCH = 8


@dataclass(frozen=True)
class Setup:
    """One way to run the tiny training."""

    world_size: int
    stage: int
    tp: int = 1
    family: str = "gpt2"
    precision: str = "fp32"
    optimizer: str = "adamw"
    lora: bool = False
    dropout: float = 0.0
    offload: bool = False
    width: int = 16
    accumulation: int = 2
    fp32_sums: bool = False
    weight_decay_on: Literal["all", "matrices"] = "all"
    group_bytes: int | None = None

    @property
    def layout(self) -> ParallelLayout:
        return ParallelLayout(self.world_size, self.stage, self.tp)

    def on(self, world_size: int, stage: int, tp: int = 1) -> Setup:
        return replace(self, world_size=world_size, stage=stage, tp=tp)

    @property
    def config(self) -> dict[str, Any]:
        kind = {"adamw": "AdamW", "sgd": "SGD"}[self.optimizer]
        decay = 0.01 if self.weight_decay_on == "all" else 0.9  # so that a group that is mistaken for another shows
        parameters: dict[str, Any] = {"lr": 1e-2, "weight_decay": decay}
        parameters |= {"torch_adam": True} if kind == "AdamW" else {"momentum": 0.9}
        dp = self.world_size // self.tp
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": GLOBAL_BATCH // dp // self.accumulation,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": 1.0,
            "optimizer": {"type": kind, "params": parameters},
            "zero_optimization": {"stage": self.stage},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 2**31 - 1,
        }
        if self.offload:
            config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
            config["zero_force_ds_cpu_optimizer"] = False
        if self.tp > 1:
            config["tensor_parallel"] = {"autotp_size": self.tp}
        formats: dict[str, dict[str, Any]] = {
            "fp32": {},
            "bf16": {"bf16": {"enabled": True}},
            "fp16": {"fp16": {"enabled": True, "initial_scale_power": 12, "loss_scale_window": 2}},
            "autocast": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
        }
        config |= formats[self.precision]
        if self.fp32_sums:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
            if self.stage == 1:
                config["communication_data_type"] = "fp32"
            if self.stage == 1 and self.precision == "bf16":
                config["bf16"] = {"enabled": True, "immediate_grad_update": True}
        return config


def tiny_model(setup: Setup) -> torch.nn.Module:
    torch.manual_seed(1)
    sizes = {"gpt2": _gpt2, "llama": _llama}[setup.family](setup)
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(sizes)  # type: ignore[no-untyped-call]
    if setup.lora:
        targets = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}[setup.family]
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets))
    return model


def _gpt2(setup: Setup) -> Any:
    return transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=setup.width, n_layer=2, n_head=2,
        resid_pdrop=setup.dropout, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip


def _llama(setup: Setup) -> Any:
    return transformers.LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=LENGTH, hidden_size=setup.width, intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, attention_dropout=setup.dropout,
    )  # fmt: skip


def make_engine(setup: Setup) -> Any:
    model = tiny_model(setup)
    trained = parameter_groups(
        ((name, each) for name, each in model.named_parameters() if each.requires_grad),
        TrainingSpec(weight_decay=0.9, weight_decay_on=setup.weight_decay_on),
    )
    if setup.group_bytes is not None:
        trained = groups_for_card(trained, free_bytes=0, group_bytes=setup.group_bytes)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=setup.config)
    return engine


def train(engine: Any, setup: Setup, first: int, last: int) -> list[float]:
    """Losses of optimizer steps ``first`` to ``last``; data and learning rate depend on the step alone."""
    losses = []
    micro = engine.train_micro_batch_size_per_gpu()
    dp_rank = distributed.get_rank() // setup.tp
    for step in range(first, last + 1):
        for group in engine.optimizer.optimizer.param_groups:
            group["lr"] = 1e-2 / (1 + 0.1 * step)
        batch = torch.randint(VOCAB, (GLOBAL_BATCH, LENGTH), generator=torch.Generator().manual_seed(step))
        batch = (batch + torch.arange(LENGTH)) % VOCAB // 8  # something to learn
        mine = batch.view(-1, setup.accumulation, micro, LENGTH)[dp_rank]
        total = torch.zeros(())
        for part in mine:
            loss = engine(input_ids=part, labels=part).loss
            engine.backward(loss)
            engine.step()
            total += loss.detach().float() / setup.accumulation
        distributed.all_reduce(total)
        losses.append(total.item() / setup.world_size)
    return losses


def run_ranks(setup: Setup, job: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``job(setup, *arguments)`` on forked ranks; their results in rank order. Raises what a rank raised."""
    with tempfile.TemporaryDirectory() as folder:
        pids = [_fork(rank, setup, Path(folder), job, arguments) for rank in range(setup.world_size)]
        failed = []
        for rank, pid in enumerate(pids):
            _, status = os.waitpid(pid, 0)
            if status:
                failed.append((rank, os.waitstatus_to_exitcode(status)))
                for other in pids[rank + 1 :]:
                    os.kill(other, signal.SIGKILL)
        if failed:
            rank, code = failed[0]
            report = Path(folder) / f"error-{rank}"
            raise AssertionError(report.read_text() if report.exists() else f"rank {rank} ended with {code}")
        return [pickle.loads((Path(folder) / f"result-{rank}").read_bytes()) for rank in range(setup.world_size)]


def _fork(rank: int, setup: Setup, folder: Path, job: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    with warnings.catch_warnings():
        # Threads of the test runner, which hold nothing that a rank needs.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        warnings.simplefilter("ignore")  # deepspeed's own; the tests' strict filter is for this project's code
        warnings.filterwarnings("error", module="frenzy")
        get_accelerator().is_fp16_supported = lambda: True  # slow without the instructions, but right
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(setup.world_size))
        deepspeed.init_distributed(
            "gloo", auto_mpi_discovery=False, verbose=False, rank=rank, world_size=setup.world_size,
            init_method=f"file://{folder}/rendezvous",
        )  # fmt: skip
        result = job(setup, *arguments)
        (folder / f"result-{rank}").write_bytes(pickle.dumps(result))
        distributed.destroy_process_group()
        code = 0
    except BaseException:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def train_and_save(setup: Setup, run_dir: str, save_at: tuple[int, ...], last: int, keep: int = 5) -> list[float]:
    """Losses of steps 1 to ``last``, saving after each step in ``save_at``."""
    return go_on(make_engine(setup), setup, run_dir, 0, save_at, last, keep)


def resume_and_save(
    setup: Setup, prepared: PreparedCheckpoint, run_dir: str, save_at: tuple[int, ...], last: int, keep: int = 5
) -> tuple[TrainState, list[float]]:
    """The state that was loaded, and the losses from there to ``last``."""
    engine = make_engine(setup)
    state = load_checkpoint(engine, prepared)
    return state, go_on(engine, setup, run_dir, state.step, save_at, last, keep, resumed=prepared.manifest)


def go_on(
    engine: Any,
    setup: Setup,
    run_dir: str,
    done: int,
    save_at: tuple[int, ...],
    last: int,
    keep: int,
    resumed: CheckpointManifest | None = None,
) -> list[float]:
    """Losses of the steps after ``done``; a step in ``save_at`` that is ``done`` is saved before any training.

    As in a run, a checkpoint is written while the next steps train.
    """
    losses: list[float] = []
    with CheckpointSaver(engine, RunPaths(run_dir), setup.layout, keep, resumed=resumed) as saver:
        for step in (*save_at, last):
            losses += train(engine, setup, done + 1, step)
            done = step
            if saver.pending_step is not None:
                saver.finish()
            if step in save_at:
                saver.begin(train_state(step))
        if saver.pending_step is not None:
            saver.finish()
    return losses


def train_state(step: int) -> TrainState:
    return TrainState(
        step, tokens_seen=step * GLOBAL_BATCH * LENGTH, callback_states={"swa": {"kept": [step - 1, step]}}
    )


def whole_state(prepared: PreparedCheckpoint) -> dict[tuple[str, str], torch.Tensor]:
    """Every tensor of a checkpoint in one piece, by what it is and by parameter (no tensor parallelism)."""
    index = FragmentIndex.of_files(prepared.tensor_files, {})
    whole = {}
    for state, name in sorted(index.tensors()):
        tensor = torch.empty(index.numel(state, name, 0))
        index.read(state, name, 0, 0, tensor)
        whole[state, name] = tensor
    return whole
