"""Chats, preferences and labelled texts out of Shakespeare's plays: the data of the jobs in include/jobs/recipes.

python include/recipes/plays.py include/data/recipes
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

PLAYS = Path(__file__).parents[1] / "data/tinyshakespeare.txt"
ROWS = 160
LONGEST = 120
SPEAKERS = 4


def speeches(text: str) -> list[tuple[str, str]]:
    """(speaker, words) in the order of the plays; only short ones, so that several fit a sequence."""
    parts = (each.partition(":\n") for each in text.split("\n\n"))
    return [(who, " ".join(words.split())) for who, _, words in parts if 0 < len(words) <= LONGEST]


def message(role: str, words: str) -> dict[str, str]:
    return {"role": role, "content": words}


def chats(spoken: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Four speeches each: the other asks, the model answers, twice."""
    for first in range(0, len(spoken) - 4, 4):
        turns = zip(("user", "assistant") * 2, spoken[first : first + 4], strict=True)
        yield {"messages": [message(role, words) for role, (_, words) in turns]}


def preferences(spoken: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """What was answered, and what somebody says elsewhere."""
    for here in range(0, len(spoken) // 2 - 1, 2):
        elsewhere = spoken[here + len(spoken) // 2]
        if elsewhere[1] != spoken[here + 1][1]:
            yield {
                "prompt": [message("user", spoken[here][1])],
                "chosen": [message("assistant", spoken[here + 1][1])],
                "rejected": [message("assistant", elsewhere[1])],
            }


def labelled(spoken: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Who says it: the speakers with most speeches, in turn, so that each has as many rows."""
    most = [who for who, _ in Counter(who for who, _ in spoken).most_common(SPEAKERS)]
    theirs = [[words for who, words in spoken if who == each] for each in most]
    for row in zip(*theirs, strict=False):
        yield from ({"text": words, "speaker": who} for who, words in zip(most, row, strict=True))


def lines(rows: Iterable[dict[str, Any]]) -> str:
    """The first rows as JSON lines."""
    return "".join(json.dumps(each) + "\n" for each in islice(rows, ROWS))


def files() -> dict[str, str]:
    """Name to text."""
    spoken = speeches(PLAYS.read_text(encoding="ascii"))
    made = {"chats": chats(spoken), "preferences": preferences(spoken), "speakers": labelled(spoken)}
    return {f"{name}.jsonl": lines(rows) for name, rows in made.items()}


if __name__ == "__main__":
    for name, text in files().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="ascii")
