"""The telemetry of an attempt, as it lies in the run directory.

Of each node one small object with the newest records of its ranks, which is overwritten, and chunks of history, a
minute each. Who looks often reads the newest alone: as much late in a run as early.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import product
from typing import Final

from frenzy.adapters.files.trees import Tree
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError
from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.telemetry import LatestHead, StepRecord, printable
from frenzy.ports import TelemetryCursor, TelemetryPage

logger = logging.getLogger(__name__)

_CHUNK_NAME: Final = re.compile(r"^(\d{5})-(\d{6,9})\.jsonl$")
_LATEST_NAME: Final = re.compile(r"^(\d{5})\.jsonl$")
# How a record begins: what is known already need not be decoded, at about 50 us.
_RANK_AND_STEP: Final = re.compile(r'^\{(?:"\w+": ?\d+, ?)?"rank": ?(\d{1,9}), ?"step": ?(\d{1,12})[,}]', re.MULTILINE)
# A node writes at most 16,000 records a minute, of some 600 bytes.
_MOST_CHUNK_BYTES: Final = 16 * 1024**2
_MOST_LATEST_BYTES: Final = 4 * 1024**2
_MOST_NODES: Final = 4096
_MOST_RANKS: Final = 2**16
# A minute each; a page that shows an attempt asks for no more, however long that ran.
_MOST_CHUNKS_OF_A_SAMPLE: Final = 64
# The rest is left for the next look. A line costs about 50 us.
_MOST_LINES_AT_ONCE: Final = 20_000
_MOST_LINES_OF_A_CHUNK: Final = 20_000
# So does opening a chunk, and reading so much of it, however few lines it has.
_BYTES_OF_A_LINE: Final = 64 * 1024**2 // _MOST_LINES_AT_ONCE
# What follows in a chunk with so many lines that are no records is no telemetry.
_MOST_BAD_LINES: Final = 100
MOST_SHOWN: Final = 300


class TelemetryFiles:
    """Reads what the nodes of an attempt wrote; ``paths`` are those below the root of ``files``."""

    def __init__(self, files: Tree, paths: RunPaths, attempt: int) -> None:
        self._files, self._paths, self._attempt = files, paths, attempt
        self._name = f"The telemetry of {paths.run_dir} attempt {attempt}"

    def since(self, cursor: TelemetryCursor) -> TelemetryPage:
        """Records written since ``cursor``, each once, up to a bound: the rest is for the next call.

        A node's newest records are one object. Its history is read only by who has missed what lies before them.
        """
        known_chunks = dict(cursor.next_chunks)
        nodes = self._latest_of(known_chunks)
        next_chunks = {node: known_chunks.get(node, 0) for node in nodes}
        reading = _Reading(dict(cursor.steps))
        unread = self._add_history(reading, nodes, next_chunks)
        for node, latest in nodes.items():
            if node not in unread and reading.num_left > 0:
                reading.add(latest.text)
                next_chunks[node] = max(next_chunks[node], latest.num_chunks)
        return reading.page(next_chunks, self._name)

    def _add_history(
        self, reading: _Reading, nodes: Mapping[int, _Latest], next_chunks: dict[int, int]
    ) -> frozenset[int]:
        """Read what was missed before the newest records, all nodes equally far; nodes of which there is more."""
        behind = (node for node, latest in nodes.items() if not reading.has_missed_nothing_before(latest))
        waiting = [(next_chunks[node], node) for node in behind if next_chunks[node] < nodes[node].num_chunks]
        heapify(waiting)
        while waiting and reading.num_left > 0:
            chunk, node = heappop(waiting)
            text = self._get(self._paths.telemetry_chunk(self._attempt, node, chunk), _MOST_CHUNK_BYTES)
            if text is None:
                continue
            reading.add(text)
            next_chunks[node] = chunk + 1
            if chunk + 1 < nodes[node].num_chunks:
                heappush(waiting, (chunk + 1, node))
        return frozenset(node for _, node in waiting)

    def _latest_of(self, nodes: Iterable[int]) -> dict[int, _Latest]:
        """The newest records of ``nodes``; of all that are found if that is none.

        Attempts before 2026-11-25 have chunks for each rank, and nothing else: the ranks stand for nodes.
        """
        found = tuple(nodes) or self._nodes()
        texts = {node: self._get(self._paths.latest(self._attempt, node), _MOST_LATEST_BYTES) for node in found}
        latest = {node: _latest(text) for node, text in texts.items()}
        if any(text is not None for text in texts.values()):
            return latest
        chunks = sorted(self._chunks(self._paths.telemetry_dir(self._attempt)))
        return latest | {rank: _Latest(num_chunks=chunk + 1) for rank, chunk in chunks}

    def _nodes(self) -> tuple[int, ...]:
        names = map(_LATEST_NAME.match, self._files.names(self._paths.latest_dir(self._attempt)))
        return tuple(sorted(int(match[1]) for match in names if match))[:_MOST_NODES]

    def sample(self, most_records: int) -> tuple[StepRecord, ...]:
        """About so many records, of chunks that are spread evenly over the attempt, and the newest.

        Of each chunk the same steps of all ranks, so many chunks at most: what is asked for does not grow with the
        attempt.
        """
        nodes = self._latest_of(())
        num_chunks = max((each.num_chunks for each in nodes.values()), default=0)
        num_looked_at = min(num_chunks, max(1, _MOST_CHUNKS_OF_A_SAMPLE // max(1, len(nodes))))
        numbers = [num_chunks * place // num_looked_at for place in range(num_looked_at)]
        most_of_each = max(1, most_records // ((num_looked_at + 1) * max(1, len(nodes))))
        reading = _Reading({})
        for number, node in product(numbers, nodes):
            text = self._get(self._paths.telemetry_chunk(self._attempt, node, number), _MOST_CHUNK_BYTES)
            reading.add(text or "", most=most_of_each)
        for latest in nodes.values():
            reading.add(latest.text, most=most_of_each)
        return reading.page({}, self._name).records

    def _chunks(self, folder: str) -> Iterator[tuple[int, int]]:
        """(node, chunk) of all chunks of history."""
        matches = map(_CHUNK_NAME.match, self._files.names(folder))
        return ((int(match[1]), int(match[2])) for match in matches if match)

    def _get(self, path: str, most_bytes: int) -> str | None:
        data = self._files.read(path, most_bytes=most_bytes)
        return None if data is None else data.decode(errors="replace")


def shown(problem: str) -> str:
    """As much of it as a log takes at every look: what a run wrote stands in it."""
    return printable(problem)[:MOST_SHOWN]


class _Problems:
    """What was wrong with many lines, in one."""

    def __init__(self) -> None:
        self._first, self._num = "", 0

    def add(self, problem: str) -> None:
        self._first, self._num = self._first or problem, self._num + 1

    def tell(self, of: str) -> None:
        if self._num:
            logger.warning("%s: %d lines cannot be read, the first: %s", of, self._num, shown(self._first))


@dataclass(frozen=True, slots=True)
class _Latest:
    """A node's newest records, not yet decoded, and how many chunks of history it has put."""

    num_chunks: int = 0
    text: str = ""


