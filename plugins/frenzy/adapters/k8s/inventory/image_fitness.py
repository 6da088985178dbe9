"""Whether the trainer's image can run on a node's GPUs: its processor, driver and compute capability; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.inventory.kinds import Notice
from frenzy.adapters.k8s.pod_rules import PodRules
from frenzy.adapters.k8s.torch_builds import NEEDS, CudaNeeds
from frenzy.core.values.hardware import DeviceKind, GpuType

_DRIVERS: Final = (
    "nvidia.com/cuda.driver-version.full",
    "nvidia.com/cuda.driver-version.major",
    "nvidia.com/cuda.driver.major",  # of releases before 0.15
)


def why_unfit(name: str, found: Mapping[str, str], gpu: GpuType, rules: PodRules) -> Notice | None:
    """What keeps the image from GPUs of type ``gpu`` on node ``name`` with the labels ``found``; None where nothing is
    known to. An administrator's own image says in the pod rules what it is built for."""
    architecture = found.get(labels.ARCHITECTURE)
    if architecture is not None and architecture not in rules.architectures:
        detail = f"Its processor is {architecture}, and the trainer's image is for {', '.join(rules.architectures)}."
        remedy = f"Build the image for {architecture}, too, and list it under architectures in the pod rules."
        return Notice(node=name, detail=detail, remedy=remedy)
    if gpu.kind is DeviceKind.VIRTUAL:
        return None
    needs = NEEDS[rules.torch_build]
    driver = _driver(found)
    if driver is not None and driver < needs.min_driver:
        detail = f"Its driver is {driver}; torch for CUDA {needs.cuda} needs {needs.min_driver} or newer."
        remedy = _another_build("Update the driver, or {}.", lambda each: driver >= each.min_driver)
        return Notice(node=name, detail=detail, remedy=remedy)
    capability = gpu.compute_capability
    if capability is not None and not needs.has_kernels_for(capability):
        detail = f"torch for CUDA {needs.cuda} has no kernels for {gpu.name} (compute capability {capability})."
        remedy = _another_build("To use it, {}.", lambda each: each.has_kernels_for(capability))
        return Notice(node=name, detail=detail, remedy=remedy)
    return None


def _driver(found: Mapping[str, str]) -> int | None:
    """The driver's branch, the first part of its version."""
    named = (found[each].partition(".")[0] for each in _DRIVERS if each in found)
    return next((int(each) for each in named if each.isdecimal()), None)


def _another_build(told: str, would_run: Callable[[CudaNeeds], bool]) -> str:
    able = [name for name, needs in NEEDS.items() if would_run(needs)]
    if not able:
        return "Nothing to do: no build of torch that is known runs there."
    return told.format(f"build the image with FRENZY_TORCH={able[0]} and set torch_build: {able[0]} in the pod rules")
