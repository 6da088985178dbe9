"""The closed list of reasons, and the two error families.

    FrenzyError
    |-- PermanentError      trying again changes nothing
    |   |-- SpecError       the job specification is refused; carries every violation
    |   `-- ContractError   a stored value does not have the form this release reads
    `-- TemporaryError      worth another try after ``retry_after_s``

A reason code is the same in a log line, an XCom, a web page, a metric label and the runbook.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final


class ReasonCode(StrEnum):
    """Why a job waits, a plan is refused, a run moves, or an attempt fails: a word, and its general sentence."""

    sentence: str

    def __new__(cls, word: str, sentence: str = "") -> ReasonCode:
        code = str.__new__(cls, word)
        code._value_, code.sentence = word, sentence
        return code

    # a candidate plan
    BEST_PLAN = "BEST_PLAN", "Ranks first for the job's objective."
    BEST_PLAN_NOW = "BEST_PLAN_NOW", "Ranks first of the plans for which GPUs were left, other jobs' delay counted."
    SLOWER_PLAN = "SLOWER_PLAN", "Fits, but is predicted to train slower than a plan ranked before it."
    COSTLIER_PLAN = "COSTLIER_PLAN", "Fits, but is predicted to cost more than a plan ranked before it."
    INSUFFICIENT_GPU_MEMORY = "INSUFFICIENT_GPU_MEMORY", "Needs more memory on each GPU than this type has."
    INSUFFICIENT_HOST_MEMORY = "INSUFFICIENT_HOST_MEMORY", "Needs more host memory than a node has."
    NOT_ENOUGH_GPUS = "NOT_ENOUGH_GPUS", "Needs more GPUs of this type than the cluster has."
    GPU_TYPE_NOT_ALLOWED = "GPU_TYPE_NOT_ALLOWED", "The job's constraints leave this GPU type or count out."
    PREDICTED_NOT_LAUNCHABLE = "PREDICTED_NOT_LAUNCHABLE", "Can be predicted, but the trainer cannot run it yet."
    MODEL_NOT_SUPPORTED = "MODEL_NOT_SUPPORTED", "The model's family is outside the memory model's support."
    TRACE_UNSUPPORTED = "TRACE_UNSUPPORTED", "The model does something that cannot be traced without data."
    OVER_MAX_COST = "OVER_MAX_COST", "Is predicted to cost more than constraints.max_cost."
    NO_PRICE = "NO_PRICE", "Its cost is not known, because its GPU type has no price_per_hour."
    OVER_DEADLINE = "OVER_DEADLINE", "Is predicted to end after constraints.deadline."
    EXCLUDED_AFTER_FAILURE = "EXCLUDED_AFTER_FAILURE", "An earlier attempt of this run ran out of memory with it."
    # waiting
    WAITING_FOR_GPUS = "WAITING_FOR_GPUS", "All GPUs that could run one of the job's plans are taken."
    WAITING_FOR_GPU_MEMORY = "WAITING_FOR_GPU_MEMORY", "Free GPUs exist, but none with the memory a plan needs."
    WAITING_BEHIND_HEAD = "WAITING_BEHIND_HEAD", "Starting now would delay the job at the head of the queue."
    WAITING_FOR_BETTER_PLAN = (
        "WAITING_FOR_BETTER_PLAN",
        "A better plan can start soon enough to end earlier than one started now.",
    )
    WAITING_FOR_HOST_RESOURCES = "WAITING_FOR_HOST_RESOURCES", "GPUs are free, but their nodes lack CPU or host memory."
    WAITING_FOR_NODES = "WAITING_FOR_NODES", "Nodes that could run the job are drained or lost."
    WAITING_FOR_OLD_WORKERS = "WAITING_FOR_OLD_WORKERS", "Workers of the run's last attempt are not yet seen gone."
    WAITING_FOR_MOVE = "WAITING_FOR_MOVE", "GPUs are being given up for it by a job that first saves a checkpoint."
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED", "The namespace's quota leaves no room for the workers' pods."
    WAITING_FOR_QUOTA = "WAITING_FOR_QUOTA", "Its queue or team holds as many GPUs as its quota allows."
    WAITING_FOR_SHARE = (
        "WAITING_FOR_SHARE",
        "Its queue holds its share of the cluster, and other queues' jobs come first.",
    )
    NEVER_FITS = "NEVER_FITS", "No plan fits the cluster, even when it is empty."
    # moving
    MEMORY_PRESSURE_FORECAST = "MEMORY_PRESSURE_FORECAST", "Memory use was rising towards the GPU's capacity."
    MEMORY_PRESSURE_USAGE = "MEMORY_PRESSURE_USAGE", "Memory use passed the safe share of the GPU's capacity."
    ALLOCATOR_RETRIES = "ALLOCATOR_RETRIES", "The allocator had to flush its cache to satisfy requests."
    CUDA_OUT_OF_MEMORY = "CUDA_OUT_OF_MEMORY", "The GPU ran out of memory."
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED", "The virtual GPU's memory budget was exceeded."
    MOVED_FOR_MEMORY = "MOVED_FOR_MEMORY", "The job's memory exceeded its plan; this one has headroom for the growth."
    MOVED_TO_GROW = "MOVED_TO_GROW", "The scheduler gave the job more GPUs."
    MOVED_TO_SHRINK = "MOVED_TO_SHRINK", "The scheduler took some of the job's GPUs for another job."
    MOVED_TO_OTHER_GPUS = "MOVED_TO_OTHER_GPUS", "The scheduler moved the job to other GPUs."
    PREEMPTED = "PREEMPTED", "The scheduler took the GPUs for another job."
    # an attempt or a run ends
    COMPLETED = "COMPLETED", "The training reached its last step."
    STOPPED_EARLY = "STOPPED_EARLY", "The training ended because its validation loss fell no more."
    CHECKPOINTED_ON_REQUEST = "CHECKPOINTED_ON_REQUEST", "The training saved a checkpoint and stopped when asked."
    REHEARSED = "REHEARSED", "A few steps have shown what the script takes; its plans are made anew."
    HOST_OUT_OF_MEMORY = "HOST_OUT_OF_MEMORY", "A worker ran out of host memory, or was killed for it."
    GPU_FAULT = "GPU_FAULT", "A GPU or its link reported a fault of the hardware."
    GPU_UNAVAILABLE = "GPU_UNAVAILABLE", "A GPU of the node could not be used."
    GPU_NOT_SUPPORTED = "GPU_NOT_SUPPORTED", "The trainer's torch has no code for this GPU."
    DRIVER_TOO_OLD = "DRIVER_TOO_OLD", "The node's driver is too old for the trainer's CUDA."
    NODE_LIMITS_TOO_LOW = "NODE_LIMITS_TOO_LOW", "A limit of the node or its pods is too low for the workers."
    SHARED_MEMORY_FULL = "SHARED_MEMORY_FULL", "The node's shared memory, /dev/shm, is too small."
    DISK_FULL = "DISK_FULL", "A disk that the workers write to is full."
    COLLECTIVE_TIMEOUT = "COLLECTIVE_TIMEOUT", "An exchange between ranks took too long."
    COLLECTIVE_FAILED = "COLLECTIVE_FAILED", "An exchange between ranks failed."
    ILLEGAL_ACCESS = "ILLEGAL_ACCESS", "A kernel touched GPU memory that is not its own."
    DEVICE_ASSERT = "DEVICE_ASSERT", "A kernel refused its input: an index or a value is out of range."
    KERNEL_TOO_LARGE = "KERNEL_TOO_LARGE", "A kernel needs more registers or shared memory than this GPU has for it."
    WORKER_KILLED = "WORKER_KILLED", "A worker was killed by a signal."
    WORKER_CRASHED = "WORKER_CRASHED", "A worker ended with an unexpected error."
    WORKER_HUNG = "WORKER_HUNG", "A worker showed no progress for too long."
    WORKERS_LOST = "WORKERS_LOST", "The workers vanished without leaving a result."
    POD_EVICTED = "POD_EVICTED", "The cluster evicted a pod of the workers."
    POD_PREEMPTED = "POD_PREEMPTED", "A pod of higher priority took the place of one of the workers."
    POD_DELETED = "POD_DELETED", "A pod of the workers was deleted by somebody else."
    POD_UNSCHEDULABLE = "POD_UNSCHEDULABLE", "The cluster did not put a pod of the workers on its node."
    NODE_LOST = "NODE_LOST", "A node that ran workers was lost."
    IMAGE_PULL_FAILED = "IMAGE_PULL_FAILED", "A node could not pull the workers' image."
    CONTAINER_CONFIG_ERROR = "CONTAINER_CONFIG_ERROR", "A container of the workers could not be made."
    INIT_CONTAINER_FAILED = "INIT_CONTAINER_FAILED", "A container that runs before the workers failed."
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED", "A pod of the workers ran longer than its deadline allows."
    LAUNCH_FAILED = "LAUNCH_FAILED", "The workers could not be started."
    BAD_CONFIG_OR_DATA = "BAD_CONFIG_OR_DATA", "The trainer refused its configuration or data."
    DATA_NOT_PREPARED = "DATA_NOT_PREPARED", "The data could not be prepared for the training, or are gone since."
    CANCELLED_BY_USER = "CANCELLED_BY_USER", "A person cancelled the job."
    RESCHEDULE_BUDGET_SPENT = "RESCHEDULE_BUDGET_SPENT", "The job has been moved as often as its spec allows."
    NO_OTHER_PLAN = "NO_OTHER_PLAN", "No plan is left that was not tried."
    LEASE_EXPIRED = "LEASE_EXPIRED", "No heartbeat came before the lease's end."
    SPEC_REFUSED = "SPEC_REFUSED", "The job specification is not valid."
    NOT_ALLOWED = "NOT_ALLOWED", "The caller may not do this to this job or run."
    # talking to the API
    API_UNREACHABLE = "API_UNREACHABLE", "The API server could not be reached."
    API_REFUSED = "API_REFUSED", "The API server refused the request."
    # the service itself
    LEDGER_BUSY = "LEDGER_BUSY", "The ledger's database could not be used in time."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason with its particulars.

    ``detail`` is one sentence with this case's names and numbers; ``remedy`` is the smallest
    change that would help, where one exists.
    """

    code: ReasonCode
    detail: str = ""
    remedy: str | None = None

    @property
    def sentence(self) -> str:
        """The particulars if there are any, else the code's general sentence."""
        return self.detail or self.code.sentence


class FrenzyError(Exception):
    """Base of every error this project raises on purpose; carries its reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"{reason.code}: {reason.sentence}" + (f" {reason.remedy}" if reason.remedy else ""))
        self.reason = reason


class PermanentError(FrenzyError):
    """Trying again with the same input changes nothing."""


class TemporaryError(FrenzyError):
    """Worth another try after ``retry_after_s`` seconds."""

    def __init__(self, reason: Reason, *, retry_after_s: float = 2.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One refused field: where it is, what it was, what is allowed."""

    path: str
    value: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.path}: {self.value} is refused; {self.allowed}"


MOST_VIOLATIONS: Final = 100


class SpecError(PermanentError):
    """The specification is refused; every violation is listed, or the first hundred."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(islice(violations, MOST_VIOLATIONS))
        super().__init__(Reason(code=ReasonCode.SPEC_REFUSED, detail="; ".join(str(each) for each in self.violations)))


class ContractError(PermanentError):
    """A stored value does not have the form this release reads."""

    def __init__(self, detail: str, remedy: str | None = None) -> None:
        super().__init__(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))
