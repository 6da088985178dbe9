"""Signs of progress: told as a phase begins and goes on, never by a clock; waiting ends with another's silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens while somebody waits: the first at its first pause, and so on."""
    found: list[Callable[[], object]] = []
    monkeypatch.setattr(heartbeats.time, "sleep", lambda _: found.pop(0)())
    return found


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


def test_waiting_ends_when_the_other_node_shows_no_more_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRENZY_STARTUP_S", "0.01")
    (tmp_path / "other.json").write_text("importing")
    with pytest.raises(TemporaryError, match="did not say where") as raised:
        heartbeats.wait_for(str(tmp_path / "rendezvous.json"), signs_at=str(tmp_path / "other.json"), what="say where")
    assert raised.value.reason.code is ReasonCode.LAUNCH_FAILED


def test_a_node_without_a_machine_or_an_image_is_waited_for(
    turns: list[Callable[[], object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRENZY_STARTUP_S", "0")
    turns += [lambda: None, lambda: (tmp_path / "ready").write_text("ready")]
    assert heartbeats.wait_for(str(tmp_path / "ready"), signs_at=str(tmp_path / "other.json"), what="get ready")


def test_a_node_that_waits_for_one_that_has_not_begun_is_waited_for_as_well(
    turns: list[Callable[[], object]], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRENZY_STARTUP_S", "0")
    turns += [lambda: (tmp_path / "ready").write_text("ready")]
    heartbeats.wait_for(str(tmp_path / "ready"), signs_at=str(tmp_path / "other.json"), what="get ready")
    sign = place.rename(tmp_path / "first.json")
    turns += [lambda: None, lambda: (tmp_path / "met").write_text("here")]
    assert heartbeats.wait_for(str(tmp_path / "met"), signs_at=str(sign), what="say where") == "here"
    turns += [lambda: sign.write_text("loading"), lambda: None, lambda: None]
    with pytest.raises(TemporaryError, match="did not say where"):
        heartbeats.wait_for(str(tmp_path / "nowhere"), signs_at=str(sign), what="say where")


def test_who_waits_passes_on_the_progress_of_the_other_and_none_of_its_own(
    turns: list[Callable[[], object]], place: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.json"
    seen: list[bool] = []
    turns += [
        lambda: (place.unlink(), seen.append(place.exists())),
        lambda: other.write_text("loading 1"),
        lambda: (seen.append(place.exists()), place.unlink(), heartbeats.beat("between"), place.unlink()),
        lambda: seen.append(place.exists()),
        lambda: other.write_text("loading 2"),
        lambda: (seen.append(place.exists()), (tmp_path / "ready").write_text("ready")),
    ]
    heartbeats.wait_for(str(tmp_path / "ready"), signs_at=str(other), what="get ready")
    assert seen == [False, True, False, True]


def test_waiting_goes_on_while_the_store_is_away(
    turns: list[Callable[[], object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def read_text(place: str) -> str:
        reads.append(place)
        if len(reads) < 4:
            raise ConnectionError("503")
        return "ready"

    monkeypatch.setattr(heartbeats.files, "read_text", read_text)
    turns += [lambda: None, lambda: None]
    assert heartbeats.wait_for("ready", signs_at="other.json", what="get ready") == "ready"
