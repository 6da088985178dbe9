"""Reader of llm-foundry's benchmark: MPT models with Composer and FSDP; every row ran, no memory is recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.torch_kernels import Sharding, TorchOptimizer, TorchRun
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.evaluation.published import Cells, Grade, Outcome, PublishedRow, UnknownRow
from frenzy.evaluation.settings_of_runs import RunSetting, torch_run
from tools.accuracy.datasets.run_or_refusal import run_or_refusal

COLUMNS: Final = ("MFU", "MicroBatchSize", "Sharding Strategy", "Activation Checkpointing")
_GPUS: Final = {"h100_80gb": "h100", "a100_80gb": "a100-80", "a100_40gb": "a100-40"}
# A log-probability of torch's loss; llm-foundry's own (loss_fn: fused_crossentropy, its default) keeps none.
_LOG_PROBABILITY_BYTES: Final = 2
_SHARDING: Final = {"FULL_SHARD": Sharding.FULL, "SHARD_GRAD_OP": Sharding.GRADIENTS, "NO_SHARD": Sharding.NONE}


def read_row(cells: Cells, number: int, calibration: Calibration) -> PublishedRow:
    """One row of the benchmark."""
    run, refusal = run_or_refusal(lambda: _run(cells, calibration))
    gpu = CATALOGUE[_GPUS[cells["GPU"]]].gpu
    return PublishedRow(
        dataset="llm-foundry",
        number=number,
        label=f"mpt-{cells['Model']} s{cells['SeqLen (T)']} b{cells['MicroBatchSize']} {cells['# GPUs']}x{gpu.name}",
        grade=Grade.D,
        framework="Composer with FSDP",
        group=f"full/fsdp/{cells['GPU']}",
        outcome=Outcome.RAN,
        capacity_bytes=gpu.memory_bytes,
        run=run,
        refusal=refusal,
    )


def _run(cells: Cells, calibration: Calibration) -> TorchRun:
    return replace(torch_run(_setting(cells), calibration), saved_loss_bytes=_LOG_PROBABILITY_BYTES)


def _setting(cells: Cells) -> RunSetting:
    """Master weights, gradients and states in fp32, computed in 16 bits; flash attention.

    llm-foundry has MPT modules of its own, with flash attention, which the library's have not; their
    layers are those of GPT-NeoX in what they keep: two norms, one map for q, k and v, a GELU between two maps.
    """
    if cells["Activation CPUOffload"] == "True":
        raise UnknownRow("activations are offloaded to the host")
    if cells["Sharding Strategy"] not in _SHARDING:
        raise UnknownRow(f"sharding strategy {cells['Sharding Strategy']!r} is not modelled")
    return RunSetting(
        model=f"mpt-{cells['Model']}",
        micro_batch=int(cells["MicroBatchSize"]),
        sequence_length=int(cells["SeqLen (T)"]),
        master_fp32=True,
        checkpointing=cells["Activation Checkpointing"] == "True",
        optimizer=TorchOptimizer.LION,
        sharding=_SHARDING[cells["Sharding Strategy"]],
        num_gpus=int(cells["# GPUs"]),
        gathered_layers=2,
        reentrant=False,
        hopper=cells["GPU"].startswith("h100"),
        computed_like="gpt_neox",
    )
