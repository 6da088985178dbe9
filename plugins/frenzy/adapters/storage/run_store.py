"""The run directory on fsspec: a local folder, a mounted volume or an object store.

Needs put, get, list and delete only. Every file is whole or absent: a local one is moved into
place, an object store puts whole objects.
"""

from __future__ import annotations

import json
import logging
import os
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import fsspec

from frenzy.core import codec
from frenzy.core.errors import ContractError
from frenzy.core.launch import FIRST_POD_LOG, AttemptResult, Control, LaunchSpec, RunPaths, deepspeed_config
from frenzy.core.telemetry import StepRecord
from frenzy.ports import TelemetryCursor, TelemetryPage

logger = logging.getLogger(__name__)

_CHUNK_NAME: Final = re.compile(r"^(\d+)-(\d+)\.jsonl$")
_MANIFEST_PATH: Final = re.compile(r"/step-(\d+)/manifest\.json$")


class FsspecRunStore:
    """RunStore below ``root``, a path or an fsspec URL."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._fs, self._base = fsspec.core.url_to_fs(self._root)
        protocol = self._fs.protocol
        self._is_local = "file" in ((protocol,) if isinstance(protocol, str) else protocol)
        if self._is_local and "://" not in root:
            self._root = self._base  # workers may have another working directory

    def run_dir(self, run_key: str) -> str:
        """Path or URL of the run's directory, as workers are given it."""
        return f"{self._root}/{run_key}"

    # what the scheduler's side writes

    def put_spec(self, spec: LaunchSpec) -> None:
        """Write ds_config.json, then spec.json: who finds the spec finds both."""
        paths = self._paths(spec.run_key)
        config = json.dumps(deepspeed_config(spec.job, spec.plan), indent=2)
        self._put(paths.ds_config(spec.attempt), config)
        self._put(paths.spec(spec.attempt), codec.dumps(spec, indent=2))

    def put_control(self, run_key: str, attempt: int, control: Control) -> None:
        self._put(self._paths(run_key).control(attempt), codec.dumps(control))

    def put_note(self, run_key: str, attempt: int, name: str, text: str) -> None:
        self._put(self._paths(run_key).note(attempt, name), text)

    def note(self, run_key: str, attempt: int, name: str) -> str | None:
        return self._get(self._paths(run_key).note(attempt, name))

    def put_log(self, run_key: str, attempt: int, name: str, text: str) -> None:
        self._put(f"{self._paths(run_key).logs_dir(attempt)}/{name}", text)

    def put_result(self, run_key: str, attempt: int, result: AttemptResult) -> None:
        """The account of workers that could not write it themselves."""
        self._put(self._paths(run_key).result(attempt), codec.dumps(result))

    def clear_checkpoints(self, run_key: str) -> None:
        """Forget all checkpoints, manifests first: what is left of a broken deletion is none."""
        files = self._sizes(self._paths(run_key).checkpoints_dir)
        for path in sorted(files, key=lambda each: _MANIFEST_PATH.search(each) is None):
            self._fs.rm_file(path)

    def clean(self, run_key: str, *, keep_model: bool, dry_run: bool) -> int:
        """Bytes of the run's files, its finished model apart with ``keep_model``; removed unless ``dry_run``."""
        paths = self._paths(run_key)
        kept = f"{paths.model_dir}/" if keep_model else None
        files = {
            path: size for path, size in self._sizes(paths.run_dir).items() if not (kept and path.startswith(kept))
        }
        if not dry_run:
            for path in files:
                with suppress(FileNotFoundError):  # another call removes them, too
                    self._fs.rm_file(path)
            if self._is_local:
                _remove_empty_folders(paths.run_dir)
        return sum(files.values())

    # what the workers' side wrote

    def spec(self, run_key: str, attempt: int) -> LaunchSpec | None:
        text = self._get(self._paths(run_key).spec(attempt))
        return None if text is None else codec.loads(LaunchSpec, text)

    def result(self, run_key: str, attempt: int) -> AttemptResult | None:
        """The workers' account; one that cannot be read counts as none."""
        place = self._paths(run_key).result(attempt)
        text = self._get(place)
        if text is None:
            return None
        try:
            return codec.loads(AttemptResult, text)
        except ContractError as error:
            logger.warning("%s cannot be read: %s", place, error)
            return None

    def telemetry(self, run_key: str, attempt: int, cursor: TelemetryCursor) -> TelemetryPage:
        """Records written since ``cursor``, in chunk order per rank.

        A rank's newest chunk that ends in mid-line is left for the next call, unless the attempt
        has ended: then its whole lines count.
        """
        next_chunks = dict(cursor.next_chunks)
        records: list[StepRecord] = []
        chunks = self._new_chunks(self._paths(run_key).telemetry_dir(attempt), next_chunks)
        newest = {rank: chunk for rank, chunk, _ in chunks}
        for rank, chunk, path in chunks:
            found, is_whole = _records(self._get(path) or "", path)
            if is_whole or chunk != newest[rank] or self.result(run_key, attempt) is not None:
                records += found
                next_chunks[rank] = chunk + 1
        return TelemetryPage(
            records=tuple(records), cursor=TelemetryCursor(next_chunks=tuple(sorted(next_chunks.items())))
        )

    def checkpoint_steps(self, run_key: str) -> tuple[int, ...]:
        """Steps whose manifest is there with every file at its size, ascending."""
        sizes = self._sizes(self._paths(run_key).checkpoints_dir)
        manifests = ((match, path) for path in sizes if (match := _MANIFEST_PATH.search(path)))
        return tuple(sorted(int(match[1]) for match, path in manifests if self._is_complete(path, sizes)))

    def log_tail(self, run_key: str, attempt: int, *, rank: int = 0, max_bytes: int = 65536) -> str:
        """The end of a rank's output, at most ``max_bytes`` of it, from the start of a line.

        For rank 0, if it never wrote any, that of its pod, which died before.
        """
        paths = self._paths(run_key)
        found = self._tail(paths.rank_log(attempt, rank), max_bytes)
        return found if found or rank else self._tail(f"{paths.logs_dir(attempt)}/{FIRST_POD_LOG}", max_bytes)

    def _tail(self, path: str, max_bytes: int) -> str:
        try:
            size = self._fs.size(path) or 0
            start = max(0, size - max_bytes)
            data: bytes = self._fs.cat_file(path, start=start, end=size) if size else b""
        except FileNotFoundError:
            return ""
        if start and b"\n" in data:
            data = data[data.index(b"\n") + 1 :]
        return data.decode(errors="replace")

    # files

    def _paths(self, run_key: str) -> RunPaths:
        return RunPaths(f"{self._base}/{run_key}")

    def _new_chunks(self, folder: str, next_chunks: dict[int, int]) -> list[tuple[int, int, str]]:
        """(rank, chunk, path) of the chunks that were not read yet, ascending."""
        names = ((_CHUNK_NAME.match(path.rpartition("/")[2]), path) for path in self._list(folder))
        chunks = sorted((int(match[1]), int(match[2]), path) for match, path in names if match)
        return [each for each in chunks if each[1] >= next_chunks.get(each[0], 0)]

    def _is_complete(self, manifest: str, sizes: dict[str, int]) -> bool:
        folder = manifest.rpartition("/")[0]
        try:
            listed = json.loads(self._get(manifest) or "")["files"]
            return all(sizes.get(f"{folder}/{each['path']}") == each["num_bytes"] for each in listed)
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s cannot be read: %s", manifest, error)
            return False

    def _list(self, folder: str) -> Iterable[str]:
        self._fs.invalidate_cache(folder)
        try:
            names: list[str] = self._fs.ls(folder, detail=False)
        except FileNotFoundError:
            return ()
        return names

    def _sizes(self, folder: str) -> dict[str, int]:
        """Every file below ``folder`` with its size."""
        self._fs.invalidate_cache()
        found: dict[str, Any] = self._fs.find(folder, detail=True)
        return {path: info["size"] for path, info in found.items()}

    def _get(self, path: str) -> str | None:
        try:
            data: bytes = self._fs.cat_file(path)
        except FileNotFoundError:
            return None
        return data.decode()

    def _put(self, path: str, text: str) -> None:
        if not self._is_local:
            self._fs.pipe_file(path, text.encode())
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)


def _remove_empty_folders(top: str) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):  # not empty: the model's
            Path(folder).rmdir()


def _records(text: str, path: str) -> tuple[list[StepRecord], bool]:
    """The records of a chunk's whole lines, and whether the chunk is whole."""
    *lines, rest = text.split("\n")
    records: list[StepRecord] = []
    for line in lines:
        try:
            records.append(codec.loads(StepRecord, line))
        except ContractError as error:
            logger.warning("a line of %s cannot be read: %s", path, error)
    return records, rest == "" and bool(lines)
