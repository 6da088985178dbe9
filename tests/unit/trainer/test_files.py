from __future__ import annotations

import threading
from pathlib import Path

from frenzy.trainer import files


def test_sizes_pass_over_files_that_others_put_into_place_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"four")
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            draft = tmp_path / ".draft"
            draft.write_bytes(b"7 bytes")
            draft.rename(tmp_path / "put")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2_000):
            assert files.sizes(str(tmp_path))["kept"] == 4
    finally:
        ended.set()
        writer.join()


def test_there_are_no_sizes_where_there_is_no_folder(tmp_path: Path) -> None:
    assert files.sizes(str(tmp_path / "absent")) == {}
