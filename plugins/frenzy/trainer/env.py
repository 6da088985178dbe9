"""The trainer's environment variables: the only module that reads or sets them."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from frenzy.core.values.job_environment import ALLOCATOR_VARIABLES

_READY: Final = "FRENZY_TRAINER_ENV"
_TERMINATION_LOG: Final = "FRENZY_TERMINATION_LOG"
_NODE_ADDRESS: Final = "FRENZY_NODE_ADDRESS"
_STOP_GRACE_S: Final = "FRENZY_STOP_GRACE_S"
_COLLECTIVE_TIMEOUT_S: Final = "FRENZY_COLLECTIVE_TIMEOUT_S"
_STARTUP_S: Final = "FRENZY_STARTUP_S"
_DISK_BYTES: Final = "FRENZY_DISK_BYTES"
_NO_COMPILER: Final = "TORCHDYNAMO_DISABLE"
# DeepSpeed's autotuner imports the one where it is installed, the losses of transformers for pictures the other.
_UNUSED: Final = ("mlflow", "scipy")

_COMMON: Final[Mapping[str, str]] = {
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "DS_SKIP_CUDA_CHECK": "1",
    # DeepSpeed asks torch for a GPU when it is imported. Asked through the CUDA runtime, the ranks forked
    # afterwards could not use it any more; asked through NVML they can (torch's notes on multiprocessing).
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
# A virtual GPU measures its memory as the process's data segment, so the C library must hand every
# tensor its own mapping and give it back at once; one arena keeps threads from reserving more.
_VIRTUAL: Final[Mapping[str, str]] = {
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "16384",
    "MALLOC_MMAP_MAX_": "1000000",
    "MALLOC_TRIM_THRESHOLD_": "262144",
    "MALLOC_TOP_PAD_": "131072",
    "MALLOC_ARENA_MAX": "1",
    # torch keeps its last 2,000 collective operations for post-mortems, some 3 MiB that fill over the first steps.
    "TORCH_FR_BUFFER_SIZE": "0",
    # A 16-bit product of a new shape leaves a compiled kernel of 0.6 MiB behind, of 1,024 shapes by default. Experts
    # get another number of tokens at each step. The shapes of a model without experts are fewer than these.
    "LRU_CACHE_CAPACITY": "32",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32",
    # Kernels for AMX and other 16-bit instructions keep megabytes more: memory would depend on the processor.
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
}


def enter(
    job_env: Mapping[str, str],
    *,
    virtual: bool,
    arguments: list[str],
    module: str = "frenzy.trainer.launch",
    num_ranks: int = 1,
) -> None:
    """Make the environment the trainer needs; starts this interpreter anew if it was not so.

    The C library reads its settings before Python starts, hence one ``exec`` of the same command:
    ``module`` with ``arguments``. num_ranks: of this node, which share its cores.
    """
    if os.environ.get(_READY) == "1":
        return
    given = {**os.environ, **job_env}
    environment = {**({} if virtual else card_defaults(given, num_ranks)), **given, **settled(virtual=virtual)}
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], environment)  # noqa: S606  # words, no shell


def card_defaults(given: Mapping[str, str], num_ranks: int) -> dict[str, str]:
    """What is best on real GPUs where nobody said otherwise, for ranks that share the cores this process may use."""
    chosen = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // num_ranks))}
    if not any(name in given for name in ALLOCATOR_VARIABLES):
        # Segments that grow leave no holes where tensors were.
        chosen |= dict.fromkeys(_allocator_variables(), "expandable_segments:True")
    return chosen


def _allocator_variables() -> tuple[str, ...]:
    """What the torch here reads: up to 2.9 the older name alone; before 2.1 it stops at the setting."""
    newer, older = ALLOCATOR_VARIABLES
    with suppress(PackageNotFoundError, ValueError):
        major, minor = (int(each) for each in version("torch").split(".")[:2])
        return (newer, older) if (2, 1) <= (major, minor) < (2, 10) else (newer,)
    return (newer,)


def settled(*, virtual: bool) -> dict[str, str]:
    """The variables of an environment in which ``enter`` has nothing left to do."""
    return {**_COMMON, **(_VIRTUAL if virtual else {}), _READY: "1"}


def set_rank(*, rank: int, local_rank: int, world_size: int, local_world_size: int, address: str, port: int) -> None:
    """The variables that torch, DeepSpeed and users' code expect in each rank."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(local_world_size),
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
    )
    if address == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


@contextmanager
def importing_libraries() -> Iterator[None]:
    """While the libraries are imported: without a search for garbage, of which there is none, nor what no rank uses.

    Saves host memory and time of each start. Who wants MLflow or SciPy may import them afterwards.
    transformers was told meanwhile that there is no SciPy, and remembers it: its losses of object detection refuse to
    run. No rank has one, and scripts are processes of their own.
    """
    # transformers may have found SciPy, and counts on it then.
    needed = {*sys.modules, "scipy"} if "transformers" in sys.modules else set(sys.modules)
    hidden = [name for name in _UNUSED if name not in needed]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # how Python is told that there is none
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        for name in hidden:
            del sys.modules[name]


@contextmanager
def without_compiler() -> Iterator[None]:
    """What is imported meanwhile does not load torch's compiler for functions that it wants compiled."""
    before = os.environ.get(_NO_COMPILER)
    os.environ[_NO_COMPILER] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_COMPILER]
        else:
            os.environ[_NO_COMPILER] = before


def use_cpu_accelerator() -> None:
    """Let DeepSpeed, once it is imported, leave the cards of this machine alone."""
    os.environ["DS_ACCELERATOR"] = "cpu"


def termination_log() -> Path | None:
    """Where the last words go, if anybody wants them."""
    place = os.environ.get(_TERMINATION_LOG)
    return Path(place) if place else None


def node_address(*, single_machine: bool) -> str:
    """The address under which other nodes reach this one."""
    if _NODE_ADDRESS in os.environ:
        return os.environ[_NODE_ADDRESS]
    return "127.0.0.1" if single_machine else socket.gethostbyname(socket.gethostname())


def stop_grace_s() -> float:
    """Seconds between a request to stop and SIGKILL."""
    return float(os.environ.get(_STOP_GRACE_S, "30"))


def collective_timeout_s() -> float:
    """Seconds after which a collective operation that got no answer fails."""
    return float(os.environ.get(_COLLECTIVE_TIMEOUT_S, "600"))


def startup_s() -> float:
    """Seconds for which another node that starts may show no progress."""
    return float(os.environ.get(_STARTUP_S, "900"))


def disk_bytes() -> int | None:
    """What this node's processes may write to their own disk, together; None where nobody counts."""
    given = os.environ.get(_DISK_BYTES)
    return int(given) if given else None
