"""No locked package has a vulnerability that was known when the floor was written."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def lines_of(path: str) -> list[str]:
    text = (ROOT / path).read_text(encoding="utf-8")
    return [line.partition("#")[0].strip() for line in text.splitlines() if line.partition("#")[0].strip()]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_each_locked_package_is_at_or_above_the_floor() -> None:
    pins = (each.partition("==") for each in lines_of("requirements.lock"))
    locked = {canonical(name): version for name, _, version in pins}
    floor = {canonical(each.name): each.specifier for each in map(Requirement, lines_of("scripts/security_floor.txt"))}
    assert floor.keys() <= locked.keys(), "a package that left the lock needs no floor"
    assert {name: locked[name] for name, least in floor.items() if locked[name] not in least} == {}
