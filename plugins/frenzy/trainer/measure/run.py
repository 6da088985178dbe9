"""Runs one case through the trainer on this machine's GPUs, real or virtual, and reads its telemetry."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial, reduce
from importlib import metadata
from operator import or_
from pathlib import Path
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.values import codec
from frenzy.core.values.cluster import NodeAllocation, Placement
from frenzy.core.values.errors import FrenzyError
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.launch import AttemptResult, LaunchSpec, Rehearsal
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.telemetry import StepRecord, fold_steps
from frenzy.core.values.units import GIB, MIB
from frenzy.trainer import env
from frenzy.trainer.measure.case import NUM_STEPS, MeasureCase, job_of, plan_of, prediction_of, refusal_of
from frenzy.trainer.measure.least_budget import smallest_budget
from frenzy.trainer.measure.record import Measurement, Outcome

VIRTUAL_BUDGET_BYTES: Final = 4 * GIB
_ATTEMPT: Final = 1
_LIBRARIES: Final = ("torch", "transformers", "deepspeed", "peft", "bitsandbytes")
# Bisection ends when the bracket is this share of the budget, or this many bytes.
_TOLERANCE_SHARE: Final = 0.005
_TOLERANCE_BYTES: Final = 1 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where cases are run. num_gpus: ranks beyond are imagined. tight: no more memory than is predicted as required.

    memory_bytes: of the card, or the budget of a virtual GPU. bisect: look for the least memory as well.
    """

    calibration: Calibration
    text: Path
    kind: DeviceKind = DeviceKind.VIRTUAL
    card: str = "virtual"
    compute_capability: str | None = None
    num_gpus: int = 4
    memory_bytes: int = VIRTUAL_BUDGET_BYTES
    versions: Mapping[str, str] = field(default_factory=dict)
    tight: bool = False
    bisect: bool = False

    def is_alone(self, case: MeasureCase) -> bool:
        """Whether only rank 0 of ``case`` runs, because there are fewer GPUs than ranks."""
        return case.num_ranks > self.num_gpus


def measure(case: MeasureCase, bench: Bench) -> Measurement:
    """Run ``case`` and record what came of it, a refusal as well as a failure."""
    record = Measurement(
        case=case,
        num_parameters=0,
        prediction=None,
        kind=bench.kind,
        card=bench.card,
        compute_capability=bench.compute_capability,
        imagined_ranks=bench.is_alone(case),
        versions=bench.versions,
        measured_on=f"{datetime.now(tz=UTC):%Y-%m-%d}",
    )
    try:
        refusal = refusal_of(case, bench.kind)
        if refusal is not None:
            return replace(record, outcome=Outcome.REFUSED, detail=refusal.sentence)
        prediction = prediction_of(case, bench.calibration, bench.kind, bench.compute_capability)
        known = replace(record, num_parameters=case.num_parameters, prediction=prediction)
    except FrenzyError as error:
        return replace(record, outcome=Outcome.REFUSED, detail=error.reason.sentence)
    tight = bench.tight and prediction is not None
    budget_bytes = prediction.required_bytes if tight and prediction else bench.memory_bytes
    measured = _measured(known, bench, budget_bytes)
    if bench.bisect and measured.ran and measured.peaks is not None:
        return replace(measured, needed_bytes=_needed_bytes(measured.case, measured.peaks, bench))
    return measured


def _measured(record: Measurement, bench: Bench, budget_bytes: int) -> Measurement:
    result, steps = run_case(record.case, bench, budget_bytes)
    outcome = outcome_of(result)
    ran = outcome is Outcome.RAN and bool(steps)
    return replace(
        record,
        outcome=outcome,
        detail=result.detail,
        by_step=tuple(each.allocated_bytes for each in steps),
        budget_bytes=budget_bytes,
        peaks=reduce(or_, steps) if ran else None,
    )


def outcome_of(result: AttemptResult) -> Outcome:
    """What the trainer's exit code says of a case."""
    by_code = {
        ExitCode.DONE: Outcome.RAN,
        ExitCode.BUDGET_EXCEEDED: Outcome.OUT_OF_MEMORY,
        ExitCode.CUDA_OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY,
        ExitCode.BAD_CONFIG_OR_DATA: Outcome.REFUSED,
    }
    return {int(code): outcome for code, outcome in by_code.items()}.get(result.exit_code, Outcome.FAILED)


def _needed_bytes(case: MeasureCase, peaks: PeakMemory, bench: Bench) -> int | None:
    """The least working budget, and what a real card has in use beside the allocator."""
    start = peaks.reserved_bytes
    budget = smallest_budget(
        partial(_runs, case, bench),
        start_bytes=start,
        most_bytes=bench.memory_bytes,
        tolerance_bytes=max(_TOLERANCE_BYTES, round(_TOLERANCE_SHARE * start)),
    )
    outside = peaks.outside_bytes if bench.kind is DeviceKind.CUDA else 0
    return None if budget is None else budget + outside


def _runs(case: MeasureCase, bench: Bench, budget_bytes: int) -> bool:
    return outcome_of(run_case(case, bench, budget_bytes)[0]) is Outcome.RAN


def run_case(case: MeasureCase, bench: Bench, budget_bytes: int) -> tuple[AttemptResult, tuple[PeakMemory, ...]]:
    """One attempt of ``case`` on GPUs of ``budget_bytes``: how it ended, and the peaks of its steps."""
    folder = Path(tempfile.mkdtemp(prefix="frenzy-measure-"))
    try:
        spec = _spec(case, bench, budget_bytes, folder)
        result = _run(spec, folder)
        return result, peaks_of(RunPaths(spec.run_dir))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _spec(case: MeasureCase, bench: Bench, budget_bytes: int, folder: Path) -> LaunchSpec:
    alone = bench.is_alone(case)
    return LaunchSpec(
        run_key="measure",
        attempt=_ATTEMPT,
        job=job_of(case, bench.text),
        plan=plan_of(case, bench.kind, budget_bytes, None),
        gpu=GpuType(name=bench.card, memory_bytes=budget_bytes, flops_per_s=1e15, kind=bench.kind),
        placement=Placement(allocations=(NodeAllocation(node="here", num_gpus=1 if alone else case.num_ranks),)),
        run_dir=str(folder),
        rehearsal=Rehearsal(alone=alone),
    )


def _run(spec: LaunchSpec, folder: Path) -> AttemptResult:
    with env.importing_libraries():
        from frenzy.trainer.launch.child import call_in_child
        from frenzy.trainer.launch.node import run_node
        from frenzy.trainer.model.libraries import import_libraries

    # Once for all cases, which are forks of this process; one whose libraries are not there says so by itself.
    with suppress(Exception):
        import_libraries(spec.job.model)
    scratch = folder / "scratch"
    scratch.mkdir()
    ended = call_in_child(
        lambda: run_node(spec, node_rank=None, scratch=scratch), folder / "result.pickle", log_file=folder / "node.log"
    )
    if isinstance(ended, AttemptResult):
        return ended
    return AttemptResult(exit_code=ended.exit_code, last_step=0, total_steps=NUM_STEPS, detail=ended.detail)


def peaks_of(paths: RunPaths) -> tuple[PeakMemory, ...]:
    """Peaks of each step over the telemetry of all ranks."""
    chunks = sorted(Path(paths.telemetry_dir(_ATTEMPT)).glob("*.jsonl"))
    records = tuple(codec.loads(StepRecord, line) for chunk in chunks for line in chunk.read_text().splitlines())
    return tuple(each.peaks for each in fold_steps(records))


def library_versions() -> dict[str, str]:
    """Releases of the libraries that memory depends on, as far as they are installed."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
