"""Signs of progress: told as a phase begins and goes on, never by a clock; waiting ends with another's silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from frenzy.core.values import codec
from frenzy.core.values.errors import ReasonCode, TemporaryError
from frenzy.core.values.telemetry import Heartbeat
from frenzy.trainer import heartbeats


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    heartbeats.begin(str(tmp_path / "telemetry" / "node-00000.json"))
    yield tmp_path / "telemetry" / "node-00000.json"
    heartbeats.begin(None)


def written(place: Path) -> tuple[str, int | None]:
    found = codec.loads(Heartbeat, place.read_text())
    return found.phase, found.done


def test_a_phase_is_told_when_it_begins_and_then_every_few_seconds_only(place: Path) -> None:
    heartbeats.beat("tokenising", 1)
    heartbeats.beat("tokenising", 2)
    assert written(place) == ("tokenising", 1)
    heartbeats.beat("loading the weights")
    assert written(place) == ("loading the weights", None)


def test_pieces_are_told_by_their_sum(place: Path) -> None:
    tell = heartbeats.counting("reading")
    tell(3)
    assert written(place) == ("reading", 3)
    heartbeats.beat("between")
    tell(4)
    assert written(place) == ("reading", 7)


def test_a_rank_that_does_not_tell_for_its_node_writes_nothing(tmp_path: Path) -> None:
    heartbeats.begin(None)
    heartbeats.beat("loading the weights")
    assert list(tmp_path.iterdir()) == []


def test_a_sign_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    heartbeats.begin(str(tmp_path / "file" / "node.json"))
    heartbeats.beat("loading the weights")
    heartbeats.begin(None)


def test_what_another_node_put_is_found(tmp_path: Path) -> None:
    (tmp_path / "rendezvous.json").write_text("here")
    assert heartbeats.wait_for(str(tmp_path / "rendezvous.json"), signs_at="nowhere", what="say where") == "here"


def test_waiting_ends_when_the_other_node_shows_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRENZY_STARTUP_S", "0.01")
    with pytest.raises(TemporaryError, match="did not say where") as raised:
        heartbeats.wait_for(str(tmp_path / "rendezvous.json"), signs_at=str(tmp_path / "none"), what="say where")
    assert raised.value.reason.code is ReasonCode.LAUNCH_FAILED
