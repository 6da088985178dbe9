"""Predicted against measured memory: ``python -m frenzy.trainer.measure --cases 40 --seed 7``.

Draws random jobs and plans, runs each for a few steps through the trainer itself on virtual
GPUs, and prints the peak that the closed form predicts beside the one the ranks measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from frenzy.core import codec
from frenzy.core.candidate_build import workload_of
from frenzy.core.cluster import NodeAllocation, Placement
from frenzy.core.hardware import DeviceKind, GpuType
from frenzy.core.job import CheckpointSpec, DataSpec, LoraSpec, ModelSpec, Precision, TrainingJob, TrainingSpec
from frenzy.core.launch import AttemptResult, LaunchSpec, RunPaths
from frenzy.core.memory import predict_memory
from frenzy.core.memory_calibration import Calibration
from frenzy.core.model_shape import model_shape
from frenzy.core.plan import MemoryPrediction, ResourcePlan
from frenzy.core.plan_grid import divisors, grid_of
from frenzy.core.plan_request import PlanRequest
from frenzy.core.units import GIB, MIB
from frenzy.trainer import env

_STEPS: Final = 3
_BUDGET_BYTES: Final = 4 * GIB
_ATTEMPT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureCase:
    """One job and one plan of it."""

    config: dict[str, Any]
    sequence_length: int
    precision: Precision
    dp: int
    zero_stage: int
    micro_batch: int
    accumulation: int
    checkpointing: bool
    tp: int = 1
    lora_rank: int | None = None

    @property
    def num_parameters(self) -> int:
        return model_shape(self.full_config()).num_parameters

    @property
    def num_tensors(self) -> int:
        return model_shape(self.full_config()).num_tensors

    def full_config(self) -> dict[str, Any]:
        """The config with the library's defaults."""
        from transformers import AutoConfig

        full: dict[str, Any] = AutoConfig.for_model(**self.config).to_dict()
        return full

    @property
    def label(self) -> str:
        family = self.config["model_type"]
        switches = ("-ckpt" if self.checkpointing else "") + (f"-lora{self.lora_rank}" if self.lora_rank else "")
        tensor_parallel = f"-tp{self.tp}" if self.tp > 1 else ""
        return (
            f"{family}-{self.precision}-z{self.zero_stage}-dp{self.dp}{tensor_parallel}"
            f"-mb{self.micro_batch}-acc{self.accumulation}-s{self.sequence_length}{switches}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was predicted and measured. measured_bytes None: the run failed, ``detail`` says how."""

    case: MeasureCase
    num_parameters: int
    prediction: MemoryPrediction
    measured_bytes: int | None
    by_step: tuple[int, ...]
    detail: str

    @property
    def error(self) -> float | None:
        """Relative error of the predicted peak; positive when it was predicted too high."""
        if not self.measured_bytes:
            return None
        return self.prediction.peak_allocated_bytes / self.measured_bytes - 1.0


def job_of(case: MeasureCase, text: Path) -> TrainingJob:
    """A short job with the case's model and batch."""
    return TrainingJob(
        name="measure",
        model=ModelSpec(config=case.config),
        data=DataSpec(path=str(text), format="text", sequence_length=case.sequence_length),
        training=TrainingSpec(
            global_batch_size=case.dp * case.micro_batch * case.accumulation,
            max_steps=_STEPS,
            precision=case.precision,
            lora=LoraSpec(rank=case.lora_rank) if case.lora_rank else None,
        ),
        checkpoint=CheckpointSpec(every_steps=1_000_000, resume="never"),
    )


def plan_of(case: MeasureCase, job: TrainingJob, calibration: Calibration) -> ResourcePlan:
    """The case's plan with its prediction. Raises ValueError outside the memory model's support."""
    request = PlanRequest(job=job, shape=model_shape(case.full_config()), total_steps=_STEPS)
    workload = workload_of(request, DeviceKind.VIRTUAL)
    row = (case.dp, case.tp, case.zero_stage, case.micro_batch, case.accumulation, case.checkpointing)
    memory = predict_memory(workload, grid_of([row]), calibration)
    if memory is None:
        raise ValueError(f"no coefficients for {case.label}")
    return ResourcePlan(
        gpu_type="virtual",
        num_gpus=case.dp * case.tp,
        dp=case.dp,
        tp=case.tp,
        zero_stage=case.zero_stage,
        micro_batch_size=case.micro_batch,
        accumulation_steps=case.accumulation,
        activation_checkpointing=case.checkpointing,
        bucket_elements=workload.bucket_elements,
        memory=memory.prediction(0),
        gpu_memory_bytes=_BUDGET_BYTES,
        step_time_s=1.0,
        samples_per_s=1.0,
        predicted_run_s=1.0,
        predicted_cost=0.0,
    )


def measure(case: MeasureCase, text: Path, calibration: Calibration, *, tight: bool = False) -> Measurement:
    """Run ``case`` through the trainer in this process's children and read its telemetry.

    tight: each virtual GPU has just the predicted requirement, so that too low a one fails.
    """
    job = job_of(case, text)
    plan = plan_of(case, job, calibration)
    budget_bytes = plan.memory.required_bytes if tight else _BUDGET_BYTES
    gpu = GpuType(name="virtual", memory_bytes=budget_bytes, flops_per_s=1e15, kind=DeviceKind.VIRTUAL)
    folder = Path(tempfile.mkdtemp(prefix="frenzy-measure-"))
    try:
        spec = LaunchSpec(
            run_key="measure",
            attempt=_ATTEMPT,
            job=job,
            plan=plan,
            gpu=gpu,
            placement=Placement(allocations=(NodeAllocation(node="here", num_gpus=plan.num_gpus),)),
            run_dir=str(folder),
        )
        result = _run(spec, folder)
        peaks = _peaks_by_step(RunPaths(spec.run_dir))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Measurement(
        case=case,
        num_parameters=case.num_parameters,
        prediction=plan.memory,
        measured_bytes=max(peaks) if result.exit_code == 0 and peaks else None,
        by_step=peaks,
        detail=result.detail,
    )


def _run(spec: LaunchSpec, folder: Path) -> AttemptResult:
    from frenzy.trainer.child import call_in_child
    from frenzy.trainer.node import run_node

    scratch = folder / "scratch"
    scratch.mkdir()
    ended = call_in_child(
        lambda: run_node(spec, node_rank=None, scratch=scratch), folder / "result.pickle", log_file=folder / "node.log"
    )
    if isinstance(ended, AttemptResult):
        return ended
    return AttemptResult(exit_code=ended.exit_code, last_step=0, total_steps=_STEPS, detail=ended.detail)


def _peaks_by_step(paths: RunPaths) -> tuple[int, ...]:
    """The highest peak of any rank in each step."""
    by_step: dict[int, int] = {}
    for chunk in sorted(Path(paths.telemetry_dir(_ATTEMPT)).glob("*.jsonl")):
        for line in chunk.read_text().splitlines():
            record = json.loads(line)
            by_step[record["step"]] = max(by_step.get(record["step"], 0), record["allocated_peak_bytes"])
    return tuple(by_step[step] for step in sorted(by_step))


# random cases


def random_case(generator: random.Random, families: Sequence[str]) -> MeasureCase:
    """A job and plan from about 0.3M to 60M parameters, any stage, precision and world up to 4."""
    config = _random_config(generator.choice(families), generator)
    dp = generator.choice([1, 1, 2, 2, 3, 4])
    length = generator.choice([32, 64, 96, 128, 200, 256, 384, 512])
    per_rank = generator.choice([each for each in (1, 2, 3, 4, 6, 8, 12, 16) if each * length <= 3072])
    micro = generator.choice(divisors(per_rank, per_rank))
    return MeasureCase(
        config=config,
        sequence_length=length,
        precision=generator.choice([Precision.FP32, Precision.BF16, Precision.AUTOCAST_BF16]),
        dp=dp,
        zero_stage=generator.choice([1, 2, 3]) if dp > 1 else generator.choice([1, 1, 2, 3]),
        micro_batch=micro,
        accumulation=per_rank // micro,
        checkpointing=generator.random() < 0.3,
    )


def _random_config(family: str, generator: random.Random) -> dict[str, Any]:
    head_dim = generator.choice([16, 32, 48, 64])
    heads = generator.choice([2, 4, 6, 8, 12])
    hidden, layers = heads * head_dim, generator.choice([1, 2, 3, 4, 6, 8, 12])
    vocabulary = generator.choice([264, 300, 1024, 4096, 8192, 16384])
    ids = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": vocabulary}
    if family == "gpt2":
        dropout = generator.choice([0.0, 0.0, 0.1])
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        widths = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 512}
        return {"model_type": family, **widths, **rates, **ids}
    inner = generator.choice([2, 8 / 3, 4])
    config = {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 512,
        **ids,
    }
    if family == "opt":
        return {**config, "ffn_dim": 4 * hidden, "word_embed_proj_dim": hidden, "pad_token_id": 1}
    config["intermediate_size"] = int(inner * hidden) // 8 * 8
    if family in ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi"):
        config["num_key_value_heads"] = generator.choice([each for each in (1, 2, heads) if heads % each == 0])
        config["tie_word_embeddings"] = generator.random() < 0.5
        config["pad_token_id"] = None
    if family in ("qwen3", "gemma"):
        config["head_dim"] = head_dim
    return config


