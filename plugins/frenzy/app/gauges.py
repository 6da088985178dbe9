"""How the cluster and its jobs stand, in numbers; all of it read from the ledger when it is asked for.

So it is the same whichever process answers, and whatever was started again meanwhile.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from frenzy.app.facts import scheduling_facts
from frenzy.app.queries import gpus_view, queue_view
from frenzy.app.services import Services
from frenzy.core.runs.access import Sight, see_all
from frenzy.core.runs.ledger import FINAL_STATES, JobState, RunRecord
from frenzy.core.runs.usage import LeaseSpan, UsageBy, UsageHistory, UsageView, gpu_usage, usage_history
from frenzy.core.runs.views import FleetMetrics, GpuTypeRow, PeakRow
from frenzy.core.values.errors import ReasonCode

_LONGEST_HISTORY_S: Final = 400 * 86_400.0
# Of the waits of jobs that wait now.
QUANTILES = (0.5, 0.9, 1.0)
OOM_KINDS = {
    ReasonCode.CUDA_OUT_OF_MEMORY: "gpu",
    ReasonCode.BUDGET_EXCEEDED: "virtual_gpu",
    ReasonCode.HOST_OUT_OF_MEMORY: "host",
}


def fleet_metrics(services: Services, sees: Sight = see_all) -> FleetMetrics:
    """Of all jobs that may be shown; GPUs, ends of attempts and the time of a pass are everybody's."""
    queue, gpus = queue_view(services, sees), gpus_view(services, sees)
    with services.ledger.reading() as tx:
        outcomes, states = tx.attempt_outcomes(), tx.run_states()
    waits_s = sorted(queue.now_s - row.waiting_since_s for row in queue.waiting)
    reasons = Counter("NOT_YET_DECIDED" if row.reason is None else str(row.reason.code) for row in queue.waiting)
    return FleetMetrics(
        unplaced_jobs=dict(reasons),
        jobs={str(state): states.get(state, 0) for state in JobState if state not in FINAL_STATES},
        queue_wait_s={str(each): _quantile(waits_s, each) for each in QUANTILES},
        gpus={(row.gpu_type, state): number for row in gpus.types for state, number in _use(row)},
        peaks=tuple(
            PeakRow(
                job_name=row.job_name,
                run_key=row.run_key,
                gpu_type=row.gpu_type,
                predicted_bytes=row.predicted_peak_bytes,
                measured_bytes=row.measured_peak_bytes,
            )
            for row in queue.running
        ),
        ooms={kind: outcomes.get(code, 0) for code, kind in OOM_KINDS.items()},
        attempts=dict(outcomes),
        pass_s=_pass_s(services),
    )


def _use(row: GpuTypeRow) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("free", row.num_free), ("in_use", row.num_gpus - row.num_free)


def _quantile(ascending: Sequence[float], share: float) -> float:
    """The least value that so many of all are not above; 0 of none."""
    return ascending[math.ceil(share * len(ascending)) - 1] if ascending else 0.0


def _pass_s(services: Services) -> float:
    """How long the decision of a scheduling pass takes on what there is now; it changes nothing."""
    began_s, now_s = time.perf_counter(), services.clock.now_s()
    with services.ledger.reading() as tx:
        facts = scheduling_facts(tx, services, now_s)
    services.schedule(facts, now_s=now_s, policy=services.current_policy)
    return time.perf_counter() - began_s


def usage(
    services: Services,
    *,
    since_s: float,
    until_s: float | None = None,
    by: UsageBy = UsageBy.TEAM,
    sees: Sight = see_all,
) -> UsageView:
    """GPU-hours and cost of the runs that may be shown, between two moments; until now where none is named."""
    return gpu_usage(*_leases(services, since_s, sees), by=by, since_s=since_s, until_s=_end_s(services, until_s))


def history(
    services: Services,
    *,
    since_s: float,
    until_s: float | None = None,
    by: UsageBy = UsageBy.TEAM,
    num_parts: int,
    sees: Sight = see_all,
) -> UsageHistory:
    """The same in equal parts of that time, of which the last 400 days are looked at."""
    end_s = max(since_s, _end_s(services, until_s))
    since_s = max(since_s, end_s - _LONGEST_HISTORY_S)
    found = _leases(services, since_s, sees)
    return usage_history(*found, by=by, since_s=since_s, until_s=end_s, num_parts=num_parts)


def _end_s(services: Services, until_s: float | None) -> float:
    now_s = services.clock.now_s()
    return now_s if until_s is None else min(until_s, now_s)


def _leases(
    services: Services, since_s: float, sees: Sight
) -> tuple[tuple[LeaseSpan, ...], Mapping[str, RunRecord], Mapping[str, float | None]]:
    """Who held GPUs since then, the runs of them that may be shown, and what an hour of each type costs."""
    with services.ledger.reading() as tx:
        spans = tx.lease_spans(since_s)
        tx.read_ahead({each.run_key for each in spans})
        found = {each.run_key: tx.run(each.run_key) for each in spans}
        prices = {each.name: each.price_per_hour for each in tx.cluster().gpu_types}
    known = {key: run for key, run in found.items() if run is not None}
    seen = sees({run.identity.dag_id for run in known.values()})
    return spans, {key: run for key, run in known.items() if run.identity.dag_id in seen}, prices
