"""Prepared tokens in a folder: shards of raw ids, each with a manifest that makes it exist.

A shard is written under a name of its own and moved into place, or put as a whole object; its manifest
follows. So whoever finds a manifest finds its tokens, also where several preparers write the same ones.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Final

from annotated_types import Ge

from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError
from frenzy.trainer import files

_MANIFEST: Final = re.compile(r"(\d{6})-(\d{6})\.json")
_READERS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Tokens of some texts of a segment; the shards of all segments, in order, are the data set.

    segment, number: its place among the others. num_texts: what was encoded for it. is_last: its segment ends
    with it. digest: of its bytes.
    """

    segment: Annotated[int, Ge(0)]
    number: Annotated[int, Ge(0)]
    num_tokens: Annotated[int, Ge(0)]
    num_texts: Annotated[int, Ge(0)]
    is_last: bool
    digest: str

    @property
    def name(self) -> str:
        """The file of its tokens."""
        return f"{self._stem}.bin"

    @property
    def manifest(self) -> str:
        return f"{self._stem}.json"

    @property
    def _stem(self) -> str:
        return f"{self.segment:06d}-{self.number:06d}"


class Shelf:
    """The shards in ``place``, a folder or an fsspec URL, with ids of ``num_bytes_per_token`` bytes."""

    def __init__(self, place: str, num_bytes_per_token: int) -> None:
        self._place, self._width = place, num_bytes_per_token

    def kept(self) -> dict[int, list[Shard]]:
        """What is there of each segment, from its start without a gap; what is not whole counts as absent."""
        sizes = files.sizes(self._place)
        with ThreadPoolExecutor(_READERS) as pool:
            read = pool.map(self._read, sorted(filter(_MANIFEST.fullmatch, sizes)))
            whole = [each for each in read if each and sizes.get(each.name) == each.num_tokens * self._width]
        found: dict[int, list[Shard]] = {}
        for shard in whole:
            before = found.setdefault(shard.segment, [])
            if shard.number == len(before):
                before.append(shard)
        return found

    def kept_of(self, segment: int) -> list[Shard]:
        """What is there of one segment; what is not whole counts as absent."""
        found: list[Shard] = []
        while not (found and found[-1].is_last):
            shard = self._read(f"{segment:06d}-{len(found):06d}.json")
            if shard is None or files.size(f"{self._place}/{shard.name}") != shard.num_tokens * self._width:
                break
            found.append(shard)
        return found

    def discard(self, shards: Iterable[Shard]) -> None:
        """Forget ``shards``."""
        for each in shards:
            files.remove_file(f"{self._place}/{each.manifest}")
            files.remove_file(f"{self._place}/{each.name}")

    def start(self, segment: int, number: int) -> ShardDraft:
        """A shard to be written."""
        return ShardDraft(self._place, self._width, segment, number)

    def _read(self, name: str) -> Shard | None:
        try:
            shard = codec.loads(Shard, files.read_bytes(f"{self._place}/{name}"))
        except (OSError, ContractError):
            return None
        return shard if shard.manifest == name else None


class ShardDraft:
    """A shard under way: nobody else sees it before ``publish``. Its file begins with the first tokens: whoever is told
    to stop while a draft is made has nothing to discard.
    """

    def __init__(self, place: str, width: int, segment: int, number: int) -> None:
        self._place, self._width, self._segment, self._number = place, width, segment, number
        self._digest = hashlib.blake2b(digest_size=16)
        self._num_bytes = self._num_texts = 0
        folder = files.local_path(place)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._file = Path(folder or tempfile.gettempdir()) / f".shard-{uuid.uuid4().hex}.tmp"
        self._out: BinaryIO | None = None
        self.num_characters = 0

    def add(self, ids: bytes, *, num_texts: int, num_characters: int) -> None:
        self._opened().write(ids)
        self._digest.update(ids)
        self._num_bytes += len(ids)
        self._num_texts += num_texts
        self.num_characters += num_characters

    def publish(self, *, is_last: bool) -> Shard:
        """Put the tokens, then the manifest."""
        shard = Shard(
            segment=self._segment,
            number=self._number,
            num_tokens=self._num_bytes // self._width,
            num_texts=self._num_texts,
            is_last=is_last,
            digest=self._digest.hexdigest(),
        )
        with self._opened() as out:
            out.flush()
            os.fsync(out.fileno())  # or a node that loses its power keeps the manifest alone
        place = files.local_path(f"{self._place}/{shard.name}")
        if place is not None:
            self._file.replace(place)
        else:
            files.upload_file(self._file, f"{self._place}/{shard.name}")
            self._file.unlink()
        files.write_text(f"{self._place}/{shard.manifest}", codec.dumps(shard))
        return shard

    def discard(self) -> None:
        """Leave nothing behind of what was not published."""
        if self._out is not None:
            self._out.close()
        self._file.unlink(missing_ok=True)

    def _opened(self) -> BinaryIO:
        if self._out is None:
            self._out = self._file.open("xb")
        return self._out
