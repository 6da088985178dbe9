"""List, watch, and what happens between: every order of answers that a server may give."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from frenzy.adapters.k8s.reflection import GoneError, ListFailedError, Reflection

Json = dict[str, Any]


class Script:
    """A source that answers what it is told, and notes what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def list(self) -> tuple[Iterable[Json], str]:
        self.asked.append("list")
        return self._next()

    def watch(self, version: str) -> Iterator[Json]:
        self.asked.append(f"watch {version}")
        yield from self._next()

    def _next(self) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return broken_off(answer) if isinstance(answer, list) else answer

    @property
    def is_over(self) -> bool:
        return not self._answers


def broken_off(events: list[Any]) -> Iterator[Json]:
    """``events`` up to the first failure among them, if there is one."""
    for each in events:
        if isinstance(each, Exception):
            raise each
        yield each


class Until:
    """Stops when the script is over; notes the pauses."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self.pauses: list[float] = []

    def wait(self, timeout: float) -> bool:
        self.pauses.append(timeout)
        return False

    def is_set(self) -> bool:
        return self._is_over()


def found(name: str, version: int, value: str = "") -> Json:
    return {"metadata": {"uid": f"uid-{name}", "name": name, "resourceVersion": str(version)}, "value": value}


def event(kind: str, name: str, version: int, value: str = "") -> Json:
    return {"type": kind, "object": found(name, version, value)}


def kept(each: Json) -> str:
    if each["value"] == "odd":
        raise ValueError("an effect that nobody knows")
    return str(each["metadata"]["name"] + each["value"])


def play(*answers: Any) -> tuple[Reflection[str], Script, Until]:
    script = Script(*answers)
    until = Until(lambda: script.is_over)
    reflection = Reflection(script, kept, name="things")
    reflection.run(until)
    return reflection, script, until


def test_changes_after_the_list_are_taken_over_in_their_order() -> None:
    events = [
        event("ADDED", "c", 11),
        event("MODIFIED", "a", 12, "!"),
        event("DELETED", "b", 13),
        event("DELETED", "never-there", 14),
    ]
    reflection, script, until = play(([found("a", 1), found("b", 2)], "10"), events, [])
    assert sorted(reflection.snapshot()[1]) == ["a!", "c"]
    assert script.asked == ["list", "watch 10", "watch 14"]
    assert until.pauses == []


def test_all_is_listed_again_once_a_watch_was_trusted_for_so_long() -> None:
    script = Script(([found("a", 1)], "10"), ([found("b", 2)], "20"))
    reflection = Reflection(script, kept, name="things", relist_s=0.0)
    reflection.run(Until(lambda: script.is_over))
    assert (reflection.snapshot()[1], script.asked) == (("b",), ["list", "list"])


def test_a_bookmark_moves_the_version_and_nothing_else() -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "99"}}}
    reflection, script, _ = play(([found("a", 1)], "10"), [bookmark], [])
    assert reflection.snapshot() == (1, ("a",))
    assert script.asked[-1] == "watch 99"


@pytest.mark.parametrize("gone", [GoneError("old"), [{"type": "ERROR", "object": {"code": 410, "message": "old"}}]])
def test_a_version_that_is_gone_means_a_new_list_at_once(gone: Any) -> None:
    reflection, script, until = play(([found("a", 1)], "10"), gone, ([found("b", 20)], "20"), [])
    assert reflection.snapshot()[1] == ("b",)
    assert script.asked == ["list", "watch 10", "list", "watch 20"]
    assert until.pauses == []


def test_versions_that_are_gone_as_soon_as_they_are_listed_are_not_listed_in_a_hot_loop() -> None:
    gone = GoneError("too old")
    _, script, until = play(
        ([], "1"), gone, ([], "2"), gone, ([], "3"), gone, ([], "4"), [event("ADDED", "a", 5)], gone, ([], "6")
    )
    assert script.asked.count("list") == 5
    assert until.pauses == [0.5, 1]


def test_lists_that_are_gone_before_their_last_page_are_not_asked_for_in_a_hot_loop() -> None:
    _, _, until = play(GoneError("page"), GoneError("page"), ([found("a", 1)], "1"), [])
    assert until.pauses == [0.5, 1]


def test_a_watch_that_breaks_off_goes_on_after_its_last_event_and_soon() -> None:
    """Something between cuts connections after a minute, however much they tell."""
    cut = ListFailedError("IncompleteRead")
    watches = [[event("ADDED", "b", version), cut] for version in range(11, 17)]
    reflection, script, until = play(([found("a", 1)], "10"), *watches, [])
    assert script.asked == ["list", *(f"watch {version}" for version in range(10, 17))]
    assert until.pauses == [0.5] * 6
    assert reflection.snapshot()[1] == ("a", "b")


def test_a_pod_that_went_is_not_back_while_a_broken_watch_is_told_again() -> None:
    events = [event("ADDED", "b", 11), event("DELETED", "b", 12), ListFailedError("reset by peer")]
    _, script, _ = play(([], "10"), events, [])
    assert script.asked[-1] == "watch 12"


def test_what_was_known_stays_known_while_the_server_is_away_and_pauses_grow() -> None:
    away = [ListFailedError("connection refused")] * 8
    reflection, script, until = play(([found("a", 1)], "10"), *away, [])
    assert reflection.snapshot()[1] == ("a",)
    assert script.asked == ["list", *["watch 10"] * 9]
    assert until.pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert reflection.problem is None


def test_a_word_of_the_server_ends_the_growing_of_pauses() -> None:
    failure = ListFailedError("x")
    _, _, until = play(([], "1"), failure, failure, [event("ADDED", "a", 2)], failure, [])
    assert until.pauses == [0.5, 1, 0.5]


def test_watches_that_end_as_they_begin_are_not_asked_for_again_at_once() -> None:
    _, script, until = play(([], "1"), [], [], [event("ADDED", "a", 2)], [])
    assert script.asked == ["list", "watch 1", "watch 1", "watch 1", "watch 2"]
    assert until.pauses == [0.5, 0.5]


def test_an_error_in_a_watch_is_no_end() -> None:
    wrong = [{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}]
    reflection, script, until = play(([found("a", 1)], "10"), wrong, [event("ADDED", "b", 11)])
    assert reflection.snapshot()[1] == ("a", "b")
    assert until.pauses == [0.5]


def test_the_generation_changes_with_what_is_kept_and_not_with_every_heartbeat() -> None:
    heartbeats = [event("MODIFIED", "a", version) for version in range(11, 20)]
    reflection, _, _ = play(([found("a", 1)], "10"), heartbeats, [])
    assert reflection.snapshot()[0] == 1
    reflection, _, _ = play(([found("a", 1)], "10"), [*heartbeats, event("MODIFIED", "a", 21, "!")], [])
    assert reflection.snapshot()[0] == 2


def test_the_first_list_is_tried_until_it_comes() -> None:
    reflection, script, until = play(ListFailedError("x"), ListFailedError("x"), ([found("a", 1)], "10"), [])
    assert reflection.has_listed.is_set()
    assert script.asked == ["list", "list", "list", "watch 10"]
    assert until.pauses == [0.5, 1]


def test_what_nobody_expected_is_a_failure_like_others_and_means_a_new_list() -> None:
    no_kubeconfig = RuntimeError("no configuration yet")
    reflection, script, until = play(no_kubeconfig, ([found("a", 1)], "10"), KeyError("type"), ([found("b", 2)], "20"))
    assert script.asked == ["list", "list", "watch 10", "list"]
    assert until.pauses == [0.5, 0.5]
    assert reflection.snapshot()[1] == ("b",)


def test_a_failure_nobody_expected_says_what_it_was(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        play(RuntimeError("no configuration yet"), ([], "1"))
    assert "things: RuntimeError: no configuration yet" in caplog.text


def test_what_is_kept_is_current_while_the_server_answers_and_for_a_while() -> None:
    reflection, _, _ = play(([found("a", 1)], "10"), [event("ADDED", "b", 11)])
    assert reflection.is_current(0.0, max_age_s=60.0)
    assert not reflection.is_current(0.0, max_age_s=0.0)


def test_an_object_that_cannot_be_read_is_passed_over_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    odd = [event("MODIFIED", "odd-one", version, "odd") for version in (11, 12)]
    listed = ([found("odd-one", 1, "odd"), found("a", 2)], "10")
    with caplog.at_level(logging.WARNING):
        reflection, script, until = play(listed, [*odd, event("ADDED", "b", 13)], [])
    assert reflection.snapshot()[1] == ("a", "b")
    assert (script.asked[-1], until.pauses) == ("watch 13", [])
    assert caplog.text.count("odd-one of the things cannot be read") == 1


def test_an_object_that_becomes_unreadable_stays_as_it_was_known_until_it_goes() -> None:
    odd = [event("MODIFIED", "a", 11, "odd")]
    assert play(([found("a", 1)], "10"), odd, [])[0].snapshot()[1] == ("a",)
    assert play(([found("a", 1)], "10"), odd, GoneError("old"), ([found("a", 12, "odd")], "12"))[0].snapshot()[1] == (
        "a",
    )
    assert play(([found("a", 1)], "10"), [*odd, event("DELETED", "a", 12)], [])[0].snapshot()[1] == ()
