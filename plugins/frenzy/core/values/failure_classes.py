"""What the words of a failed rank mean: one table from texts, exception types and signals to a reason.

The texts are those of torch, CUDA, cuBLAS, cuDNN, NCCL, gloo, Triton, the C library and NVIDIA's driver, as their
sources and users' reports show them. Pure; used where an exception becomes an exit code, and where only the end of a
rank's log is left.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from frenzy.core.values.errors import ReasonCode

_DEEPEST: Final = 8
_LONGEST_LINE: Final = 500
# With the frames of a C++ stack behind it.
_TERMINATE: Final = "terminate called"
_MOST_LINES_OF_END: Final = 200
_LAST_LINES: Final = 20


class NextStep(StrEnum):
    """What helps after a failure. OTHER_NODE: the node is not used again by the run. USER: nothing but a change of the
    job, so that it fails at once. AGAIN: the same plan may be tried again, within the job's budget.
    """

    OTHER_PLAN = "other plan"
    OTHER_NODE = "other node"
    USER = "user"
    AGAIN = "again"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureClass:
    """One kind of failure and how it shows itself.

    texts: regular expressions, any of which is found in the words. texts_when_full: those that mean it only where the
    device is full, or nobody knows whether it is. types: names of exceptions. numbers: of an OSError. signals: numbers
    that alone say it.
    is_echo: what ranks also say whose peers were lost, so that another rank's failure explains more.
    """

    code: ReasonCode
    next_step: NextStep
    texts: tuple[str, ...]
    texts_when_full: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    is_echo: bool = False


# The first that fits counts: causes stand before what follows from them.
FAILURES: Final = (
    FailureClass(
        code=ReasonCode.KERNEL_TOO_LARGE,
        next_step=NextStep.USER,
        types=("OutOfResources",),
        texts=(r"out of resource: (shared memory|registers|threads|tensor memory)", "too many resources requested"),
    ),
    FailureClass(
        code=ReasonCode.GPU_FAULT,
        next_step=NextStep.OTHER_NODE,
        texts=(
            "uncorrectable ECC error",
            r"ECC_?UNCORRECTABLE",
            r"uncorrectable NVLink error",
            r"fallen off the bus",
            r"GPU is lost",
            # Faults of the card or its links; 13, 31, 43 and 45 are those of a program.
            r"\bXid\b[^\n]*?: (46|48|61|62|64|74|79|92|94|95|119|120|122|123|136|140|143|145|149)\b",
        ),
    ),
    FailureClass(
        code=ReasonCode.DRIVER_TOO_OLD,
        next_step=NextStep.OTHER_NODE,
        texts=(
            r"driver version is insufficient for CUDA runtime version",
            r"NVIDIA driver on your system is too old",
            r"cudaErrorInsufficientDriver",
            r"PTX was compiled with an unsupported toolchain",
            r"forward compatibility was attempted on non supported HW",
            r"unsupported display driver / cuda driver combination",
            r"Driver/library version mismatch",
        ),
    ),
    FailureClass(
        code=ReasonCode.GPU_NOT_SUPPORTED,
        next_step=NextStep.OTHER_NODE,
        texts=(
            r"no kernel image is available",
            r"device kernel image is invalid",
            r"only supports CUDA GPUs? with (minimum )?compute capability",
            r"FlashAttention only supports \w+ GPUs or newer",
        ),
    ),
    FailureClass(
        code=ReasonCode.GPU_UNAVAILABLE,
        next_step=NextStep.OTHER_NODE,
        texts=(
            r"CUDA-capable device\(s\) is/are busy or unavailable",
            r"no CUDA-capable device is detected",
            r"Found no NVIDIA driver on your system",
            r"No CUDA GPUs are available",
            r"system not yet initialized",
            r"invalid device ordinal",
            r"CUDA unknown error",
            r"CUDA error: unknown error",
            r"Cuda failure 999",
        ),
    ),
    FailureClass(
        code=ReasonCode.DEVICE_ASSERT,
        next_step=NextStep.USER,
        texts=(r"device-side assert triggered", r"\.cuh?:\d+: .*Assertion `.*` failed"),
    ),
    FailureClass(
        code=ReasonCode.CUDA_OUT_OF_MEMORY,
        next_step=NextStep.OTHER_PLAN,
        types=("OutOfMemoryError",),
        texts=(
            r"(CUDA|HIP) out of memory",
            r"(CUDA|HIP) (driver )?error: out of memory",
            r"cuda runtime error \(2\) : out of memory",
            r"Triton Error \[\w+\]: out of memory",
            r"Cuda failure (2 )?'out of memory'",
            r"Failed to CUDA (host )?[cm]alloc",
            r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY",
            r"CU(BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED",
            r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
            r"Error out of memory at line \d+ in file",  # bitsandbytes
        ),
        texts_when_full=(r"CU(BLAS|DNN|SPARSE|SOLVER)_STATUS_NOT_INITIALIZED",),
    ),
    FailureClass(
        code=ReasonCode.ILLEGAL_ACCESS,
        next_step=NextStep.AGAIN,
        texts=(
            r"illegal memory access",
            r"misaligned address",
            r"unspecified launch failure",
            r"an illegal instruction was encountered",
            r"cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS",
            r"\bXid\b[^\n]*?: (13|31|43|45)\b",
        ),
    ),
    FailureClass(
        code=ReasonCode.SHARED_MEMORY_FULL,
        next_step=NextStep.AGAIN,
        signals=(signal.SIGBUS,),
        texts=(
            r"insufficient shared memory \(shm\)",
            r"failed to extend /dev/shm/",
            r"creating shared memory segment /dev/shm/",
            r"killed by signal: Bus error",
            r"/(dev/shm|torch_\d+)[^\n]*No space left on device|No space left on device[^\n]*/dev/shm",
            r"unable to (write to file|open shared memory object|resize file|mmap \d+ bytes from file) </torch_",
        ),
    ),
    FailureClass(
        code=ReasonCode.HOST_OUT_OF_MEMORY,
        next_step=NextStep.AGAIN,
        types=("MemoryError",),
        numbers=(errno.ENOMEM,),
        texts=(
            r"DefaultCPUAllocator: (can't allocate|not enough) memory",
            r"std::bad_alloc",
            r"[Cc]annot allocate memory",
            r"mmap: Cannot allocate",
            r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) is killed by signal: Killed",
        ),
    ),
    FailureClass(
        code=ReasonCode.DISK_FULL,
        next_step=NextStep.AGAIN,
        numbers=(errno.ENOSPC, errno.EDQUOT),
        texts=(r"No space left on device", r"Disk quota exceeded"),
    ),
    FailureClass(
        code=ReasonCode.COLLECTIVE_TIMEOUT,
        next_step=NextStep.AGAIN,
        is_echo=True,
        texts=(
            r"Watchdog caught collective operation timeout",
            r"ran for \d+ milliseconds before timing out",
            r"Timed out waiting \d+ms for (recv|send) operation",
            r"client socket has timed out after",
            r"Timed out after \d+ seconds waiting for clients",
            r"wait timeout after \d+ms",
            r"monitoredBarrier",
        ),
    ),
    FailureClass(
        code=ReasonCode.COLLECTIVE_FAILED,
        next_step=NextStep.AGAIN,
        is_echo=True,
        types=("DistBackendError", "DistNetworkError"),
        texts=(
            r"nccl(Remote|System|Internal|UnhandledCuda)Error",
            r"NCCL (error|Error \d)",
            r"Connection closed by (remote )?peer",
            r"gloo[^\n]*Connection (reset|refused)",
            r"remote process exited or there was a network error",
        ),
    ),
)


# A node is left and a run ended for no words but those of a driver or a library.
_OF_ANY_ERROR: Final = tuple(each for each in FAILURES if each.next_step not in (NextStep.OTHER_NODE, NextStep.USER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A failure that has a name. line: the words that say it, at most 500 characters; empty where a type or a number
    does.
    """

    failure: FailureClass
    line: str = ""


