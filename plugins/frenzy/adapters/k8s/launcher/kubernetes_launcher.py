"""Launcher on Kubernetes: the pods of an attempt, all or none, found again by their labels.

A look costs one list by label, however large the cluster is, or nothing where a mirror shows that all pods
go on. What a look learns of a pod's end is noted in the run directory, because pods do not last: a node that
goes away takes its pods along.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from kubernetes.client import CoreV1Api

from frenzy.adapters.fallback_result import put_fallback_result
from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.pod_manifest import pods_of
from frenzy.adapters.k8s.launcher.pod_mirror import PodMirror
from frenzy.adapters.k8s.launcher.pod_outcome import (
    PodEnd,
    PodJson,
    PodSeen,
    PodStage,
    decisive,
    final_message,
    gave_up,
    lost,
    nodes_to_blame,
    reason_of,
    see,
    vanished,
)
from frenzy.adapters.k8s.launcher.pod_parts import Manifest
from frenzy.adapters.k8s.launcher.pods import Pods, check_runs_read
from frenzy.adapters.k8s.launcher.pods_note import PodsNote
from frenzy.adapters.k8s.pod_rules import PodRules
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, FrenzyError, PermanentError, Reason, ReasonCode, TemporaryError
from frenzy.core.values.launch import Control, ControlAction, LaunchSpec
from frenzy.ports import RunStore, WorkersAccount, WorkersState

log = logging.getLogger(__name__)

T = TypeVar("T")

_PODS: Final = "pods"
_STOPPED: Final = "stop"
_REFUSED: Final = "refused"
# A minute of the API server's or a webhook's being away; then the run gives its GPUs back for a while.
_CREATE_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
_PASSES: Final = frozenset({ReasonCode.API_UNREACHABLE, ReasonCode.WAITING_FOR_OLD_WORKERS})
# Who takes a pod away says why in an event, which the scheduler and the taint manager write beside the deletion and not
# before it: a pod that is gone may be explained a moment later.
_EVENT_PATIENCE_S: Final = 5.0
# A pod that should have left so long ago is on a node that may have fallen silent.
_LATE_S: Final = 15.0
_GOES_ON: Final = frozenset({PodStage.WAITING, PodStage.RUNNING})
# Pods that lost a peer end by themselves within the trainer's own patience; those that do not are ended.
_PEERS_PATIENCE_S: Final = 60.0


class KubernetesLauncher:
    """Runs workers as pods, one for each node of the placement.

    core_api: makes the client when it is first needed. mirror: of the same pods, for a process that looks at many
    attempts; without one each look lists. now_s: seconds since the epoch. sleep: waits so many seconds before a refused
    creation is tried again.
    """

    def __init__(
        self,
        runs: RunStore,
        rules: PodRules,
        *,
        core_api: Callable[[], CoreV1Api],
        mirror: PodMirror | None = None,
        now_s: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._runs, self._rules, self._now_s, self._sleep = runs, rules, now_s, sleep
        self._pods, self._mirror = Pods(rules.namespace, core_api), mirror

    def launch(self, spec: LaunchSpec) -> str:
        """Make the attempt's pods, unless they were made or stopped before; a reference for people.

        Raises TemporaryError (QUOTA_EXCEEDED, API_UNREACHABLE after a minute) or PermanentError; then the pods that
        were made are being deleted, and ``account`` tells what was refused until they are gone, and after.
        """
        reference = f"kubernetes:{self._rules.namespace}/{labels.pod_name(spec.run_key, spec.attempt, 0)}"
        if self._note(spec) is not None or self._is_stopped(spec):
            return reference
        pods = pods_of(spec, self._rules, self._runs.checkpoint_rate(spec.run_key))
        check_runs_read(spec)
        if self._runs.spec(spec.run_key, spec.attempt) is None:
            self._runs.put_spec(spec)
        self._create_all(spec, pods)
        self._put_note(spec, PodsNote(pods=tuple(each["metadata"]["name"] for each in pods)))
        if self._is_stopped(spec):  # meanwhile, by somebody who saw no pod yet
            self.stop(spec, grace_s=0.0)
        return reference

    def state(self, spec: LaunchSpec) -> WorkersState:
        return self.account(spec).state

    def account(self, spec: LaunchSpec) -> WorkersAccount:
        """One look at the attempt's pods; an end that is news is noted. Pods that will never begin are ended."""
        try:
            return self._look(spec)
        except FrenzyError as error:
            log.warning("The pods of %s attempt %d could not be looked at: %s", spec.run_key, spec.attempt, error)
            return WorkersAccount(state=WorkersState.UNKNOWN)

    def stop(self, spec: LaunchSpec, *, grace_s: float) -> None:
        """Ask the workers for a checkpoint and their end; a pod that is there after ``grace_s`` is killed."""
        self._runs.put_note(spec.run_key, spec.attempt, _STOPPED, json.dumps({"asked_s": self._now_s()}))
        if grace_s > 0:
            reason = Reason(code=ReasonCode.CHECKPOINTED_ON_REQUEST)
            control = Control(action=ControlAction.CHECKPOINT_AND_STOP, reason=reason)
            self._runs.put_control(spec.run_key, spec.attempt, control)
        pods = self._pods.list(labels.selector(spec.run_key, spec.attempt))
        alive = (each for each in pods if see(each, asked=True).stage is not PodStage.ENDED)
        self._pods.delete(alive, grace_s=grace_s)

    def remove(self, run_key: str, attempt: int) -> None:
        """Keep the output of workers that could not keep it themselves, and delete the attempt's pods."""
        pods = self._pods.list(labels.selector(run_key, attempt))
        for each in pods:
            self._keep_output(run_key, attempt, each)
        self._pods.delete(pods, grace_s=0.0)

    def remains(self) -> tuple[tuple[str, int], ...]:
        """Attempts that have a pod in our namespace."""
        found = [each["metadata"].get("labels") or {} for each in self._pods.list(labels.OURS)]
        known = {(each[labels.RUN], int(each[labels.ATTEMPT])) for each in found if labels.is_ours(each)}
        return tuple(sorted(known))

    # looking

    def _look(self, spec: LaunchSpec) -> WorkersAccount:
        asked = self._is_stopped(spec)
        kept = self._note(spec)  # before the list, which then knows every pod of it that is not gone
        seen = self._seen(spec, kept, asked=asked)
        note = (kept or PodsNote(pods=())).with_leaving(seen)
        seen = [note.as_first_told(each) for each in seen]
        alive = [each for each in seen if each.stage is not PodStage.ENDED]
        refusal = self._refusal(spec) if kept is None else None
        if kept is None and (refusal is not None or not seen):
            never = WorkersState.GONE if asked else WorkersState.NOT_STARTED
            return WorkersAccount(state=WorkersState.ALIVE if alive else never, reason=refusal)
        silent = self._silent_nodes(alive)
        note = self._noted(spec, kept, note, seen, silent, asked=asked)
        if alive and not asked:
            note = self._give_up_if_hopeless(spec, note, alive)
        state = self._proved(note, alive, silent, asked=asked)
        account = replace(self._account(spec, note, alive, state), running_since_s=_running_since_s(note, seen))
        if account.state is WorkersState.GONE:
            self._leave_result(spec, note)
        return account

    def _seen(self, spec: LaunchSpec, kept: PodsNote | None, *, asked: bool) -> list[PodSeen]:
        """The pods as the mirror has them, if all that were made are there and go on; else they are asked for anew.

        So nothing is concluded from a mirror that lags: no end, no pod that is missing, none that waits for too long.
        """
        if self._mirror is not None and kept is not None and not kept.ends and not asked:
            mirrored = self._mirror.pods(spec.run_key, spec.attempt)
            if {each.name for each in mirrored}.issuperset(kept.pods) and not any(
                each.stage not in _GOES_ON or self._is_stuck(spec, kept, each) for each in mirrored
            ):
                return mirrored
        return [see(each, asked=asked) for each in self._pods.list(labels.selector(spec.run_key, spec.attempt))]

    def _proved(self, note: PodsNote, alive: list[PodSeen], silent: frozenset[str], *, asked: bool) -> WorkersState:
        """What is proved of the workers; not their end while somebody may yet say why their pods were taken away."""
        if alive:
            return WorkersState.UNKNOWN if silent else WorkersState.ALIVE
        may_be_told = not asked and note.unexplained_since(self._now_s() - _EVENT_PATIENCE_S)
        return WorkersState.UNKNOWN if may_be_told else WorkersState.GONE

    def _account(self, spec: LaunchSpec, note: PodsNote, alive: list[PodSeen], state: WorkersState) -> WorkersAccount:
        hindrances = [each.hindrance for each in alive if each.hindrance is not None]
        return WorkersAccount(
            state=state,
            reason=reason_of(decisive(note.ends)),
            lost_nodes=nodes_to_blame(note.ends, tuple(each.node for each in spec.placement.allocations)),
            waiting=hindrances[0] if hindrances else None,
        )

    def _silent_nodes(self, alive: list[PodSeen]) -> frozenset[str]:
        """Nodes that do not answer, so that nobody knows of their pods. Only those that may be are asked about."""
        suspects = {each.node for each in alive if each.node is not None and self._may_be_on_a_silent_node(each)}
        return frozenset(each for each in suspects if self._pods.node_is_silent(each))

    def _may_be_on_a_silent_node(self, pod: PodSeen) -> bool:
        is_late = pod.leaves_by_s is not None and self._now_s() > pod.leaves_by_s + _LATE_S
        return is_late or (pod.stage is not PodStage.WAITING and pod.ready is False)

    def _noted(
        self,
        spec: LaunchSpec,
        kept: PodsNote | None,
        note: PodsNote,
        seen: list[PodSeen],
        silent: frozenset[str],
        *,
        asked: bool,
    ) -> PodsNote:
        """``note`` with what can be seen, and the ends of pods that are not there any more; kept: as it was before."""
        ends = [each.end for each in seen if each.end is not None]
        if not asked:
            ends += [lost(each) for each in seen if each.stage is PodStage.LEAVING and each.node in silent]
        after = note.with_nodes(seen).with_hindrances(seen, self._now_s()).with_ends(ends)
        if not asked:
            after = self._explained(after, {each.name for each in seen if each.stage is not PodStage.ENDED})
        return self._remember(spec, kept, after)

    def _explained(self, note: PodsNote, alive: Collection[str]) -> PodsNote:
        """``note`` with what is said of pods that were deleted and are over, at each look anew: it may come late."""
        missed = [each for each in note.unexplained() if each not in alive]
        note = note.with_missed(missed, self._now_s())
        return note.with_ends(self._vanished(note, each) for each in missed)

    def _remember(self, spec: LaunchSpec, note: PodsNote | None, after: PodsNote) -> PodsNote:
        if after != note and after.pods:
            self._put_note(spec, after)
        return after

    def _vanished(self, note: PodsNote, pod: str) -> PodEnd:
        node = note.nodes.get(pod)
        return vanished(
            pod=pod,
            node_rank=note.pods.index(pod),
            event=self._pods.last_event(pod),
            node_is_gone=node is not None and self._pods.node_is_silent(node),
            at_s=note.missed[pod],
        )

    def _give_up_if_hopeless(self, spec: LaunchSpec, note: PodsNote, alive: list[PodSeen]) -> PodsNote:
        """End the attempt where a pod will not begin, or where pods outlive a failed one for too long.

        A pod that was deleted has its time to save a checkpoint; so do its peers, who may have to take part.
        """
        now_s = self._now_s()
        may_save = {each.name for each in alive if each.leaves_by_s is not None and now_s <= each.leaves_by_s}
        stuck = [each for each in alive if self._is_stuck(spec, note, each)]
        failed = decisive(each for each in note.ends if each.pod not in may_save)
        if stuck:
            note = self._remember(spec, note, note.with_ends(gave_up(each, now_s) for each in stuck))
        elif failed is None or now_s - failed.at_s < _PEERS_PATIENCE_S:
            return note
        self.stop(spec, grace_s=0.0)
        return note

    def _is_stuck(self, spec: LaunchSpec, note: PodsNote, pod: PodSeen) -> bool:
        return note.hindered_for_s(pod, self._now_s()) > self._patience_s(spec, pod)

    def _patience_s(self, spec: LaunchSpec, pod: PodSeen) -> float:
        """How long ``pod`` may be kept from beginning; a node that an autoscaler has yet to add takes its time."""
        waits_for_node = pod.hindrance is not None and pod.hindrance.code is ReasonCode.POD_UNSCHEDULABLE
        if waits_for_node and pod.node_rank < len(spec.nodes) and labels.NODE_GROUP in spec.nodes[pod.node_rank].labels:
            return max(self._rules.scheduling_patience_s, self._rules.autoscaling_patience_s)
        return self._rules.scheduling_patience_s

    def _leave_result(self, spec: LaunchSpec, note: PodsNote) -> None:
        """From the last words of the pod that decides, where node 0 could not write the attempt's result."""
        end = decisive(note.ends) or min(note.ends, key=lambda each: each.node_rank, default=None)
        if end is not None and end.exit_code is not None:
            put_fallback_result(
                self._runs,
                run_key=spec.run_key,
                attempt=spec.attempt,
                exit_code=end.exit_code,
                detail=final_message(end),
            )

    # making and deleting

    def _create_all(self, spec: LaunchSpec, pods: Iterable[Manifest]) -> None:
        made: list[PodJson] = []
        pauses_s = iter(_CREATE_PAUSES_S)
        try:
            for each in pods:
                made.append(self._create_patiently(spec, each, pauses_s))
        except BaseException as error:
            self._take_back(spec, made, error)
            raise

    def _create_patiently(self, spec: LaunchSpec, pod: Manifest, pauses_s: Iterator[float]) -> PodJson:
        """As ``_create``, but again after each of ``pauses_s`` while the API server cannot do it."""
        while True:
            try:
                return self._create(pod)
            except TemporaryError as error:
                pause_s = next(pauses_s, None) if error.reason.code in _PASSES else None
                if pause_s is None or self._is_stopped(spec):
                    raise
                log.warning("%s Trying again in %.0f s.", error, pause_s)
                self._sleep(pause_s)

    def _take_back(self, spec: LaunchSpec, made: list[PodJson], error: BaseException) -> None:
        """Delete what was made. Why is noted first: it is asked for while the pods leave, maybe by other processes."""
        try:
            if isinstance(error, FrenzyError):
                self._runs.put_note(spec.run_key, spec.attempt, _REFUSED, codec.dumps(error.reason))
            self._pods.delete(made, grace_s=0.0)
        except FrenzyError as another:  # whoever sees the pods ends them
            log.warning("The pods of %s attempt %d are not deleted yet: %s", spec.run_key, spec.attempt, another)

    def _create(self, pod: Manifest) -> PodJson:
        """The pod as it was made, now or by an earlier call for the same attempt; another attempt's never."""
        name = pod["metadata"]["name"]
        made = self._pods.create(pod) or self._pods.read(name)
        if made is None or (_is_of(made, pod) and "deletionTimestamp" in made["metadata"]):
            detail = f"The pod {self._rules.namespace}/{name} of an earlier try has yet to leave."
            raise TemporaryError(
                Reason(code=ReasonCode.WAITING_FOR_OLD_WORKERS, detail=detail), retry_after_s=_CREATE_PAUSES_S[0]
            )
        if not _is_of(made, pod):
            detail = f"The pod {self._rules.namespace}/{name} is there already, and belongs to something else."
            raise PermanentError(
                Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy="Delete it, or set another namespace.")
            )
        return made

    def _keep_output(self, run_key: str, attempt: int, pod: PodJson) -> None:
        """A container that died early leaves its output in its pod only."""
        seen = see(pod, asked=True)
        if seen.stage is not PodStage.ENDED or (seen.end is not None and seen.end.exit_code == 0):
            return
        try:
            text = self._pods.output(seen.name)
            if text:
                self._runs.put_log(run_key, attempt, f"pod-{seen.node_rank}.log", text)
        except FrenzyError as error:
            log.info("The output of pod %s is not to be had: %s", seen.name, error)

    # notes

    def _note(self, spec: LaunchSpec) -> PodsNote | None:
        return self._kept(PodsNote, spec, _PODS)

    def _refusal(self, spec: LaunchSpec) -> Reason | None:
        """Why the pods could not all be made."""
        return self._kept(Reason, spec, _REFUSED)

    def _kept(self, kind: type[T], spec: LaunchSpec, name: str) -> T | None:
        """What was noted. The workers can write there, too: what is none of ours counts as not there."""
        text = self._runs.note(spec.run_key, spec.attempt, name)
        try:
            return None if text is None else codec.loads(kind, text)
        except ContractError as error:
            log.warning("The note %s of %s attempt %d is refused: %s", name, spec.run_key, spec.attempt, error)
            return None

    def _put_note(self, spec: LaunchSpec, note: PodsNote) -> None:
        self._runs.put_note(spec.run_key, spec.attempt, _PODS, codec.dumps(note))

    def _is_stopped(self, spec: LaunchSpec) -> bool:
        return self._runs.note(spec.run_key, spec.attempt, _STOPPED) is not None


def _is_of(made: PodJson, pod: Manifest) -> bool:
    """Whether ``made``, which has the name of ``pod``, belongs to the same attempt."""
    return labels.attempt_labels_of(pod).items() <= (made["metadata"].get("labels") or {}).items()


def _running_since_s(note: PodsNote, seen: Iterable[PodSeen]) -> float | None:
    """When the last pod's container began; None while one has not. A pod that is gone is no sign of either."""
    began = [each.began_s for each in seen if each.name in note.pods or not note.pods]
    known = [each for each in began if each is not None]
    return max(known) if known and len(known) == len(began) else None
