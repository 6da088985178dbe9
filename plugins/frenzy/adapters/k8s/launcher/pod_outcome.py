"""Why an attempt's pods ended, or do not begin: pure functions over pods as the API's JSON.

The first pod that failed decides. Pods that only lost their peers say so as plain crashes, hence an
end that explains something goes before one that does not, whenever it was noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.reasons import (
    BY_CONTAINER_REASON,
    BY_DISRUPTION,
    BY_EVENT,
    BY_EXIT_CODE,
    BY_POD_REASON,
    BY_WAITING_REASON,
    GOOD,
    KILLED,
    NODE_IS_TO_BLAME,
    OUT_OF,
    PEERS_SAY,
    REMEDIES,
    STOPPED_BY_KUEUE,
    TAKEN_BACK,
    TELLS_LITTLE,
    UNSEEN,
)
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.run_files import how_ended
from frenzy.core.values.telemetry import printable

PodJson = Mapping[str, Any]


class PodStage(StrEnum):
    """How far a pod has come. LEAVING: it was deleted, and its kubelet has not yet confirmed it."""

    WAITING = "waiting"
    RUNNING = "running"
    LEAVING = "leaving"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnd:
    """How one pod ended, or what is ending it.

    at_s: seconds since the epoch. message: its last words.
    """

    pod: str
    node_rank: int
    code: ReasonCode
    detail: str
    at_s: float
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """One pod at one look.

    node: where it was put. ready: None where it never ran; False also when its node has fallen silent.
    leaves_by_s: when a pod that was deleted should be gone. hindrance: what keeps it from beginning. began_s: when its
    container did.
    """

    name: str
    node_rank: int
    stage: PodStage
    node: str | None
    ready: bool | None
    leaves_by_s: float | None
    end: PodEnd | None
    hindrance: Reason | None
    began_s: float | None


def see(pod: PodJson, *, asked: bool) -> PodSeen:
    """What ``pod`` shows. asked: we asked the workers to end, so that their end needs no other cause."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    stage = _stage(pod)
    return PodSeen(
        name=metadata["name"],
        node_rank=int((metadata.get("labels") or {}).get(labels.NODE_RANK, 0)),
        stage=stage,
        node=(pod.get("spec") or {}).get("nodeName"),
        ready=_ready(status),
        leaves_by_s=_time_s(metadata.get("deletionTimestamp")),
        end=_end(pod, asked=asked) if stage in (PodStage.ENDED, PodStage.LEAVING) else None,
        hindrance=_hindrance(pod) if stage is PodStage.WAITING else None,
        began_s=_began_s(pod),
    )


def is_telling(event: PodJson) -> bool:
    """Whether ``event`` says why its pod is taken away."""
    return event.get("reason") in BY_EVENT and not str(event.get("message") or "").startswith(TAKEN_BACK)


def vanished(*, pod: str, node_rank: int, event: PodJson | None, node_is_gone: bool, at_s: float) -> PodEnd:
    """The end of a pod that is not there any more and that we did not remove; event: what was said of it last."""
    code = BY_EVENT.get(str((event or {}).get("reason")))
    said = str((event or {}).get("message", ""))
    if node_is_gone:
        code, said = ReasonCode.NODE_LOST, said or "It is gone with its node."
    elif code is None:
        code, said = ReasonCode.POD_DELETED, said or "It was deleted, and nothing tells why."
    return PodEnd(pod=pod, node_rank=node_rank, code=code, detail=_sentence(pod, said), at_s=at_s)


def gave_up(pod: PodSeen, now_s: float) -> PodEnd:
    """The end of a pod that waited for too long, and is ended for that."""
    assert pod.hindrance is not None, "it waits for something"
    code, detail = pod.hindrance.code, pod.hindrance.detail
    return PodEnd(pod=pod.name, node_rank=pod.node_rank, code=code, detail=detail, at_s=now_s)


def lost(pod: PodSeen) -> PodEnd:
    """The end of a pod that was told to leave a node which does not answer."""
    detail = _sentence(pod.name, f"Its node {pod.node} does not answer.")
    return PodEnd(
        pod=pod.name, node_rank=pod.node_rank, code=ReasonCode.NODE_LOST, detail=detail, at_s=pod.leaves_by_s or 0.0
    )


