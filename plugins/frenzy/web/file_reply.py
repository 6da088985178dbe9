"""A file of any size as a reply: part by part, whole or from where a broken transfer ended.

A run's own code wrote it. So a browser keeps it and never shows it: as a page of this origin it could act for its
reader.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from fastapi import Response
from fastapi.responses import StreamingResponse

from frenzy.ports import StoredFile

# One range; a request for several is answered with the whole, as it may be.
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_HEADERS: Final = {
    "Accept-Ranges": "bytes",
    "Cache-Control": "private, no-cache",
    # Else the server around this one packs weights, which costs a core, and no one knows their size before the end.
    "Content-Encoding": "identity",
    "X-Content-Type-Options": "nosniff",
}


def file_reply(asked: Mapping[str, str], name: str, file: StoredFile) -> Response:
    """``file`` to be kept as the last part of ``name``. asked: the request's headers."""
    etag = f'"{hashlib.sha256(file.version.encode()).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": etag}
    if etag in re.split(r"\s*,\s*", asked.get("if-none-match", "").strip()):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    wanted = _range_of(asked.get("range", ""), file.num_bytes) if asked.get("if-range", etag) == etag else None
    start, stop = wanted or (0, file.num_bytes)
    if wanted is not None and start >= stop:
        headers["Content-Range"] = f"bytes */{file.num_bytes}"
        return Response(status_code=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers=headers)
    if wanted is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.num_bytes}"
    headers["Content-Length"] = str(stop - start)
    headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name.rpartition('/')[2], safe='')}"
    status = HTTPStatus.OK if wanted is None else HTTPStatus.PARTIAL_CONTENT
    return StreamingResponse(file.parts(start, stop), status, headers, media_type="application/octet-stream")


def _range_of(value: str, num_bytes: int) -> tuple[int, int] | None:
    """From where to where; nothing lies between where that is beyond the end. None: all of it is wanted."""
    found = _RANGE.fullmatch(value)
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found[1], found[2]
    if not first:
        return max(0, num_bytes - int(last)), num_bytes
    if last and int(last) < int(first):
        return None
    return int(first), min(num_bytes, int(last) + 1 if last else num_bytes)
