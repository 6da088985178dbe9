"""The profile file: job types as measured throughput, for jobs that MARP is not asked about.

YAML or JSON; which plans there are is listed plan by plan:

    profiles:
      bert-large:
        memory: 9 GiB            # of each GPU; a plan may say otherwise
        restart_s: 45            # time a move costs; default: that of the workload
        plans:
          - {gpu_type: t4, gpus: 1, throughput: 22}
          - {gpu_type: t4, gpus: 4, throughput: 71, host_memory: 12 GiB}
          - {gpu_type: a100-40, gpus: 8, throughput: 1160, memory: 14 GiB, tensor_parallel: 2}

throughput: samples per second of all GPUs together, or a speed relative to anything, as long as the
work of the jobs is meant likewise. host_memory: on each node that takes part; none by default.
tensor_parallel: GPUs in groups of so many, never split over nodes. Plans on GPU types the cluster
does not have, too large for a card, or for the empty cluster, are passed over. A job of work 1.0 is
one sample: its work is the number of samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from frenzy.adapters.spec.refusals import Location, file_text, violations_of
from frenzy.adapters.spec.yaml_core import FILE, load_yaml
from frenzy.core.capacity.free_capacity import FreeCapacity, place
from frenzy.core.scheduling.engine.policy_settings import HasPolicy
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.resource_plan import MemoryPrediction, ResourcePlan
from frenzy.core.values.units import parse_bytes
from frenzy.sim.reference import Plans


def _size(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


_Bytes = Annotated[int, BeforeValidator(_size), Field(gt=0, strict=True)]
_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProfiledPlan(_Strict):
    """One measured way to run a job."""

    gpu_type: str
    gpus: _Count
    throughput: _Rate
    memory: _Bytes | None = None
    host_memory: Annotated[int, BeforeValidator(_size), Field(ge=0, strict=True)] = 0
    tensor_parallel: _Count = 1


class Profile(_Strict):
    """One job type."""

    plans: Annotated[tuple[ProfiledPlan, ...], Field(min_length=1)]
    memory: _Bytes | None = None
    restart_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class _ProfileFile(_Strict):
    profiles: Annotated[dict[str, Profile], Field(min_length=1)]


def read_profiles(path: Path) -> Mapping[str, Profile]:
    """The job types in the YAML or JSON file at ``path``, by name.

    Raises SpecError with every violation: file, field, value, what is allowed.
    """
    return parse_profiles(file_text(path, "profile file"), source=str(path))


def parse_profiles(text: str, *, source: str = "profile file") -> Mapping[str, Profile]:
    """The job types in ``text``, by name. Raises SpecError as ``read_profiles`` does."""
    try:
        profiles = _ProfileFile.model_validate(load_yaml(text, FILE)).profiles
    except ValidationError as error:
        found = violations_of(error, _fields_at, "the document")
        raise SpecError(_in_file(source, each) for each in found) from error
    except SpecError as error:
        raise SpecError(_in_file(source, each) for each in error.violations) from error
    violations = [each for name, profile in profiles.items() for each in _contradictions(source, name, profile)]
    if violations:
        raise SpecError(violations)
    return profiles


def profile_plans(profile: Profile, cluster: Cluster) -> Plans:
    """The plans of ``profile`` that fit ``cluster`` when nothing runs, fastest first."""
    policy, empty = HasPolicy(), FreeCapacity.of(cluster)
    found: list[ResourcePlan] = []
    for each in profile.plans:
        gpu = cluster.types_by_name.get(each.gpu_type)
        needed = each.memory or profile.memory or 0
        if gpu is None or needed > gpu.memory_bytes:
            continue
        plan = _plan(each, gpu, needed)
        if place(empty.by_type[gpu.name], policy.need(plan)) is not None:
            found.append(plan)
    found.sort(key=lambda plan: (plan.predicted_run_s, plan.num_gpus, plan.gpu_type))
    return tuple(found)


def _plan(profiled: ProfiledPlan, gpu: GpuType, needed_bytes: int) -> ResourcePlan:
    sample_s, price = 1.0 / profiled.throughput, gpu.price_per_hour
    memory = MemoryPrediction(
        peak_allocated_bytes=needed_bytes,
        required_bytes=needed_bytes,
        host_bytes=profiled.host_memory,
        at="the profile",
    )
    return ResourcePlan(
        gpu_type=gpu.name,
        num_gpus=profiled.gpus,
        dp=profiled.gpus // profiled.tensor_parallel,
        tp=profiled.tensor_parallel,
        zero_stage=0,
        micro_batch_size=1,
        accumulation_steps=1,
        activation_checkpointing=False,
        memory=memory,
        gpu_memory_bytes=gpu.memory_bytes,
        step_time_s=sample_s,
        samples_per_s=profiled.throughput,
        predicted_run_s=sample_s,
        predicted_cost=None if price is None else profiled.gpus * sample_s / 3600.0 * price,
    )


def _contradictions(source: str, name: str, profile: Profile) -> list[Violation]:
    found: list[Violation] = []
    seen: set[tuple[str, int, int]] = set()
    for at, plan in enumerate(profile.plans):
        where = f"{source}, profiles.{name}.plans[{at}]"
        if plan.memory is None and profile.memory is None:
            allowed = "a size such as '9 GiB', here or for the whole profile"
            found.append(Violation(path=f"{where}.memory", value="nothing", allowed=allowed))
        if plan.gpus % plan.tensor_parallel:
            allowed = f"a divisor of gpus = {plan.gpus}"
            found.append(Violation(path=f"{where}.tensor_parallel", value=str(plan.tensor_parallel), allowed=allowed))
        key = (plan.gpu_type, plan.gpus, plan.tensor_parallel)
        if key in seen:
            value = f"{plan.gpus} x {plan.gpu_type}"
            found.append(Violation(path=where, value=value, allowed="each type, count and tensor_parallel once"))
        seen.add(key)
    return found


def _fields_at(location: Location) -> Iterable[str]:
    if len(location) == 1:
        return _ProfileFile.model_fields
    return (ProfiledPlan if "plans" in location else Profile).model_fields


def _in_file(source: str, violation: Violation) -> Violation:
    return replace(violation, path=f"{source}, {violation.path or 'the document'}")