def final_message(end: PodEnd) -> str:
    """One sentence: from the trainer's termination message if it is one, else what the cluster says."""
    try:
        said = json.loads(end.message)["detail"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return end.detail
    return f"{end.pod}: {printable(str(said))}" if said else end.detail


def decisive(ends: Iterable[PodEnd]) -> PodEnd | None:
    """The end that explains the attempt's; None when no pod failed.

    A pod that is found missing may be so for long, hence it goes before peers that only crashed, whenever they did.
    """
    failed = [each for each in ends if each.code not in GOOD]
    return min(failed, key=lambda each: (_says_little(each.code), each.at_s, each.node_rank), default=None)


def reason_of(end: PodEnd | None) -> Reason | None:
    """What is known beside the workers' own result; a plain crash explains itself there."""
    if end is None or end.code in PEERS_SAY:
        return None
    return Reason(code=end.code, detail=end.detail, remedy=REMEDIES.get(end.code))


def nodes_to_blame(ends: Iterable[PodEnd], placed_on: tuple[str, ...]) -> tuple[str, ...]:
    """Nodes of the placement, which lists them by node rank, that took pods away or never let them begin."""
    ranks = {each.node_rank for each in ends if each.code in NODE_IS_TO_BLAME}
    return tuple(node for rank, node in enumerate(placed_on) if rank in ranks)


def better(before: PodEnd | None, now: PodEnd) -> PodEnd:
    """Of two looks at the same end: the later one, unless it knows less. What the container said is kept."""
    if before is None:
        return now
    if before.code in TELLS_LITTLE and now.code not in TELLS_LITTLE:
        return now if now.exit_code is not None else replace(now, exit_code=before.exit_code, message=before.message)
    knows_more = before.exit_code is None and now.exit_code is not None
    is_as_good = now.code not in TELLS_LITTLE or now.code is before.code
    return now if knows_more and is_as_good else before


def _says_little(code: ReasonCode) -> int:
    return int(code in TELLS_LITTLE) + int(code in PEERS_SAY)


def _stage(pod: PodJson) -> PodStage:
    phase = (pod.get("status") or {}).get("phase")
    if phase in ("Succeeded", "Failed"):
        return PodStage.ENDED
    if pod["metadata"].get("deletionTimestamp"):
        return PodStage.LEAVING
    if _is_kept_by_another(pod):
        return PodStage.ENDED
    return PodStage.RUNNING if _container(pod).get("state", {}).get("running") else PodStage.WAITING


def _is_kept_by_another(pod: PodJson) -> bool:
    """Whether the workers' container has ended and one that a webhook put beside it, a proxy say, goes on."""
    if not _container(pod).get("state", {}).get("terminated"):
        return False
    return any("running" in each.get("state", {}) for each in pod["status"]["containerStatuses"])


def _end(pod: PodJson, *, asked: bool) -> PodEnd | None:
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    ended = _container(pod).get("state", {}).get("terminated") or {}
    exit_code = _exit_code(ended)
    times = [each for each in (_time_s(ended.get("finishedAt")), _deleted_s(pod)) if each is not None]
    if asked and exit_code is None:
        return None
    code, why = _cause(pod, ended, asked=asked)
    return PodEnd(
        pod=name,
        node_rank=int((pod["metadata"].get("labels") or {}).get(labels.NODE_RANK, 0)),
        code=code,
        detail=_sentence(name, why or status.get("message") or ""),
        at_s=min(times, default=None) or _ended_s(pod),
        exit_code=exit_code,
        message=ended.get("message") or "",
    )


def _cause(pod: PodJson, ended: Mapping[str, Any], *, asked: bool) -> tuple[ReasonCode, str]:
    """The code, and the words for it. What the trainer itself says of an end goes before what was done to its pod."""
    exit_code = _exit_code(ended)
    known = BY_EXIT_CODE.get(exit_code) if exit_code is not None else None
    if known is not None and known is not ReasonCode.CHECKPOINTED_ON_REQUEST:
        return known, ended.get("message") or ""
    done = None if asked else _done_to(pod)
    if done is not None:
        return done
    was_deleted = not asked and _ended_by_deletion(pod, ended)
    if known is not None and was_deleted:
        return ReasonCode.POD_DELETED, "The pod was deleted; its workers saved a checkpoint."
    if known is not None:
        return known, ""
    if was_deleted and _is_unseen(ended):
        return ReasonCode.POD_DELETED, "The pod was deleted before its container began, or nobody saw how that ended."
    container = BY_CONTAINER_REASON.get(str(ended.get("reason")))
    if container is not None:
        return container, _with_final_message(f"The container ended with {ended.get('reason')}", ended)
    if was_deleted and exit_code is not None:
        return ReasonCode.POD_DELETED, f"The pod was deleted; its container ended with {exit_code}."
    if exit_code == KILLED and not asked:
        how = f"The container {how_ended(KILLED)}, which nobody had asked for"
        return ReasonCode.HOST_OUT_OF_MEMORY, _with_final_message(how, ended)
    if exit_code is not None:
        code = ReasonCode.WORKER_KILLED if exit_code > 128 else ReasonCode.WORKER_CRASHED
        return code, _with_final_message(f"The container {how_ended(exit_code)}", ended)
    return _first_failure(pod)


def _with_final_message(how: str, ended: Mapping[str, Any]) -> str:
    """``how`` first: what the container wrote last was mostly written before anybody ended it."""
    return f"{how}: {ended['message']}" if ended.get("message") else f"{how}."


def _first_failure(pod: PodJson) -> tuple[ReasonCode, str]:
    """What kept the workers' container from beginning: one before it, a webhook's or our own, failed."""
    for each in (pod.get("status") or {}).get("initContainerStatuses") or ():
        ended = each.get("state", {}).get("terminated") or {}
        if ended.get("exitCode") and not _ended_by_deletion(pod, ended):
            words = ended.get("message") or ended.get("reason") or ""
            how = f"Its init container {each.get('name')} ended with {ended['exitCode']}: {words}".rstrip(": ")
            return ReasonCode.INIT_CONTAINER_FAILED, how
    return ReasonCode.POD_DELETED, "The pod is going away and says nothing of its containers."


def _ended_by_deletion(pod: PodJson, ended: Mapping[str, Any]) -> bool:
    """Whether the container ended after somebody deleted its pod, so that this is why."""
    deleted_s, ended_s = _deleted_s(pod), _time_s(ended.get("finishedAt"))
    if deleted_s is None or _is_unseen(ended):
        return deleted_s is not None
    return ended_s is not None and deleted_s <= ended_s


def _exit_code(ended: Mapping[str, Any]) -> int | None:
    """How the container ended; None where its kubelet did not see that, and puts 137 in its place."""
    return None if _is_unseen(ended) else ended.get("exitCode")


def _is_unseen(ended: Mapping[str, Any]) -> bool:
    return ended.get("reason") == UNSEEN


def _done_to(pod: PodJson) -> tuple[ReasonCode, str] | None:
    """What the cluster did to ``pod``, if it says so."""
    status = pod.get("status") or {}
    reason = str(status.get("reason") or "")
    code = BY_POD_REASON.get(reason)
    if code is None and reason and (reason.lower().startswith(OUT_OF.lower()) or not status.get("containerStatuses")):
        code = ReasonCode.POD_UNSCHEDULABLE  # refused by the kubelet: there are many words for it
    if code is not None:
        return code, status.get("message") or f"The pod ended with {reason}."
    disruption = _condition(status, "DisruptionTarget")
    if disruption.get("status") == "True":
        return BY_DISRUPTION.get(disruption.get("reason", ""), ReasonCode.POD_DELETED), disruption.get("message", "")
    stopped = _condition(status, STOPPED_BY_KUEUE)
    if stopped.get("status") == "True":
        return ReasonCode.POD_DELETED, f"Kueue stopped it ({stopped.get('reason')}): {stopped.get('message', '')}"
    return None


def _hindrance(pod: PodJson) -> Reason | None:
    """Since when is not said: a condition keeps its time when a gate or a node it waited for changes its reason."""
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    for each in (*(status.get("initContainerStatuses") or ()), _container(pod)):  # the former are put in by webhooks
        waiting = each.get("state", {}).get("waiting") or {}
        code = BY_WAITING_REASON.get(str(waiting.get("reason")))
        if code is not None:
            words = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
            return Reason(code=code, detail=_sentence(name, words))
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return Reason(code=ReasonCode.POD_UNSCHEDULABLE, detail=_sentence(name, scheduled.get("message", "")))
    return None


def _began_s(pod: PodJson) -> float | None:
    state = _container(pod).get("state", {})
    return _time_s((state.get("running") or state.get("terminated") or {}).get("startedAt"))


def _container(pod: PodJson) -> Mapping[str, Any]:
    """The status of the workers' container; empty where the pod tells nothing of it."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    found: Mapping[str, Any] = next((each for each in statuses if each.get("name") == labels.CONTAINER), {})
    return found


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((each for each in status.get("conditions") or () if each.get("type") == kind), {})
    return found


def _ready(status: Mapping[str, Any]) -> bool | None:
    condition = _condition(status, "Ready")
    return condition.get("status") == "True" if condition else None


def _ended_s(pod: PodJson) -> float:
    """When a pod ended whose containers tell nothing: when its status was last written, else its creation.

    A kubelet that evicts a pod clears its conditions too; who wrote what is kept by the server.
    """
    status, metadata = pod.get("status") or {}, pod["metadata"]
    writes = [each for each in metadata.get("managedFields") or () if "f:status" in (each.get("fieldsV1") or {})]
    changes = [each.get("lastTransitionTime") for each in status.get("conditions") or ()]
    times = [_time_s(text) for text in (*changes, *(each.get("time") for each in writes))]
    return max([each for each in times if each is not None] or [_time_s(metadata.get("creationTimestamp")) or 0.0])


def _deleted_s(pod: PodJson) -> float | None:
    """When somebody deleted ``pod``; what the API shows is when its time to stop is over."""
    until_s = _time_s(pod["metadata"].get("deletionTimestamp"))
    return None if until_s is None else until_s - (pod["metadata"].get("deletionGracePeriodSeconds") or 0)


def _time_s(text: str | None) -> float | None:
    return None if not text else datetime.fromisoformat(text).timestamp()


def _sentence(pod: str, words: str) -> str:
    return f"Pod {pod}: {' '.join(words.split())}" if words else f"Pod {pod}."
