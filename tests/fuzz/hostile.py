"""Inputs that once did harm, and ways to make more: texts, JSON values, mutations of good documents."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any, Final

DEEP: Final = 100_000

# By name, so that a failure says which attack is back.
YAML_TEXTS: Final[dict[str, str]] = {
    "flow sequences": "[" * 60_000,
    "flow mappings": "{a: " * 60_000,
    "block sequences": "- " * 60_000,
    "complex keys": "? " * 60_000,
    "deep JSON": '{"a":' * 40_000 + "1" + "}" * 40_000,
    "merge keys": "a: &l {x: 1}\n"
    + "".join(f"l{i}: &l{i} {{<<: [{', '.join(['*l' + str(i - 1 if i else '')] * 10)}]}}\n" for i in range(7)),
    "billion laughs": "a: &l [x]\n"
    + "".join(f"l{i}: &l{i} [{', '.join(['*l' + str(i - 1 if i else '')] * 10)}]\n" for i in range(9)),
    "alias of itself": "a: &a [*a]",
    "many digits": "a: " + "9" * 5_000,
    "many hex digits": "0x" + "f" * 200_000 + ": 1",
    "many JSON digits": '{"a": ' + "9" * 5_000 + "}",
    "infinite": "a: 1e999",
    "lone surrogate": '{"a": "\\ud800"}',
    "lone surrogate in a key": '{"\\udfff": 1}',
    "NUL": '{"a": "\\u0000"}',
    "tag without value": "a: !!float ''",
    "tag of a bad time": "a: !!timestamp foo",
    "tag of a bad truth": "a: !!bool x",
    "tag of Python": "a: !!python/object/apply:os.system [id]",
    "unknown keys": "{" + ", ".join(f"key{i}: 1" for i in range(4_900)) + "}",
    "long unknown key": "? " + "max_steps" * 2_000 + "\n: 1",
    "wide": "[" + "1," * 130_000 + "1]",
    "long text": "description: " + "x" * 250_000,
    "not UTF-8's": "a: \ufffe\ud800",
}
VALUES: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1, 2, 7, 1.5, -0.0, 1e308, -1e308, 1e-308, 5e-324, 1e30, 10**12, 10**18, 2**31, 2**63 - 1,
    2**63, -(2**63), 10**30, 10**400, 720_720, 1_000_000, 524_288, float("nan"), float("inf"), "", " ", "0", "soon",
    "NaN", "\x00", "\ud800", "\U0001f600", "x" * 5_000, "../../etc/passwd", "{{ 1 }}", "*", "9999-12-31T23:59:59+00:00",
    "0001-01-01T00:00:00+14:00", "2027-01-31", "1:30", "10 GiB", "1e400 GiB", "9" * 400 + " GB", "1 GFLOPS", "5m",
    "9" * 400 + "h", [], [None], [[]], ["a", "a"], [1, [2, [3]]], {}, {"a": None}, {"": ""}, {"*": {}},
    {"model_type": "gpt2"}, {"k8s": 1}, [{}] * 40, "a\nb", "\u2028", "env:X", "a100-80", "t4",
)  # fmt: skip


def mutated(document: Any, random: Random) -> Any:
    """``document`` with one to four places changed: a value replaced, removed, doubled, moved or nested."""
    changed = copy.deepcopy(document)
    for _ in range(random.randint(1, 4)):
        places = list(_places(changed))
        if places:
            _change(*random.choice(places), random)
    return changed


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(document) if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield document, key
        yield from _places(document[key])


def _change(holder: Any, key: Any, random: Random) -> None:
    choice = random.random()
    if choice < 0.75:
        holder[key] = copy.deepcopy(random.choice(VALUES))
    elif choice < 0.85:
        del holder[key]
    elif choice < 0.95 and isinstance(holder, dict):
        name = random.choice(["", "x" * 600, "\ud800", "name", "max_steps", "a.b", f"{key}s", "<<"])
        holder[name] = holder.pop(key)
    else:
        holder[key] = [copy.deepcopy(holder[key])] * random.choice([1, 2, 70])


def garbled(text: str, random: Random) -> str:
    """``text`` with pieces cut, doubled, or replaced by what means something to a parser."""
    for _ in range(random.randint(1, 5)):
        start, length = random.randrange(len(text) + 1), random.choice([0, 1, 2, 8, 40])
        piece = random.choice(
            [
                "[",
                "{",
                "}",
                ":",
                "- ",
                "? ",
                "&a ",
                "*a",
                "<<: *a\n",
                "!!int ",
                "'",
                '"',
                "\\ud800",
                "\x00",
                "\t",
                "---\n",
            ]
            + [
                "#",
                "|\n",
                ">\n",
                "9" * 400,
                "1e999",
                "\u2028",
                "%YAML 9.9\n",
                text[start : start + 30],
                "null",
                "~",
                "\r",
            ]
        )
        text = text[:start] + piece * random.choice([1, 1, 1, 3, 100]) + text[start + length :]
    return text


def as_json(document: Any) -> bytes:
    """``document`` as a client without scruples sends it."""
    return json.dumps(document).encode()