def name_text(text: str, *, device_is_full: bool | None = None) -> Named | None:
    """The failure of which ``text`` speaks. device_is_full: None where nobody knows."""
    return _first_named(text, FAILURES, device_is_full)


def _first_named(text: str, failures: Iterable[FailureClass], device_is_full: bool | None) -> Named | None:
    for each in failures:
        patterns = each.texts if device_is_full is False else (*each.texts, *each.texts_when_full)
        found = next(filter(None, (re.search(pattern, text) for pattern in patterns)), None)
        if found is not None:
            return Named(failure=each, line=_line_at(text, found.start()))
    return None


def name_last_words(log: str) -> Named | None:
    """The failure of which a process spoke last before it died, in C++'s account of its end, or else its last lines.

    Earlier lines tell of what was handled.
    """
    lines = log.splitlines()[-_MOST_LINES_OF_END:]
    ends = [index for index, line in enumerate(lines) if _TERMINATE in line]
    spoken = [name_text(line) for line in lines[ends[-1] if ends else -_LAST_LINES :]]
    named = [each for each in spoken if each is not None]
    return next((each for each in reversed(named) if not each.failure.is_echo), named[-1] if named else None)


def name_error(error: BaseException, *, device_is_full: bool | None = None) -> Named | None:
    """The failure that ``error`` is, or was raised from; one that explains goes before an echo of another rank's.

    What was being handled when it was raised tells only of an echo: else the older failure was dealt with.
    """
    echo: Named | None = None
    current: BaseException | None = error
    for _ in range(_DEEPEST):
        if current is None:
            break
        named = _name_one(current, device_is_full)
        if named is not None and not named.failure.is_echo:
            return named
        echo = echo or named
        handled = None if named is None or current.__suppress_context__ else current.__context__
        current = current.__cause__ or handled
    return echo


def name_signal(number: int) -> FailureClass | None:
    """What a death by this signal says by itself."""
    return next((each for each in FAILURES if number in each.signals), None)


def codes_of(*steps: NextStep) -> frozenset[ReasonCode]:
    """Failures after which one of ``steps`` helps."""
    return frozenset(each.code for each in FAILURES if each.next_step in steps)


ECHOES: Final = frozenset(each.code for each in FAILURES if each.is_echo)


def _name_one(error: BaseException, device_is_full: bool | None) -> Named | None:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    said = _first_named(str(error), FAILURES if _is_of_device(error) else _OF_ANY_ERROR, device_is_full)
    typed = next(_fitting(kinds, error.errno if isinstance(error, OSError) else None), None)
    if said is None or (typed is not None and said.failure.is_echo and not typed.is_echo):
        return None if typed is None else Named(failure=typed)
    return said


def _fitting(kinds: Iterable[str], number: int | None) -> Iterator[FailureClass]:
    names = set(kinds)
    return (each for each in FAILURES if names & set(each.types) or number in each.numbers)


def _is_of_device(error: BaseException) -> bool:
    """Whether the words of ``error`` can be a driver's or a library's: those of a KeyError are a key of the user's."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, RuntimeError | OSError) or bool(packages & {"torch", "triton"})


def _line_at(text: str, place: int) -> str:
    start = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    line = text[start : len(text) if end < 0 else end]
    return line[max(0, place - start - _LONGEST_LINE // 2) :][:_LONGEST_LINE].strip()
