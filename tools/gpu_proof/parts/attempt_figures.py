"""What every attempt tells: memory, time and speed, each beside what its plan predicted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from frenzy.core.models.flops import training_flops
from frenzy.core.models.trainable import trained_part
from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.units import GIB
from tools.gpu_proof.attempts import Bench, Ended, shape_of
from tools.gpu_proof.figure_lines import Found

Config = dict[str, object]


def trained(ended: Ended) -> Found:
    """Whether the attempt came to its end, with its plan, or what it says otherwise."""
    detail = ended.spec.plan.plan_id if ended.trained else f"{ended.spec.plan.plan_id}: {ended.result.detail}"
    return Found(name="trained", value=float(ended.trained), unit="yes = 1", detail=detail)


def figures_of(ended: Ended) -> Iterator[Found]:
    """The attempt's end, its peak, and the median time of a step; no more than the first where it did not train."""
    yield trained(ended)
    if not ended.trained or ended.peak_bytes is None or ended.step_time_s is None:
        return
    plan = ended.spec.plan
    yield in_gib("peak of tensors", ended.peak_bytes, plan.memory.peak_allocated_bytes)
    yield Found(name="step", value=rounded(ended.step_time_s), unit="s", prediction=rounded(plan.step_time_s))


def speed_of(ended: Ended, bench: Bench, config: Config) -> Iterator[Found]:
    """Tokens a second, and the share of the card's peak rate that is the model's own work (recomputation is not)."""
    if not ended.trained or ended.step_time_s is None:
        return
    job, plan = ended.spec.job, ended.spec.plan
    tokens = plan.global_batch_size * job.data.sequence_length
    shape = shape_of(config)
    lora = job.training.lora
    trainable = None if lora is None else trained_part(shape, lora).num_elements(shape.num_layers)
    flops = training_flops(
        shape.flops_shape(trainable),
        num_tokens=tokens,
        sequence_length=job.data.sequence_length,
        checkpointing=False,
    )
    peak = bench.machine.gpu.peak_flops_per_s(job.training.precision) * plan.num_gpus
    for name, work, unit in (("speed", float(tokens), "tokens/s"), ("MFU", 100 * flops / peak, "%")):
        yield Found(
            name=name,
            value=rounded(work / ended.step_time_s),
            unit=unit,
            prediction=rounded(work / plan.step_time_s),
        )


def host_memory(ended: Ended) -> Found:
    """Of all processes at once. On a virtual GPU the card's memory is host memory, and predicted with it."""
    memory = ended.spec.plan.memory
    card = 0 if ended.spec.gpu.kind != "virtual" else memory.peak_allocated_bytes
    return in_gib("host memory", ended.host_bytes, memory.host_bytes_of(1) + card)


def start(ended: Ended) -> Found:
    """From a new process to the beginning of the first step."""
    resumed = ended.result.resumed_from_step
    value = None if ended.start_s is None else rounded(ended.start_s)
    return Found(name="start" if resumed is None else "start from a checkpoint", value=value, unit="s")


def saving(ended: Ended, step: int) -> Iterator[Found]:
    """Size of the checkpoint of ``step``, and its rate: from the step's end to the manifest, which is written last."""
    manifest = Path(RunPaths(ended.spec.run_dir).checkpoint_manifest(step))
    record = next((each for each in ended.steps if each.step == step), None)
    if record is None or not manifest.exists():
        yield Found(name="checkpoint", value=None, unit="GiB", detail="there is none")
        return
    num_bytes = size_of(manifest.parent)
    took_s = max(1e-6, manifest.stat().st_mtime - record.time_s)
    yield in_gib("checkpoint", num_bytes)
    yield Found(name="checkpoint rate", value=rounded(num_bytes / took_s / 1e9), unit="GB/s")


def size_of(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def in_gib(name: str, num_bytes: int, prediction: int | None = None) -> Found:
    predicted = None if prediction is None else rounded(prediction / GIB)
    return Found(name=name, value=rounded(num_bytes / GIB), unit="GiB", prediction=predicted)


def rounded(value: float) -> float:
    """To four digits, which is more than any measurement here is good for."""
    return float(f"{value:.4g}")
