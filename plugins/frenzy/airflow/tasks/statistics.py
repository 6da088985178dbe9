"""The metrics of ``/frenzy/metrics`` through Airflow's own statistics, to StatsD or OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from frenzy.adapters.api_client import ApiClient
from frenzy.api import endpoints as api
from frenzy.core.values.errors import FrenzyError


def send_statistics(client: ApiClient, log: Any) -> None:
    """A gauge for each value, with its labels as tags; nothing where Airflow sends none. Fails nothing."""
    from airflow.sdk.observability import stats

    if not is_sent():
        return
    try:
        text = client.send(api.metrics())
    except FrenzyError as error:
        log.warning("No statistics this time: %s", error)
        return
    for name, value, tags in values(text):
        stats.gauge(name, value, tags=dict(tags))


def is_sent() -> bool:
    """Whether Airflow sends statistics anywhere."""
    from airflow.sdk.configuration import conf

    return any(conf.getboolean("metrics", each, fallback=False) for each in ("statsd_on", "otel_on"))


def values(text: str) -> Iterator[tuple[str, float, Mapping[str, str]]]:
    """Name, value and labels of each sample in Prometheus' ``text``."""
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.value, sample.labels
