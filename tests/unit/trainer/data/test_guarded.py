"""Reading on a user's behalf: what only shows when a source is opened. Real servers on this machine."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

from frenzy.core.values.errors import PermanentError, SpecError
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.sources import SourceRules
from frenzy.trainer.data.data_facts import data_facts
from frenzy.trainer.guarded import check_no_links, guarded

SCHEMES = ("file", "http", "https", "simplecache")


def job(path: str) -> TrainingJob:
    return TrainingJob(
        name="words",
        model=ModelSpec(config={"model_type": "gpt2"}, tokenizer="byte"),
        data=DataSpec(path=path),
        training=TrainingSpec(max_steps=1),
    )


class Server(ThreadingHTTPServer):
    """Answers each path with text, and ``/away`` with a redirect; remembers who came."""

    def __init__(self, location: str = "") -> None:
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                self.send_response(302 if location else 200)
                self.send_header("Location", location)
                self.send_header("Content-Length", "11")
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(b"the secrets")

            do_HEAD = do_GET  # noqa: N815  # the library's name

            def log_message(self, *_: object) -> None:
                """Quiet."""

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextmanager
def serving(location: str = "") -> Iterator[Server]:
    with Server(location) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def facts(place: str, rules: SourceRules) -> Any:
    asked = job(place)
    with guarded(asked, rules):
        return data_facts(asked)


def test_a_server_of_this_machine_is_asked_nothing() -> None:
    rules = SourceRules(schemes=SCHEMES)
    with serving() as server:
        for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1"):
            for chain in ("", "simplecache::"):
                with pytest.raises(SpecError, match="no public address"):
                    facts(f"{chain}http://{host}:{server.port}/words.txt", rules)
        assert server.asked == []


def test_a_name_that_turns_out_to_be_this_machines_is_refused_at_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS is the attacker's: the name says nothing, its address does."""
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **options: real("127.0.0.1", *rest, **options))
    with serving() as server:
        with pytest.raises(PermanentError, match="no public address"):
            facts(f"http://rebound.example.com:{server.port}/words.txt", SourceRules(schemes=SCHEMES))
        assert server.asked == []


def test_a_host_that_the_administrator_named_may_be_read_and_may_not_send_on_to_another() -> None:
    rules = SourceRules(schemes=SCHEMES, hosts=("127.0.0.1", "*"))
    with serving() as victim, serving(f"http://localhost:{victim.port}/secrets.txt") as server:
        assert facts(f"http://127.0.0.1:{victim.port}/words.txt", rules).num_tokens == 12
        victim.asked.clear()
        with pytest.raises(PermanentError):
            facts(f"http://127.0.0.1:{server.port}/words.txt", rules)
        assert server.asked != []
        assert victim.asked == []


def test_a_link_among_the_data_is_judged_by_what_it_leads_to(tmp_path: Path) -> None:
    closed, data = tmp_path / "airflow", tmp_path / "data"
    closed.mkdir()
    data.mkdir()
    (closed / "secrets.txt").write_text("secret")
    (data / "words.txt").write_text("words")
    rules = SourceRules(closed=(str(closed),))
    assert facts(str(data), rules).num_rows == 1
    (data / "more.txt").symlink_to(closed / "secrets.txt")
    for place in (f"{data}", f"{data}/*.txt", f"file://{data}/more.txt"):
        with pytest.raises(SpecError, match="data is not read from there"):
            facts(place, rules)
    (tmp_path / "shortcut").symlink_to(closed)
    with pytest.raises(SpecError, match=r"data\.path"):
        facts(f"{tmp_path}/shortcut/*.txt", rules)
    with pytest.raises(SpecError, match=r"data\.path"):
        facts(f"{data}/../airflow", rules)


def test_a_pattern_tells_nothing_of_what_is_closed(tmp_path: Path) -> None:
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow/words.txt").write_text("secret")
    rules = SourceRules(closed=(str(tmp_path / "airflow"),))
    told = []
    for place in ("a*w/words.txt", "a*w/w*.txt", "a*w", "*/words.txt", "a*w/none.txt"):
        with pytest.raises(PermanentError, match="no data file is there") as caught:
            facts(f"{tmp_path}/{place}", rules)
        told.append(str(caught.value).replace(place, "PLACE"))
    assert len(set(told)) == 1


def test_a_pipe_among_the_data_hangs_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "words.txt")
    with pytest.raises(PermanentError):
        facts(str(tmp_path / "*.txt"), SourceRules())


def test_only_named_folders_are_read(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("words")
    assert facts(str(tmp_path), replace(SourceRules(), folders=(str(tmp_path),))).num_rows == 1
    with pytest.raises(SpecError, match="FRENZY_DATA_FOLDERS"):
        facts(str(tmp_path), replace(SourceRules(), folders=("/srv/data",)))


def test_what_is_guarded_ends_with_the_reading(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("words")
    facts(str(tmp_path), SourceRules())
    assert type(fsspec.filesystem("file")).__name__ == "LocalFileSystem"
    assert "https" not in fsspec.config.conf


def test_a_folder_of_plain_files_passes_and_so_does_none(tmp_path: Path) -> None:
    (tmp_path / "model/tokenizer").mkdir(parents=True)
    (tmp_path / "model/tokenizer/vocab.json").write_text("{}")
    check_no_links(tmp_path / "model")
    check_no_links(tmp_path / "data")


def test_links_and_pipes_in_a_folder_of_a_run_are_refused(tmp_path: Path) -> None:
    for name, make in (("link", lambda place: place.symlink_to("/etc")), ("pipe", os.mkfifo)):
        folder = tmp_path / name / "below"
        folder.mkdir(parents=True)
        make(folder / name)
        with pytest.raises(SpecError, match="plain files only"):
            check_no_links(folder.parent)
    with pytest.raises(SpecError, match="is no link"):
        check_no_links(tmp_path / "link/below/link")


def test_a_folder_of_a_run_that_is_too_deep_or_too_full_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep" / "/".join("d" * 32)).mkdir(parents=True)
    check_no_links(tmp_path / "deep")
    (tmp_path / "deep" / "/".join("d" * 33)).mkdir()
    with pytest.raises(SpecError, match="at most 32 deep"):
        check_no_links(tmp_path / "deep")
    monkeypatch.setattr("frenzy.trainer.guarded._MOST_ENTRIES", 20)
    with pytest.raises(SpecError, match="at most 20 files"):
        check_no_links(tmp_path / "deep")