def _latest(text: str | None) -> _Latest:
    head, _, rest = (text or "").partition("\n")
    try:
        return _Latest(max(0, codec.loads(LatestHead, head).num_chunks), rest)
    except ContractError:  # nothing has been put yet, or nothing that can be read
        return _Latest()


class _Grid:
    """The same steps of all ranks, so that they make about ``most`` of ``lines``; the newest among them."""

    def __init__(self, lines: Sequence[str], most: int | None) -> None:
        self._every, self._newest = 1, 0
        if most is not None and len(lines) > most:
            self._every = 1 << (-(-len(lines) // most) - 1).bit_length()
            self._newest = max((int(at[2]) for at in map(_RANK_AND_STEP.match, lines) if at), default=0)

    def has(self, step: int) -> bool:
        return step % self._every == 0 or step >= self._newest - 1  # a rank may be one behind


class _Reading:
    """Records of one look: of each rank the steps beyond the newest that is known."""

    def __init__(self, known: dict[int, int]) -> None:
        self._known = known
        self._records: list[StepRecord] = []
        self._problems = _Problems()
        self.num_left = _MOST_LINES_AT_ONCE

    def has_missed_nothing_before(self, latest: _Latest) -> bool:
        """Whether all ranks in ``latest`` go on there where they are known."""
        first: dict[int, int] = {}
        for match in _RANK_AND_STEP.finditer(latest.text):
            first.setdefault(int(match[1]), int(match[2]))
        return bool(first) and all(step <= self._known.get(rank, 0) + 1 for rank, step in first.items())

    def add(self, text: str, *, most: int | None = None) -> None:
        """What is new in the first whole lines of ``text``, up to where too many are no records.

        most: take the same steps of all ranks, so that they are about so many records.
        """
        *lines, _ = text.split("\n", _MOST_LINES_OF_A_CHUNK)
        grid = _Grid(lines, most)
        num_read = num_bad = 0
        for line in lines:
            at = _RANK_AND_STEP.match(line)
            if at is not None and not self._is_wanted(int(at[1]), int(at[2]), grid):
                continue
            num_read += 1
            num_bad += not self._add(line)
            if num_bad >= _MOST_BAD_LINES:
                break
        self.num_left -= 1 + max(num_read, len(text) // _BYTES_OF_A_LINE)

    def page(self, next_chunks: Mapping[int, int], of: str) -> TelemetryPage:
        """All of it, by rank; what could not be read is told of."""
        self._problems.tell(of)
        self._records.sort(key=lambda each: each.rank)
        cursor = TelemetryCursor(
            next_chunks=tuple(sorted(next_chunks.items())), steps=tuple(sorted(self._known.items()))
        )
        return TelemetryPage(records=tuple(self._records), cursor=cursor)

    def _is_wanted(self, rank: int, step: int, grid: _Grid) -> bool:
        return step > self._known.get(rank, 0) and grid.has(step)

    def _add(self, line: str) -> bool:
        """Whether ``line`` is a record."""
        try:
            record = codec.loads(StepRecord, line)
        except ContractError as error:
            self._problems.add(str(error))
            return False
        if not 0 <= record.rank < _MOST_RANKS:
            self._problems.add(f"a record of rank {record.rank}")
            return False
        if record.step > self._known.get(record.rank, 0):
            self._known[record.rank] = record.step
            self._records.append(record)
        return True
