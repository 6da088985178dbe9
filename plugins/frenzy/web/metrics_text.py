"""The metrics in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from frenzy.core.runs.views import FleetMetrics

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_OF_A_RUN: Final = ("job", "run_key", "gpu_type")


def metrics_text(found: FleetMetrics) -> str:
    """``found`` as a scrape's answer."""
    registry = CollectorRegistry()
    registry.register(_Once(found))
    return generate_latest(registry).decode()


class _Once(Collector):
    """What was read for one scrape."""

    def __init__(self, found: FleetMetrics) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        found = self._found
        unplaced = GaugeMetricFamily("frenzy_unplaced_jobs", "Jobs that wait for GPUs, by reason.", labels=["reason"])
        for reason, number in sorted(found.unplaced_jobs.items()):
            unplaced.add_metric([reason], number)
        yield unplaced
        jobs = GaugeMetricFamily("frenzy_jobs", "Runs that have not ended, by state.", labels=["state"])
        for state, number in found.jobs.items():
            jobs.add_metric([state], number)
        yield jobs
        waits = Metric("frenzy_queue_wait_seconds", "How long jobs that wait now have waited.", "summary")
        for quantile, wait_s in found.queue_wait_s.items():
            waits.add_sample(waits.name, {"quantile": quantile}, wait_s)
        yield waits
        gpus = GaugeMetricFamily("frenzy_gpus", "GPUs by type and use.", labels=["gpu_type", "state"])
        for (gpu_type, state), number in sorted(found.gpus.items()):
            gpus.add_metric([gpu_type, state], number)
        yield gpus
        yield from self._peaks()
        ooms = CounterMetricFamily("frenzy_oom", "Attempts that ran out of memory, by whose.", labels=["kind"])
        for kind, number in found.ooms.items():
            ooms.add_metric([kind], number)
        yield ooms
        attempts = CounterMetricFamily("frenzy_attempts", "Attempts that ended, by reason.", labels=["outcome"])
        for code, number in sorted(found.attempts.items()):
            attempts.add_metric([code], number)
        yield attempts
        yield GaugeMetricFamily(
            "frenzy_pass_seconds", "How long a scheduling pass takes on what there is now.", value=found.pass_s
        )

    def _peaks(self) -> Iterator[Metric]:
        predicted = GaugeMetricFamily(
            "frenzy_predicted_peak_bytes", "Predicted peak of one GPU of a run that is on.", labels=_OF_A_RUN
        )
        measured = GaugeMetricFamily(
            "frenzy_measured_peak_bytes", "Highest peak of its GPUs that was measured.", labels=_OF_A_RUN
        )
        for row in self._found.peaks:
            labels = [row.job_name, row.run_key, row.gpu_type]
            predicted.add_metric(labels, row.predicted_bytes)
            if row.measured_bytes is not None:
                measured.add_metric(labels, row.measured_bytes)
        yield predicted
        yield measured
