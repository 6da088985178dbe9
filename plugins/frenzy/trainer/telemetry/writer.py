"""Step records as numbered chunks of JSON lines: no append, no rename, readable while training."""

from __future__ import annotations

import time
from typing import Final

from frenzy.core.values import codec
from frenzy.core.values.launch import RunPaths
from frenzy.core.values.telemetry import StepRecord
from frenzy.trainer import files

_LOCAL_INTERVAL_S: Final = 0.4
_REMOTE_INTERVAL_S: Final = 2.0


class TelemetryWriter:
    """One rank's records; a new chunk for every flush. Use as a context manager."""

    def __init__(self, paths: RunPaths, attempt: int, rank: int) -> None:
        self._paths, self._attempt, self._rank = paths, attempt, rank
        self._lines: list[str] = []
        self._chunk = 0
        self._flushed_s = 0.0
        is_local = files.local_path(paths.run_dir) is not None
        self._interval_s = _LOCAL_INTERVAL_S if is_local else _REMOTE_INTERVAL_S

    def write(self, record: StepRecord) -> None:
        """Keep ``record``, in a chunk as soon as one is due."""
        self._lines.append(codec.dumps(record))
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Put a chunk when the last one is old enough."""
        if time.monotonic() - self._flushed_s >= self._interval_s:
            self.flush()

    def flush(self) -> None:
        """Put all records kept so far as the next chunk."""
        if not self._lines:
            return
        place = self._paths.telemetry_chunk(self._attempt, self._rank, self._chunk)
        files.write_text(place, "".join(f"{line}\n" for line in self._lines))
        self._lines.clear()
        self._chunk += 1
        self._flushed_s = time.monotonic()

    def __enter__(self) -> TelemetryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
