"""The few calls of the Kubernetes API that the launcher makes, in one namespace, and their errors as ours.

Answers are taken as the JSON that came: making the client library's objects of it costs more than all else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from kubernetes.client import CoreV1Api, V1DeleteOptions, V1Preconditions
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.pod_outcome import PodJson, is_telling
from frenzy.adapters.k8s.launcher.pod_parts import Manifest, OfRun, runs_read
from frenzy.core.values.errors import FrenzyError, PermanentError, Reason, ReasonCode, TemporaryError

_RETRY_AFTER_S: Final = 10.0
# What is kept of a container's output: its end. A line may be of any length.
_LOG_LINES: Final = 2000
_LOG_BYTES: Final = 256 * 1024
_PIECE_BYTES: Final = 64 * 1024
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409
# A conflict that is none of names: pods are made so fast that the quota's bookkeeping does not follow.
_PASSING: Final = frozenset({0, 408, _CONFLICT, 429, 500, 502, 503, 504})
_OVER_QUOTA: Final = "exceeded quota"
# An authorizer's words; refusals of admission say 403, too, each in its own.
_NO_RIGHT: Final = re.compile(r'User "[^"]*" cannot ')


class Pods:
    """Pods of ``namespace``. core_api: makes the client when it is first needed.

    Every method raises TemporaryError (API_UNREACHABLE, QUOTA_EXCEEDED) or PermanentError (LAUNCH_FAILED).
    """

    def __init__(self, namespace: str, core_api: Callable[[], CoreV1Api]) -> None:
        self.namespace = namespace
        self._make_core_api = core_api

    def list(self, selector: str) -> tuple[PodJson, ...]:
        with _errors():
            answer = self._core.list_namespaced_pod(self.namespace, label_selector=selector, _preload_content=False)
            return tuple(_json(answer)["items"])

    def create(self, pod: Manifest) -> PodJson | None:
        """The pod as it was made; None when one of its name is there already."""
        with _errors():
            try:
                return _json(self._core.create_namespaced_pod(self.namespace, pod, _preload_content=False))
            except ApiException as error:
                if error.status == _CONFLICT and _told(error).get("reason") == "AlreadyExists":
                    return None
                raise

    def read(self, name: str) -> PodJson | None:
        """The pod called ``name``; None when there is none."""
        with _errors():
            try:
                return _json(self._core.read_namespaced_pod(name, self.namespace, _preload_content=False))
            except ApiException as error:
                if error.status == _NOT_FOUND:
                    return None
                raise

    def delete(self, pods: Iterable[PodJson], *, grace_s: float) -> None:
        """Delete ``pods``, and no others of the same name. Never at once: that a kubelet confirms it is the proof."""
        seconds = max(1, math.ceil(grace_s))
        for each in pods:
            name, uid = each["metadata"]["name"], each["metadata"]["uid"]
            options = V1DeleteOptions(grace_period_seconds=seconds, preconditions=V1Preconditions(uid=uid))
            with _errors():
                try:
                    # Read, so that its connection can be used again.
                    _json(self._core.delete_namespaced_pod(name, self.namespace, body=options, _preload_content=False))
                except ApiException as error:
                    if error.status not in (_NOT_FOUND, _CONFLICT):
                        raise

    def output(self, name: str) -> str:
        """The end of what the workers' container wrote: its last lines, and of those at most 256 KiB."""
        kept = b""
        with _errors():
            answer = self._core.read_namespaced_pod_log(
                name, self.namespace, container=labels.CONTAINER, tail_lines=_LOG_LINES, _preload_content=False
            )
            for piece in answer.stream(_PIECE_BYTES):  # a limit of the API's keeps the beginning instead
                kept = (kept + piece)[-_LOG_BYTES:]
            answer.release_conn()
        return kept.decode(errors="replace")

    def last_event(self, name: str) -> PodJson | None:
        """The newest event that tells why the pod called ``name`` was taken away."""
        with _errors():
            selector = f"involvedObject.name={name}"
            answer = self._core.list_namespaced_event(self.namespace, field_selector=selector, _preload_content=False)
        events = [each for each in _json(answer)["items"] if is_telling(each)]
        return max(events, key=lambda each: each.get("lastTimestamp") or each.get("eventTime") or "", default=None)

    def node_is_silent(self, name: str) -> bool:
        """Whether the node is gone or not ready, so that what its pods are said to be is old.

        Not known, and not taken to be so, where the service account may not read nodes.
        """
        with _errors():
            try:
                node = _json(self._core.read_node(name, _preload_content=False))
            except ApiException as error:
                if error.status in (_NOT_FOUND, _FORBIDDEN):
                    return bool(error.status == _NOT_FOUND)
                raise
        conditions = node.get("status", {}).get("conditions", ())
        return not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    @cached_property
    def _core(self) -> CoreV1Api:
        return self._make_core_api()


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        raise _ours(error) from error
    except HTTPError as error:
        detail = f"The Kubernetes API could not be asked: {error}"
        reason = Reason(code=ReasonCode.API_UNREACHABLE, detail=detail)
        raise TemporaryError(reason, retry_after_s=_RETRY_AFTER_S) from error


def _ours(error: ApiException) -> FrenzyError:
    said = _message(error)
    if error.status == _FORBIDDEN and _OVER_QUOTA in said:
        reason = Reason(code=ReasonCode.QUOTA_EXCEEDED, detail=said, remedy="Raise the quota, or wait for other pods.")
        return TemporaryError(reason, retry_after_s=_RETRY_AFTER_S)
    if error.status in _PASSING:
        detail = f"The Kubernetes API answered {error.status}: {said}"
        return TemporaryError(Reason(code=ReasonCode.API_UNREACHABLE, detail=detail), retry_after_s=_RETRY_AFTER_S)
    has_no_right = error.status == 401 or (error.status == _FORBIDDEN and _NO_RIGHT.search(said) is not None)
    remedy = "Give the service account the Role of deploy/." if has_no_right else None
    detail = f"The Kubernetes API refused it with {error.status}: {said}"
    return PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy))


def _message(error: ApiException) -> str:
    """The API server's own words."""
    return str(_told(error).get("message", error.reason))


def _told(error: ApiException) -> Mapping[str, Any]:
    """The Status object of an error; empty where something else answered."""
    try:
        told = json.loads(error.body)
    except (TypeError, ValueError):
        return {}
    return told if isinstance(told, Mapping) else {}


def _json(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.data)
    return found


def check_runs_read(spec: OfRun) -> None:
    """The kubelet would make a folder that is not there, as root: in the place of a run to come, if it is called so."""
    for each in runs_read(spec):
        if not Path(each).is_dir():
            detail = f"The model or tokenizer of job {spec.job.name!r} is to be in {each}, and there is no such folder."
            remedy = "Give checkpoint.warm_start, model.path or model.tokenizer a folder or the key of a finished run."
            raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))
