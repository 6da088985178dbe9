"""What Kubernetes, its kubelet and Kueue call the ends and hindrances of pods, and our reason codes for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.failure_classes import ECHOES
from frenzy.core.values.run_files import REASON_BY_EXIT, ExitCode

KILLED: Final = 137
BY_EXIT_CODE: Final[Mapping[int, ReasonCode]] = {
    int(ExitCode.DONE): ReasonCode.COMPLETED,
    int(ExitCode.CHECKPOINTED): ReasonCode.CHECKPOINTED_ON_REQUEST,
    # An exchange that failed says as little of its pod as a crash: its peers may have been taken away.
    **{number: code for number, code in REASON_BY_EXIT.items() if code not in ECHOES},
}
GOOD: Final = frozenset({ReasonCode.COMPLETED, ReasonCode.CHECKPOINTED_ON_REQUEST})
# What a pod also says whose peers were lost.
PEERS_SAY: Final = frozenset({ReasonCode.WORKER_CRASHED, ReasonCode.WORKER_KILLED})
TELLS_LITTLE: Final = frozenset({*PEERS_SAY, ReasonCode.POD_DELETED})
# A node that did this to a pod may do it to the next.
NODE_IS_TO_BLAME: Final = frozenset(
    {
        ReasonCode.POD_EVICTED,
        ReasonCode.POD_PREEMPTED,
        ReasonCode.POD_UNSCHEDULABLE,
        ReasonCode.NODE_LOST,
        ReasonCode.IMAGE_PULL_FAILED,
        ReasonCode.INIT_CONTAINER_FAILED,
    }
)
REMEDIES: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.INIT_CONTAINER_FAILED: (
        "Correct what puts that container into the pods: a webhook of the cluster or, for frenzy-launcher, the "
        "image of the pod rules. Then: frenzy resume RUN"
    )
}
# status.reason of a pod, as the kubelet, the node controller and the pod collector word it.
BY_POD_REASON: Final[Mapping[str, ReasonCode]] = {
    "Evicted": ReasonCode.POD_EVICTED,
    "DeadlineExceeded": ReasonCode.DEADLINE_EXCEEDED,
    "NodeLost": ReasonCode.NODE_LOST,
    "NodeShutdown": ReasonCode.NODE_LOST,
    "Shutdown": ReasonCode.NODE_LOST,
    "Terminated": ReasonCode.NODE_LOST,
    "Preempting": ReasonCode.POD_PREEMPTED,
    "NodeAffinity": ReasonCode.POD_UNSCHEDULABLE,
    "UnexpectedAdmissionError": ReasonCode.POD_UNSCHEDULABLE,
}
OUT_OF: Final = "Outof"  # OutOfcpu, OutOfmemory, OutOfnvidia.com/gpu
# Reason of the condition DisruptionTarget (Kubernetes 1.26 and newer).
BY_DISRUPTION: Final[Mapping[str, ReasonCode]] = {
    "PreemptionByScheduler": ReasonCode.POD_PREEMPTED,
    "PreemptionByKubeScheduler": ReasonCode.POD_PREEMPTED,
    "DeletionByTaintManager": ReasonCode.NODE_LOST,
    "DeletionByPodGC": ReasonCode.NODE_LOST,
    "DeletionByDeviceTaintManager": ReasonCode.POD_EVICTED,  # its GPU is ill (dynamic resource allocation)
    "EvictionByEvictionAPI": ReasonCode.POD_EVICTED,
    "TerminationByKubelet": ReasonCode.POD_EVICTED,
}
# Kueue's, on pods that it deletes: the workload was preempted, deactivated, or not ready in time. No node is to blame.
STOPPED_BY_KUEUE: Final = "TerminationTarget"
# Of a container whose end its kubelet did not see: the node was restarted; or, since Kubernetes 1.27, the pod was
# deleted before its container began.
UNSEEN: Final = "ContainerStatusUnknown"
BY_CONTAINER_REASON: Final[Mapping[str, ReasonCode]] = {
    "OOMKilled": ReasonCode.HOST_OUT_OF_MEMORY,
    UNSEEN: ReasonCode.NODE_LOST,
    "ContainerCannotRun": ReasonCode.CONTAINER_CONFIG_ERROR,
    "StartError": ReasonCode.CONTAINER_CONFIG_ERROR,
    "DeadlineExceeded": ReasonCode.DEADLINE_EXCEEDED,
}
BY_WAITING_REASON: Final[Mapping[str, ReasonCode]] = {
    **dict.fromkeys(
        (
            "ErrImagePull",
            "ImagePullBackOff",
            "ErrImageNeverPull",
            "InvalidImageName",
            "ImageInspectError",
            "RegistryUnavailable",
            "SignatureValidationFailed",
        ),
        ReasonCode.IMAGE_PULL_FAILED,
    ),
    **dict.fromkeys(
        ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"),
        ReasonCode.CONTAINER_CONFIG_ERROR,
    ),
}
BY_EVENT: Final[Mapping[str, ReasonCode]] = {
    "Preempted": ReasonCode.POD_PREEMPTED,
    "TaintManagerEviction": ReasonCode.NODE_LOST,
    "DeviceTaintManagerEviction": ReasonCode.POD_EVICTED,
    "NodeNotReady": ReasonCode.NODE_LOST,
    "Evicted": ReasonCode.POD_EVICTED,
}
# The taint manager says under the same reason that a pod may stay after all.
TAKEN_BACK: Final = "Cancelling deletion"
