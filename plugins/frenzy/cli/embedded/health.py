"""What is known of the embedded Airflow's components: from their records, the server's health page, and their logs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import httpx

from frenzy.cli.embedded.stack_processes import ProcessRecord

_LOG_TAIL_BYTES: Final = 16384
_EXIT_CHARACTERS: Final = 160
_ERROR_LINE: Final = re.compile(r"[\w.]*(Error|Exception)\b")

# Of each component that beats: its status, and when it last did.
Health = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """How often a component died and was started again; of the last time when (since the epoch) and how."""

    count: int = 0
    last_s: float = 0.0
    last_exit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """One component: its process, if it runs, since when, and whether Airflow calls it healthy."""

    name: str
    pid: int | None
    is_healthy: bool
    started_s: float = 0.0
    restarts: Restarts = Restarts()


def health_at(base_url: str, timeout_s: float = 10.0) -> Health:
    """What the server says of all; empty when it does not answer in ``timeout_s`` seconds."""
    try:
        answer = httpx.get(f"{base_url}/api/v2/monitor/health", timeout=timeout_s, trust_env=False)
        return answer.json() if answer.is_success else {}
    except (httpx.HTTPError, ValueError):
        return {}


def component_status(name: str, record: ProcessRecord | None, restarts: Restarts, health: Health) -> ComponentStatus:
    """The status of the component of ``record``; of one without a live process only how often it died."""
    if record is None or not record.is_alive():
        return ComponentStatus(name=name, pid=None, is_healthy=False, restarts=restarts)
    return ComponentStatus(
        name=name,
        pid=record.pid,
        is_healthy=_is_healthy(record, health),
        started_s=record.started_s,
        restarts=restarts,
    )


def log_lines(log: Path) -> list[str]:
    """The last lines of a log, without empty ones; a log may be long."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
        return [line for line in text.splitlines() if line.strip()]
    return []


def last_error(log: Path) -> str | None:
    """The last error among those lines."""
    errors = [line[:_EXIT_CHARACTERS] for line in log_lines(log) if _ERROR_LINE.match(line)]
    return errors[-1] if errors else None


def _is_healthy(record: ProcessRecord, health: Health) -> bool:
    """Whether ``record``'s component beats; a beat from before its start is its predecessor's.

    Components run where their records are written, so both times are of one clock.
    """
    if record.name == "api-server":
        return bool(health)
    key = record.name.replace("-", "_")
    part = health.get(key, {})
    beat = part.get(f"latest_{key}_heartbeat")
    if part.get("status") != "healthy" or not beat:
        return False
    return datetime.fromisoformat(beat).timestamp() > record.started_s
