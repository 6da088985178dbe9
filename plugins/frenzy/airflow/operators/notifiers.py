"""Whom to tell what of a training, by Airflow's notifiers: mail, chat, a pager, or any function of the context.

from airflow.providers.slack.notifications.slack import SlackNotifier
told = Notifiers(moved=[SlackNotifier(text="{{ frenzy.job }} goes on elsewhere: {{ frenzy.reason }}")])
frenzy_training("include/jobs/small.yaml", notifiers=told)

A training whose DAG names none has those of the installation (``FRENZY_NOTIFIERS``).
"""

from __future__ import annotations

import copy
import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from frenzy.core.runs.protocol import RunView, Verdict, VerdictKind
from frenzy.core.values.errors import ReasonCode

Notify = Callable[[Any], Any]

# Tasks decide what becomes of a run; what they tell must not keep them from it.
_LONGEST_S: Final = 60.0

_OUT_OF_MEMORY: Final = frozenset(
    {ReasonCode.CUDA_OUT_OF_MEMORY, ReasonCode.BUDGET_EXCEEDED, ReasonCode.HOST_OUT_OF_MEMORY}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifiers:
    """Who is called when; each with the task's context, where ``frenzy`` has the ``facts``.

    waiting_long: the run has waited for GPUs for ``long_s``; once in each wait. moved: it goes on in another attempt.
    out_of_memory: an attempt ended so. ended: the run is over, well or not.
    """

    waiting_long: Sequence[Notify] = ()
    moved: Sequence[Notify] = ()
    out_of_memory: Sequence[Notify] = ()
    ended: Sequence[Notify] = ()
    long_s: float = 3600.0

    @property
    def notice_after_s(self) -> float | None:
        """When a wait is to be told; None where nobody is to be told."""
        return self.long_s if self.waiting_long else None

    def of_verdict(self, verdict: Verdict) -> tuple[Notify, ...]:
        """Those to be told of what follows after an attempt."""
        by_memory = self.out_of_memory if verdict.reason.code in _OUT_OF_MEMORY else ()
        return (*by_memory, *(self.moved if verdict.kind is VerdictKind.RETRY else self.ended))


class NoNotifiersError(Exception):
    """What ``FRENZY_NOTIFIERS`` names cannot be had; the message says why."""


def notifiers_at(path: str) -> Notifiers:
    """The value that ``path``, ``module:name``, names. Raises NoNotifiersError, whatever its module does."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        raise NoNotifiersError(f"FRENZY_NOTIFIERS is {path!r}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Notifiers):
        raise NoNotifiersError(f"FRENZY_NOTIFIERS is {path!r}, a {type(found).__name__}; it must be a frenzy.Notifiers")
    return found


def facts(view: RunView) -> dict[str, Any]:
    """What a message may name: small JSON."""
    run, last = view.run, view.attempts[-1] if view.attempts else None
    hold = view.queue_entry.hold if view.queue_entry is not None else None
    reason = hold or run.reason
    return {
        "job": run.job.name,
        "run_key": run.run_key,
        "state": str(run.state),
        "owner": run.owner,
        "team": run.job.team,
        "reason": None if reason is None else f"{reason.code}: {reason.sentence}",
        "remedy": None if reason is None else reason.remedy,
        "attempt": None if last is None else last.attempt,
        "plan": None if last is None else last.plan.plan_id,
        "step": None if last is None else last.last_step,
    }


def tell(those: Sequence[Notify], context: Any, view: RunView, log: Any) -> None:
    """Call each of them; one that fails is in the log, and fails nothing else. One that hangs is left behind."""
    for each in those:
        told = threading.Thread(target=_tell_one, args=(each, context, view, log), daemon=True)
        told.start()
        told.join(_LONGEST_S)
        if told.is_alive():
            log.error(
                "The notifier %s has not ended within %.0f s; nobody waits for it.", type(each).__name__, _LONGEST_S
            )


def _tell_one(notify: Notify, context: Any, view: RunView, log: Any) -> None:
    try:
        copy.copy(notify)({**context, "frenzy": facts(view)})  # rendering changes a notifier
    except Exception:
        log.exception("The notifier %s failed.", type(notify).__name__)