# the table


def print_table(measurements: Iterable[Measurement], tolerance: float) -> int:
    """One line each, then median and worst error; 1 when a case failed or is off by more than ``tolerance``."""
    errors, wrong = [], 0
    for each in measurements:
        print(_line(each), flush=True)
        wrong += each.error is None or abs(each.error) > tolerance
        errors += [] if each.error is None else [abs(each.error)]
    if errors:
        ninth = sorted(errors)[int(0.9 * (len(errors) - 1))]
        print(
            f"{len(errors)} cases: median {100 * statistics.median(errors):.2f} %, "
            f"90th percentile {100 * ninth:.2f} %, worst {100 * max(errors):.2f} %; {wrong} failed or wrong"
        )
    return int(wrong > 0)


def _line(each: Measurement) -> str:
    what = f"{each.case.label:62s} {each.num_parameters / 1e6:6.2f}M"
    if each.error is None or each.measured_bytes is None:
        return f"{what} failed: {each.detail}"
    return (
        f"{what} predicted {each.prediction.peak_allocated_bytes / MIB:7.1f} MiB "
        f"measured {each.measured_bytes / MIB:7.1f} MiB {100 * each.error:+6.2f} %  {each.prediction.at}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20, help="number of random cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random cases")
    parser.add_argument("--max-parameters", type=float, default=100e6, help="no larger models")
    parser.add_argument("--family", action="append", help="model family (may be repeated); default gpt2 and llama")
    parser.add_argument("--calibration", type=Path, required=True, help="JSON file of the calibration")
    parser.add_argument("--text", type=Path, help="a text file to train on")
    parser.add_argument("--output", type=Path, help="JSON lines of every measurement, added to")
    parser.add_argument("--replay", type=Path, help="predict the measurements of this file anew; nothing is run")
    parser.add_argument("--tight", action="store_true", help="give each GPU just the memory predicted as required")
    parser.add_argument("--tolerance", type=float, default=0.08, help="relative error above which a case is wrong")
    parser.add_argument("--rerun", type=Path, help="run the cases of this file again, instead of random ones")
    parser.add_argument("--only", default="", help="only cases whose label contains this")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        stored = replayed(arguments.replay, codec.loads(Calibration, arguments.calibration.read_text()))
        return print_table(stored, arguments.tolerance)
    if arguments.text is None:
        parser.error("--text is needed to run cases")
    env.enter({}, virtual=True, arguments=sys.argv[1:], module="frenzy.trainer.measure")
    calibration = codec.loads(Calibration, arguments.calibration.read_text())
    cases = [case for case in _cases(arguments) if arguments.only in case.label]
    measured = (measure(case, arguments.text, calibration, tight=arguments.tight) for case in cases)
    return print_table(_stored(measured, arguments.output), arguments.tolerance)


def _cases(arguments: argparse.Namespace) -> list[MeasureCase]:
    if arguments.rerun is not None:
        return [codec.loads(Measurement, line).case for line in arguments.rerun.read_text().splitlines()]
    generator = random.Random(arguments.seed)
    families = arguments.family or ["gpt2", "llama"]
    drawn = (random_case(generator, families) for _ in iter(int, 1))
    wanted = (case for case in drawn if case.num_parameters <= arguments.max_parameters)
    return list(itertools.islice(wanted, arguments.cases))


def replayed(stored: Path, calibration: Calibration) -> Iterable[Measurement]:
    """Stored measurements with today's prediction."""
    for line in stored.read_text().splitlines():
        before = codec.loads(Measurement, line)
        plan = plan_of(before.case, job_of(before.case, Path()), calibration)
        yield replace(before, prediction=plan.memory)


def _stored(measurements: Iterable[Measurement], output: Path | None) -> Iterable[Measurement]:
    for each in measurements:
        if output is not None:
            with output.open("a") as file:
                file.write(codec.dumps(each) + "\n")
        yield each


if __name__ == "__main__":
    sys.exit(main())
