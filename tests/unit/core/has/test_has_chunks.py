"""A sequence kept in chunks is the sorted list it stands for, whatever was put and taken."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.has.chunks import Chunks


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2000)), max_size=60), st.integers(0, 1500))
def test_chunks_are_the_sorted_list_they_stand_for(changes: list[tuple[bool, int]], start: int) -> None:
    known = [2 * number for number in range(start)]
    chunks = Chunks.of(known)
    for put, number in changes:
        place = chunks.place(number, int)
        found = chunks.at(place)
        at = bisect_left(known, number)
        assert found == (known[at] if at < len(known) else None)
        if put:
            known.insert(at, number)
            chunks = chunks.put(number, int)
        elif found is not None:
            del known[at]
            chunks = chunks.without(place)
        assert list(chunks) == known
    assert len(chunks) == len(known)
    assert chunks == Chunks.of(known)
    assert chunks != Chunks.of([*known, 9999])
    assert all(chunks.parts)


def test_chunks_stay_short() -> None:
    chunks = Chunks.of(range(0))
    for number in range(3000):
        chunks = chunks.put(number, int)
    assert max(len(part) for part in chunks.parts) <= 512
    assert chunks.first == 0
