"""Reader of nanotron's benchmark of layouts: Llama-shaped models on nodes of 8 H100."""

from __future__ import annotations

from typing import Final

from frenzy.core.memory.activation_coefficients import ActivationSetting, Attention
from frenzy.core.memory.calibration import Calibration
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.core.values.units import GIB
from frenzy.evaluation.predict import predict
from frenzy.evaluation.published import Cells, Grade, Outcome, PublishedRow, UnknownRow
from frenzy.evaluation.settings_of_runs import shape_of
from tools.accuracy.datasets.megatron import MegatronRun, predict_megatron_memory
from tools.accuracy.datasets.run_or_refusal import run_or_refusal

COLUMNS: Final = ("mbs", "dp", "pp", "tp", "zero", "gpu_memory_gb")
_SEQUENCE_LENGTH: Final = 4096

predict.register(MegatronRun, predict_megatron_memory)


def read_row(cells: Cells, number: int, calibration: Calibration) -> PublishedRow:
    """One row of the benchmark; an empty figure means that the run crashed or ran out of memory."""
    memory = cells["gpu_memory_gb"]
    run, refusal = run_or_refusal(lambda: _run(cells, calibration))
    if not memory:
        run, refusal = None, refusal or "crashed or out of memory, which is not told apart"
    layout = f"dp{cells['dp']} pp{cells['pp']} tp{cells['tp']} z{cells['zero']}"
    return PublishedRow(
        dataset="nanotron",
        number=number,
        label=f"{cells['model']} {layout} mb{cells['mbs']}",
        grade=Grade.B,
        framework="nanotron",
        group=f"{cells['model']}/zero{cells['zero']}",
        outcome=Outcome.RAN if memory else Outcome.OUT_OF_MEMORY,
        capacity_bytes=CATALOGUE["h100"].gpu.memory_bytes,
        run=run,  # type: ignore[arg-type]  # of a kind that only this data set has
        refusal=refusal,
        peak_bytes=round(float(memory) * GIB) if memory else None,
    )


def _run(cells: Cells, calibration: Calibration) -> MegatronRun:
    if cells["pp"] != "1":
        raise UnknownRow("pipeline stages, which the trainer does not run")
    shape = shape_of(f"nanotron-{cells['model']}")
    setting = ActivationSetting(
        precision=Precision.BF16, checkpointing=False, kind=DeviceKind.CUDA, attention=Attention.FLASH_2
    )
    coefficients = calibration.activation(shape, setting)
    if coefficients is None:
        raise UnknownRow("no coefficients of llama for bf16 with flash attention")
    return MegatronRun(
        shape=shape,
        coefficients=coefficients,
        micro_batch=int(cells["mbs"]),
        sequence_length=_SEQUENCE_LENGTH,
        dp=int(cells["dp"]),
        tp=int(cells["tp"]),
        zero_stage=int(cells["zero"]),
    )
