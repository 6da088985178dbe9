"""Reads what ``frenzy.core.lifecycle.preflight`` judges: limits of this process, the rank's GPU."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from frenzy.core.lifecycle.preflight import GpuFacts, NodeFacts, Version

_RDMA_DEVICES: Final = Path("/dev/infiniband")
_DRIVER: Final = "libcuda.so.1"
_IPC_LOCK: Final = 1 << 14  # CAP_IPC_LOCK: no limit holds


def raise_limits(num_open_files: int) -> None:
    """Raise this process's own limits, to so many open files and any locked memory, as far as the hard ones let it."""
    for kind, needed in ((resource.RLIMIT_NOFILE, num_open_files), (resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY)):
        soft, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (raised_limit(soft, hard, needed), hard))


def raised_limit(soft: int, hard: int, needed: int) -> int:
    """The soft limit that comes nearest to ``needed``; never below ``soft``."""
    wanted = max(soft, needed, key=_height)
    return min(wanted, hard, key=_height)


def _height(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else float(limit)


def nccl_may_use_rdma(environment: Mapping[str, str]) -> bool:
    """Whether NCCL's variables leave its transport over RDMA on."""
    return environment.get("NCCL_IB_DISABLE", "0") == "0" and environment.get("NCCL_NET", "").lower() != "socket"


def read_node_facts(*, local_rank: int, is_virtual: bool) -> NodeFacts:
    """What this process sees of its node; of a GPU only where it trains on one. A few milliseconds without a GPU."""
    return NodeFacts(
        max_open_files=_limit(resource.RLIMIT_NOFILE),
        max_locked_bytes=None if _may_lock_all() else _limit(resource.RLIMIT_MEMLOCK),
        has_rdma=nccl_may_use_rdma(os.environ) and any(_RDMA_DEVICES.glob("uverbs*")),
        gpu=None if is_virtual else read_gpu_facts(local_rank),
    )


def read_gpu_facts(local_rank: int) -> GpuFacts:
    """Of the rank's GPU; no more than the versions where torch could not use it anyway."""
    wheel, driver = _wheel_cuda(), driver_cuda()
    if wheel is None or driver is None or driver[0] < wheel[0]:
        return GpuFacts(wheel_cuda=wheel, driver_cuda=driver, num_devices=0)
    count = torch.cuda.device_count()
    if count <= local_rank:
        return GpuFacts(wheel_cuda=wheel, driver_cuda=driver, num_devices=count)
    free, _ = torch.cuda.mem_get_info(local_rank)
    return GpuFacts(
        wheel_cuda=wheel,
        driver_cuda=driver,
        num_devices=count,
        name=torch.cuda.get_device_name(local_rank),
        capability=torch.cuda.get_device_capability(local_rank),
        architectures=tuple(torch.cuda.get_arch_list()),
        free_bytes=free,
    )


def _wheel_cuda() -> Version | None:
    text = torch.version.cuda
    if text is None:
        return None
    major, minor, *_ = (int(part) for part in text.split("."))
    return major, minor


def driver_cuda(library: str = _DRIVER) -> Version | None:
    """What the driver, or a compatibility library beside it, runs; asked without making a context.

    Of the driver itself: torch has no question for it that all its releases answer.
    """
    try:
        ask = ctypes.CDLL(library).cuDriverGetVersion
    except (OSError, AttributeError):  # no library, or one that is not the driver's
        return None
    number = ctypes.c_int(0)
    if ask(ctypes.byref(number)) != 0 or number.value == 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


def _limit(kind: int) -> int | None:
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _may_lock_all() -> bool:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) & _IPC_LOCK)
