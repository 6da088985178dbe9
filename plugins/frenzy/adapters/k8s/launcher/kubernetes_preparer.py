"""Prepares data in a pod: found again by its labels, whoever made it. Others may help it; nothing waits for these."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from kubernetes.client import CoreV1Api

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.pod_outcome import PodJson, PodStage, final_message, reason_of, see
from frenzy.adapters.k8s.launcher.pods import Pods, check_runs_read
from frenzy.adapters.k8s.launcher.preparing_pod import preparing_pod
from frenzy.adapters.k8s.pod_rules import PodRules
from frenzy.core.values.errors import FrenzyError, Reason, ReasonCode, TemporaryError
from frenzy.core.values.prepared_data import PreparingSpec
from frenzy.ports import PreparerAccount, WorkersState

log = logging.getLogger(__name__)

_AGAIN_S: Final = 5.0
_AT_WORK: Final = frozenset({PodStage.WAITING, PodStage.RUNNING})


class KubernetesPreparer:
    """core_api: makes the client when it is first needed. now_s: seconds since the epoch."""

    def __init__(
        self, rules: PodRules, *, core_api: Callable[[], CoreV1Api], now_s: Callable[[], float] = time.time
    ) -> None:
        self._rules, self._now_s = rules, now_s
        self._pods = Pods(rules.namespace, core_api)

    def found(self, run_key: str) -> int | None:
        """That of a first pod which is neither over nor on its way out."""
        first = (each for each in self._of(run_key) if _is_first(each))
        return max((_number(each) for each in first if see(each, asked=True).stage in _AT_WORK), default=None)

    def start(self, spec: PreparingSpec, tell: Callable[[str], None]) -> None:
        """Make the pods. Raises TemporaryError (QUOTA_EXCEEDED, API_UNREACHABLE) or PermanentError."""
        pod = preparing_pod(spec, self._rules)
        check_runs_read(spec)
        if self._pods.create(pod) is None and self.found(spec.run_key) != spec.number:
            detail = f"A pod that prepared the data of {spec.run_key} has yet to leave."
            raise TemporaryError(Reason(code=ReasonCode.WAITING_FOR_OLD_WORKERS, detail=detail), retry_after_s=_AGAIN_S)
        self._add_helpers(spec, tell)

    def account(self, spec: PreparingSpec) -> PreparerAccount:
        try:
            pods = [each for each in self._of(spec.run_key) if _is_first(each) and _number(each) == spec.number]
            return self._look(pods[0]) if pods else PreparerAccount(state=WorkersState.GONE, reason=_deleted(spec))
        except FrenzyError as error:
            log.warning("The pod that prepares the data of %s could not be looked at: %s", spec.run_key, error)
            return PreparerAccount(state=WorkersState.UNKNOWN)

    def stop(self, run_key: str) -> None:
        self._pods.delete(self._of(run_key), grace_s=self._rules.stop_grace_s)

    def remains(self) -> tuple[str, ...]:
        found = [(each["metadata"].get("labels") or {}).get(labels.PREPARING) for each in self._pods.list(labels.OURS)]
        return tuple(sorted({each for each in found if each is not None}))

    def _add_helpers(self, spec: PreparingSpec, tell: Callable[[str], None]) -> None:
        try:
            for rank in range(1, self._rules.preparing_pods):
                self._pods.create(preparing_pod(spec, self._rules, rank))
        except FrenzyError as error:
            tell(f"Fewer pods than preparing_pods prepare the data: {error}")

    def _of(self, run_key: str) -> tuple[PodJson, ...]:
        pods = self._pods.list(f"{labels.OURS},{labels.PREPARING}={labels.label_value(run_key)}")
        return tuple(each for each in pods if labels.PREPARING in (each["metadata"].get("labels") or {}))

    def _look(self, pod: PodJson) -> PreparerAccount:
        seen = see(pod, asked=False)
        if seen.stage is PodStage.ENDED:
            end = seen.end
            code = None if end is None else end.exit_code
            output = "" if code == 0 else self._output(seen.name)
            reason = None if code == 0 else reason_of(end)
            if reason is None and end is not None and code not in (None, 0) and final_message(end):
                output = output or final_message(end)
            return PreparerAccount(state=WorkersState.GONE, exit_code=code, reason=reason, output=output)
        hindrance = seen.hindrance
        if hindrance is not None and self._now_s() - _made_s(pod) > self._rules.scheduling_patience_s:
            self._pods.delete([pod], grace_s=0.0)
            return PreparerAccount(state=WorkersState.GONE, reason=hindrance)
        return PreparerAccount(state=WorkersState.ALIVE, waiting=hindrance)

    def _output(self, name: str) -> str:
        try:
            return self._pods.output(name)
        except FrenzyError as error:
            log.info("The output of pod %s is not to be had: %s", name, error)
            return ""


def _number(pod: PodJson) -> int:
    return int(pod["metadata"]["labels"][labels.PREPARING_NUMBER])


def _is_first(pod: PodJson) -> bool:
    return labels.PREPARING_RANK not in pod["metadata"]["labels"]


def _made_s(pod: PodJson) -> float:
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()


def _deleted(spec: PreparingSpec) -> Reason:
    detail = f"The pod that prepared the data of {spec.run_key} is gone."
    return Reason(code=ReasonCode.POD_DELETED, detail=detail)
