"""The run directory on fsspec: a local folder, a mounted volume or an object store.

Needs put, get, list and delete only. Every file is whole or absent: a local one is moved into
place, an object store puts whole objects. What workers wrote is read up to a bound, and not where a
link leads; whether it is to be believed is for ``frenzy.core.lifecycle.evidence`` to say.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import fsspec

from frenzy.adapters.files.telemetry_files import MOST_SHOWN, TelemetryFiles, shown
from frenzy.adapters.files.trees import LocalTree, RemoteTree, Tree
from frenzy.core.lifecycle.checkpoint_manifest import CheckpointManifest, complete_manifest, step_of_folder
from frenzy.core.lifecycle.evidence import ANY_ATTEMPT, believed_result
from frenzy.core.runs.log_part import LogPart, log_part_of, read_hiding
from frenzy.core.runs.tracked_run import TRACKERS, TrackedRun
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError
from frenzy.core.values.launch import FIRST_POD_LOG, AttemptResult, Control, LaunchSpec, deepspeed_config
from frenzy.core.values.prepared_data import HELPERS_SIGNS, MOST_PREPARERS, PreparingResult, PreparingSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.telemetry import Heartbeat, StepRecord, printable
from frenzy.ports import StoredFile, TelemetryCursor, TelemetryPage

logger = logging.getLogger(__name__)
T = TypeVar("T")

# What launchers remember lies beside the run directories, where workers that see only their own cannot write.
_NOTES: Final = "{run_key}.notes"
_MOST_DOCUMENT_BYTES: Final = 16 * 1024**2
_MOST_HEARTBEAT_BYTES: Final = 4096
_MOST_RESULT_BYTES: Final = 64 * 1024
# A job keeps at most 100, and a manifest has about 200 bytes for each file; they are read at every look, newest first.
_MOST_CHECKPOINTS: Final = 102
_MOST_MANIFEST_BYTES: Final = 1024**2
_MOST_BYTES_OF_MANIFESTS: Final = 4 * 1024**2


class FsspecRunStore:
    """RunStore below ``root``, a path or an fsspec URL."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        fs, base = fsspec.core.url_to_fs(self._root)
        is_local = "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)
        self._files: Tree = LocalTree(base) if is_local else RemoteTree(fs, base)
        if is_local and "://" not in root:
            self._root = base  # workers may have another working directory

    def run_dir(self, run_key: str) -> str:
        """Path or URL of the run's directory, as workers are given it."""
        return f"{self._root}/{run_key}"

    # what the scheduler's side writes

    def put_spec(self, spec: LaunchSpec) -> None:
        """Write ds_config.json, then spec.json: who finds the spec finds both."""
        paths = RunPaths(spec.run_key)
        config = json.dumps(deepspeed_config(spec.job, spec.plan, spec.gpu.kind), indent=2)
        self._put(paths.ds_config(spec.attempt), config)
        self._put(paths.spec(spec.attempt), codec.dumps(spec, indent=2))

    def put_preparing(self, spec: PreparingSpec) -> None:
        """The team's folder says whose it is: its name may not."""
        root = f"{self._root}/"
        self._files.remove(spec.folder.removeprefix(root))
        self._put(f"{spec.data.folder.removeprefix(root)}/team.txt", f"{spec.job.team}\n")
        self._put(spec.request.removeprefix(root), codec.dumps(spec, indent=2))

    def preparing_sign(self, spec: PreparingSpec) -> Heartbeat | None:
        sign = self._decoded(Heartbeat, spec.signs, _MOST_HEARTBEAT_BYTES)
        if sign is None or sign.done is None:
            return sign
        names = self._files.names(spec.folder.removeprefix(f"{self._root}/"))
        helpers = sorted(each for each in names if each.startswith(HELPERS_SIGNS))[:MOST_PREPARERS]
        found = (self._decoded(Heartbeat, f"{spec.folder}/{each}", _MOST_HEARTBEAT_BYTES) for each in helpers)
        return replace(
            sign, done=sign.done + sum(each.done or 0 for each in found if each and each.phase == sign.phase)
        )

    def preparing_result(self, spec: PreparingSpec) -> PreparingResult | None:
        return self._decoded(PreparingResult, spec.result, _MOST_RESULT_BYTES)

    def _decoded(self, kind: type[T], place: str, most_bytes: int) -> T | None:
        """What was written at ``place`` of the storage; what cannot be read counts as not there."""
        text = self._get(place.removeprefix(f"{self._root}/"), most_bytes)
        try:
            return None if text is None else codec.loads(kind, text)
        except ContractError as error:
            logger.warning("%s cannot be read: %s", place, shown(str(error)))
            return None

    def put_control(self, run_key: str, attempt: int, control: Control) -> None:
        self._put(RunPaths(run_key).control(attempt), codec.dumps(control))

    def put_note(self, run_key: str, attempt: int, name: str, text: str) -> None:
        self._put(_note_path(run_key, attempt, name), text)

    def note(self, run_key: str, attempt: int, name: str) -> str | None:
        return self._get(_note_path(run_key, attempt, name), _MOST_DOCUMENT_BYTES)

    def put_log(self, run_key: str, attempt: int, name: str, text: str) -> None:
        self._put(f"{RunPaths(run_key).logs_dir(attempt)}/{name}", text)

    def put_result(self, run_key: str, attempt: int, result: AttemptResult) -> None:
        """The account of workers that could not write it themselves."""
        self._put(RunPaths(run_key).result(attempt), codec.dumps(result))

    def clear_reports(self, run_key: str, attempt: int) -> None:
        """An earlier attempt may have written what only this one's workers are to say."""
        paths = RunPaths(run_key)
        for path in (paths.result(attempt), paths.telemetry_dir(attempt), paths.logs_dir(attempt)):
            self._files.remove(path)

    def clear_checkpoints(self, run_key: str) -> None:
        """Manifests first: what is left of a broken deletion is no checkpoint."""
        paths = RunPaths(run_key)
        for kind in TRACKERS:
            self._files.remove(paths.tracked(kind))
        for step in self._saved_steps(run_key):
            self._files.remove(paths.checkpoint_manifest(step))
        self._files.remove(paths.checkpoints_dir)

    def clean(self, run_key: str, *, keep_model: bool, dry_run: bool) -> int:
        """Bytes of the run's files, its finished model apart with ``keep_model``; removed unless ``dry_run``."""
        places = [run_key]
        if keep_model:
            inside = (f"{run_key}/{each}" for each in self._files.names(run_key))
            places = [each for each in inside if each != RunPaths(run_key).model_dir]
        places.append(_NOTES.format(run_key=run_key))
        num_bytes = sum(map(self._num_bytes, places))
        if not dry_run:
            for each in places:
                self._files.remove(each)
            if not any(self._files.names(run_key)):
                self._files.remove(run_key)
        return num_bytes

    def clean_data(self, folders: Iterable[str], *, dry_run: bool) -> int:
        places = tuple(folders)
        num_bytes = sum(map(self._num_bytes, places))
        for each in () if dry_run else places:
            self._files.remove(each)
        return num_bytes

    # what the workers' side wrote

    def spec(self, run_key: str, attempt: int) -> LaunchSpec | None:
        """The specification of the attempt's workers, if they have left it as it was: the ledger knows it better."""
        text = self._get(RunPaths(run_key).spec(attempt), _MOST_DOCUMENT_BYTES)
        return None if text is None else codec.loads(LaunchSpec, text)

    def result(self, run_key: str, attempt: int) -> AttemptResult | None:
        """The workers' account, with a checkpoint that exists; one that cannot be read counts as none.

        One that no message could carry is a crash: it would keep the end of other runs' attempts from the ledger.
        """
        result = self._decoded(AttemptResult, RunPaths(run_key).result(attempt), _MOST_RESULT_BYTES)
        if result is not None and result.checkpoint_step is not None:
            steps = self.checkpoint_steps(run_key)
            known = result.checkpoint_step in steps
            result = result if known else replace(result, checkpoint_step=max(steps, default=None))
        return None if result is None else believed_result(result, ANY_ATTEMPT)

    def telemetry(self, run_key: str, attempt: int, cursor: TelemetryCursor) -> TelemetryPage:
        return TelemetryFiles(self._files, RunPaths(run_key), attempt).since(cursor)

    def heartbeats(self, run_key: str, attempt: int, *, num_nodes: int) -> tuple[Heartbeat, ...]:
        """The last signs of progress of the nodes that gave any, in words of bounded length."""
        found = (self._heartbeat(RunPaths(run_key).heartbeat(attempt, node)) for node in range(num_nodes))
        return tuple(each for each in found if each is not None)

    def _heartbeat(self, place: str) -> Heartbeat | None:
        text = self._get(place, _MOST_HEARTBEAT_BYTES)
        try:
            found = None if text is None else codec.loads(Heartbeat, text)
        except ContractError:  # what it says is missed no more than one that is not there
            return None
        return None if found is None else replace(found, phase=printable(found.phase)[:MOST_SHOWN])

    def telemetry_sample(self, run_key: str, attempt: int, *, most_records: int) -> tuple[StepRecord, ...]:
        return TelemetryFiles(self._files, RunPaths(run_key), attempt).sample(most_records)

    def newest_checkpoint(self, run_key: str) -> int | None:
        """The newest step whose manifest is there with every file at its size."""
        return next((each.step for each in self._complete(run_key)), None)

    def checkpoint_steps(self, run_key: str) -> tuple[int, ...]:
        """All such steps, ascending; of very many the newest."""
        return tuple(each.step for each in self._complete(run_key))[::-1]

    def checkpoint_rate(self, run_key: str) -> float | None:
        """As the newest such checkpoint says."""
        newest = next(self._complete(run_key), None)
        return newest.rank_bytes_per_s or None if newest is not None else None

    def tracked(self, run_key: str) -> tuple[TrackedRun, ...]:
        """In words of bounded length."""
        found = {
            kind: self._decoded(TrackedRun, RunPaths(run_key).tracked(kind), _MOST_HEARTBEAT_BYTES) for kind in TRACKERS
        }
        return tuple(_shown(replace(each, kind=kind)) for kind, each in found.items() if each is not None)

    def model_files(self, run_key: str) -> Mapping[str, int]:
        folder = f"{RunPaths(run_key).model_dir}/"
        return {path.removeprefix(folder): size for path, size in sorted(self._files.sizes(folder[:-1]).items())}

    def model_file(self, run_key: str, name: str) -> StoredFile | None:
        """Only what the listing of the folder names is opened."""
        known = name in self.model_files(run_key)
        return self._files.stored(f"{RunPaths(run_key).model_dir}/{name}") if known else None

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
        """A rank's output from ``offset`` on, fit for a terminal; None: its end.

        For rank 0, if it never wrote any, that of its pod, which died before.
        """
        paths = RunPaths(run_key)
        places = (paths.rank_log(attempt, rank), *([f"{paths.logs_dir(attempt)}/{FIRST_POD_LOG}"] if not rank else ()))
        path = next((each for each in places if self._files.size(each)), places[0])
        size = self._files.size(path) or 0
        start = max(0, size - max_bytes) if offset is None else offset
        data = read_hiding(
            lambda first, count: self._files.read(path, most_bytes=count, start=first) or b"", start, max_bytes, hidden
        )
        return log_part_of(data, start, size, is_tail=offset is None, whole_lines=whole_lines)

    # files

    def _saved_steps(self, run_key: str) -> list[int]:
        """Steps with a folder of their own, newest first."""
        names = self._files.names(RunPaths(run_key).checkpoints_dir)
        return sorted((step for step in map(step_of_folder, names) if step is not None), reverse=True)

    def _complete(self, run_key: str) -> Iterator[CheckpointManifest]:
        """Newest first, up to where too much has been read."""
        left = _MOST_BYTES_OF_MANIFESTS
        for step in self._saved_steps(run_key)[:_MOST_CHECKPOINTS]:
            manifest = RunPaths(run_key).checkpoint_manifest(step)
            text = self._get(manifest, _MOST_MANIFEST_BYTES)
            left -= len(text or "")
            if left < 0:
                return
            found = None if text is None else self._if_complete(manifest, step, text)
            if found is not None:
                yield found

    def _if_complete(self, manifest: str, step: int, text: str) -> CheckpointManifest | None:
        folder = manifest.rpartition("/")[0]
        sizes = {path.removeprefix(f"{folder}/"): size for path, size in self._files.sizes(folder).items()}
        try:
            return complete_manifest(text, step, sizes)
        except ContractError as error:
            logger.warning("%s is passed over: %s", manifest, shown(error.reason.sentence))
            return None

    def _num_bytes(self, place: str) -> int:
        size = self._files.size(place)
        return sum(self._files.sizes(place).values()) if size is None else size

    def _get(self, path: str, most_bytes: int) -> str | None:
        """The text at ``path``, cut at ``most_bytes``."""
        data = self._files.read(path, most_bytes=most_bytes)
        return None if data is None else data.decode(errors="replace")

    def _put(self, path: str, text: str) -> None:
        self._files.write(path, text.encode())


def _shown(tracked: TrackedRun) -> TrackedRun:
    return replace(
        tracked,
        tracker_run=printable(tracked.tracker_run)[:MOST_SHOWN],
        place=printable(tracked.place),
        problem=printable(tracked.problem)[:MOST_SHOWN],
    )


def _note_path(run_key: str, attempt: int, name: str) -> str:
    return f"{_NOTES.format(run_key=run_key)}/attempt-{attempt}-{name}.json"
