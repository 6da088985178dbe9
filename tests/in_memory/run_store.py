"""The run directory in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from frenzy.core.runs.log_part import LogPart, log_part_of, read_hiding
from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.values.launch import FIRST_POD_LOG, AttemptResult, Control, LaunchSpec
from frenzy.core.values.prepared_data import PreparingResult, PreparingSpec
from frenzy.core.values.telemetry import Heartbeat, StepRecord
from frenzy.ports import StoredFile, TelemetryCursor, TelemetryPage


class InMemoryRunStore:
    """RunStore of one process, with the writer's side that workers have."""

    def __init__(self) -> None:
        self._specs: dict[tuple[str, int], LaunchSpec] = {}
        self._results: dict[tuple[str, int], AttemptResult] = {}
        self._chunks: dict[tuple[str, int, int], list[tuple[StepRecord, ...]]] = {}
        self._beats: dict[tuple[str, int, int], Heartbeat] = {}
        self._steps: dict[str, set[int]] = {}
        self._rates: dict[str, float] = {}
        self._logs: dict[tuple[str, int, int], str] = {}
        self._models: dict[str, dict[str, bytes]] = {}
        self._tracked: dict[str, tuple[TrackedRun, ...]] = {}
        self._notes: dict[tuple[str, int, str], str] = {}
        self.preparing_signs: dict[str, Heartbeat] = {}
        self.preparing_results: dict[str, PreparingResult] = {}
        self.data: dict[str, int] = {}
        self.controls: dict[tuple[str, int], Control] = {}
        self.logs: dict[tuple[str, int, str], str] = {}

    def put_spec(self, spec: LaunchSpec) -> None:
        self._specs[spec.run_key, spec.attempt] = spec

    def spec(self, run_key: str, attempt: int) -> LaunchSpec | None:
        return self._specs.get((run_key, attempt))

    def put_preparing(self, spec: PreparingSpec) -> None:
        self.preparing_signs.pop(spec.folder, None)
        self.preparing_results.pop(spec.folder, None)

    def preparing_sign(self, spec: PreparingSpec) -> Heartbeat | None:
        return self.preparing_signs.get(spec.folder)

    def preparing_result(self, spec: PreparingSpec) -> PreparingResult | None:
        return self.preparing_results.get(spec.folder)

    def put_control(self, run_key: str, attempt: int, control: Control) -> None:
        self.controls[run_key, attempt] = control

    def put_note(self, run_key: str, attempt: int, name: str, text: str) -> None:
        self._notes[run_key, attempt, name] = text

    def note(self, run_key: str, attempt: int, name: str) -> str | None:
        return self._notes.get((run_key, attempt, name))

    def put_log(self, run_key: str, attempt: int, name: str, text: str) -> None:
        self.logs[run_key, attempt, name] = text

    def put_result(self, run_key: str, attempt: int, result: AttemptResult) -> None:
        self._results[run_key, attempt] = result

    def result(self, run_key: str, attempt: int) -> AttemptResult | None:
        return self._results.get((run_key, attempt))

    def telemetry(self, run_key: str, attempt: int, cursor: TelemetryCursor) -> TelemetryPage:
        known = dict(cursor.steps)
        records = tuple(
            each
            for key, chunks in sorted(self._chunks.items())
            for each in chain.from_iterable(chunks)
            if key[:2] == (run_key, attempt) and each.step > known.get(each.rank, 0)
        )
        for each in records:
            known[each.rank] = each.step
        return TelemetryPage(records=records, cursor=replace(cursor, steps=tuple(sorted(known.items()))))

    def heartbeats(self, run_key: str, attempt: int, *, num_nodes: int) -> tuple[Heartbeat, ...]:
        found = (self._beats.get((run_key, attempt, node)) for node in range(num_nodes))
        return tuple(each for each in found if each is not None)

    def telemetry_sample(self, run_key: str, attempt: int, *, most_records: int) -> tuple[StepRecord, ...]:
        records = self.telemetry(run_key, attempt, TelemetryCursor()).records
        return records[:: -(len(records) // most_records + 1)][::-1]

    def newest_checkpoint(self, run_key: str) -> int | None:
        return max(self._steps.get(run_key, ()), default=None)

    def checkpoint_steps(self, run_key: str) -> tuple[int, ...]:
        return tuple(sorted(self._steps.get(run_key, ())))

    def checkpoint_rate(self, run_key: str) -> float | None:
        return self._rates.get(run_key)

    def clear_reports(self, run_key: str, attempt: int) -> None:
        self._results.pop((run_key, attempt), None)
        for documents in (self._chunks, self._beats, self._logs):
            for key in [each for each in documents if each[:2] == (run_key, attempt)]:
                documents.pop(key)

    def clear_checkpoints(self, run_key: str) -> None:
        self._steps.pop(run_key, None)
        self._rates.pop(run_key, None)
        self._tracked.pop(run_key, None)

    def tracked(self, run_key: str) -> tuple[TrackedRun, ...]:
        return self._tracked.get(run_key, ())

    def write_tracked(self, run_key: str, tracked: TrackedRun) -> None:
        self._tracked[run_key] = (*self.tracked(run_key), tracked)

    def clean_data(self, folders: Iterable[str], *, dry_run: bool) -> int:
        found = set(folders) & set(self.data)
        return sum(self.data[each] if dry_run else self.data.pop(each) for each in found)

    def clean(self, run_key: str, *, keep_model: bool, dry_run: bool) -> int:
        """There are no models here; a document counts as its text's length."""
        by_attempt: tuple[dict[Any, Any], ...] = (
            self._specs,
            self._results,
            self._chunks,
            self._beats,
            self._logs,
            self._notes,
            self.controls,
            self.logs,
        )
        found = [(documents, key) for documents in by_attempt for key in documents if key[0] == run_key]
        found += [(self._steps, key) for key in self._steps if key == run_key]
        num_bytes = sum(len(str(documents[key])) for documents, key in found)
        for documents, key in () if dry_run else found:
            del documents[key]
        return num_bytes

    def model_files(self, run_key: str) -> Mapping[str, int]:
        return {name: len(content) for name, content in sorted(self._models.get(run_key, {}).items())}

    def model_file(self, run_key: str, name: str) -> StoredFile | None:
        content = self._models.get(run_key, {}).get(name)
        if content is None:
            return None
        version = hashlib.sha256(content).hexdigest()
        return StoredFile(
            num_bytes=len(content), version=version, parts=lambda start, stop: iter((content[start:stop],))
        )

    def log_part(
        self,
        run_key: str,
        attempt: int,
        *,
        rank: int = 0,
        offset: int | None = None,
        whole_lines: bool = False,
        max_bytes: int = 65536,
        hidden: Sequence[bytes] = (),
    ) -> LogPart:
        text = self._logs.get((run_key, attempt, rank), "")
        if not text and rank == 0:
            text = self.logs.get((run_key, attempt, FIRST_POD_LOG), "")
        everything = text.encode()
        start = max(0, len(everything) - max_bytes) if offset is None else offset
        data = read_hiding(lambda first, count: everything[first : first + count], start, max_bytes, hidden)
        return log_part_of(data, start, len(everything), is_tail=offset is None, whole_lines=whole_lines)

    def run_dir(self, run_key: str) -> str:
        return f"memory://runs/{run_key}"

    def write_heartbeat(self, run_key: str, attempt: int, node_rank: int, beat: Heartbeat) -> None:
        self._beats[run_key, attempt, node_rank] = beat

    def write_chunk(self, run_key: str, attempt: int, records: Sequence[StepRecord]) -> None:
        """What a rank does: its next chunk of ``records``, all of one rank."""
        self._chunks.setdefault((run_key, attempt, records[0].rank), []).append(tuple(records))

    def write_result(self, run_key: str, attempt: int, result: AttemptResult) -> None:
        """What the node-0 launcher does."""
        self.put_result(run_key, attempt, result)

    def write_checkpoint(self, run_key: str, step: int, rate: float | None = None) -> None:
        """A complete checkpoint. rate: as the newest one's is to be."""
        self._steps.setdefault(run_key, set()).add(step)
        if rate is not None:
            self._rates[run_key] = rate

    def write_log(self, run_key: str, attempt: int, text: str, *, rank: int = 0) -> None:
        """More output of a rank."""
        key = (run_key, attempt, rank)
        self._logs[key] = self._logs.get(key, "") + text

    def write_model(self, run_key: str, files: Mapping[str, bytes]) -> None:
        """The finished model."""
        self._models[run_key] = dict(files)
