"""The place itself: does the preflight let a rank in, and do the card's rates come near the datasheet's?"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from frenzy.core.lifecycle.preflight import Needs, refusal
from frenzy.trainer.launch.child import call_in_child
from frenzy.trainer.measure.run import library_versions
from frenzy.trainer.outcome import RankReport
from tools.gpu_proof.attempts import Bench
from tools.gpu_proof.figure_lines import Found
from tools.gpu_proof.parts.attempt_figures import in_gib, rounded
from tools.gpu_proof.proof import Case, Part

_TIMES: Final = 10


def _cases(bench: Bench) -> Iterator[Case]:
    yield Case(name="preflight", run=_preflight)
    yield Case(name="rates", run=_rates)


def _preflight(bench: Bench, folder: Path) -> Iterator[Found]:
    refused = _in_child(partial(_refusal, bench.machine.is_virtual), folder)
    releases = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    driver = "" if bench.machine.driver is None else f", driver {bench.machine.driver}"
    yield Found(name="let in", value=float(refused is None), unit="yes = 1", detail=refused or f"{releases}{driver}")
    yield in_gib("memory of the card", bench.machine.gpu.memory_bytes)
    yield in_gib("memory of the host", bench.machine.host_bytes)
    yield Found(name="cores", value=float(bench.machine.num_cpus))
    yield in_gib("free disk", shutil.disk_usage(bench.folder).free)


def _refusal(is_virtual: bool) -> str | None:
    from frenzy.trainer.telemetry.rank_facts import read_node_facts

    needs = Needs(local_rank=0, num_local_ranks=1, num_ranks=1, num_nodes=1, counted_bytes=0)
    found = refusal(read_node_facts(local_rank=0, is_virtual=is_virtual), needs)
    return None if found is None else found.sentence


def _rates(bench: Bench, folder: Path) -> Iterator[Found]:
    """Of one large matrix product in bf16, and of a copy within the card."""
    gpu, virtual = bench.machine.gpu, bench.machine.is_virtual
    width, copied = (512, 2**22) if virtual else (8192, 2**32)
    product_s, copy_s = _in_child(partial(_product_and_copy_s, "cpu" if virtual else "cuda", width, copied), folder)
    # A virtual GPU has no rates of its own: the datasheet's are a real card's.
    rate = None if virtual else (gpu.bf16_flops_per_s or gpu.flops_per_s) / 1e12
    copying = None if virtual else gpu.memory_bandwidth_bytes_per_s / 1e9
    yield Found(name="bf16 product", value=rounded(2 * width**3 / product_s / 1e12), unit="TFLOP/s", prediction=rate)
    yield Found(name="copy", value=rounded(2 * copied / copy_s / 1e9), unit="GB/s", prediction=copying)


def _product_and_copy_s(device: str, width: int, num_bytes: int) -> tuple[float, float]:
    import torch

    a, b = (torch.randn(width, width, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.ones(num_bytes, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return _median_s(device, lambda: torch.mm(a, b)), _median_s(device, lambda: target.copy_(source))


def _median_s(device: str, work: Any) -> float:
    import torch

    times = []
    for _ in range(_TIMES + 3):
        started_s = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started_s)
    return sorted(times[3:])[_TIMES // 2]


def _in_child(work: Any, folder: Path) -> Any:
    """What ``work`` returns in a process of its own: CUDA started here would be lost to the ranks forked later."""
    folder.mkdir(parents=True, exist_ok=True)
    found = call_in_child(work, folder / "found.pickle", log_file=folder / "found.log")
    if isinstance(found, RankReport):
        raise RuntimeError(found.detail)
    return found


PART: Final = Part(name="place", title="the place: preflight, rates of the card", share=0.03, case_s=60.0, cases=_cases)
