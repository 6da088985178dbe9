"""What commands print with --json is what docs/operations.md says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.cli.commands.test_logs import written
from tests.unit.cli.commands.test_outputs import finished, stopped
from tests.unit.cli.conftest import Said, World

from frenzy.api import endpoints
from frenzy.cli.commands.server import connect
from frenzy.settings import CHECKOUT

Command = Callable[..., Said]
PAGE = CHECKOUT / "docs/operations.md"
RUNS: dict[str, Callable[[World, str], str]] = {
    "models RUN": finished,
    "logs RUN": lambda world, name: written(world, name, "a line\n"),
    "checkpoints RUN": stopped,
    "resume RUN": stopped,
    "retry RUN": stopped,
}


def documented() -> dict[str, str]:
    """What is printed, by command."""
    part = PAGE.read_text(encoding="utf-8").partition("### What `--json` prints")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", part, re.MULTILINE))


@pytest.fixture
def ask(online: Command, world: World, spec: Path) -> Callable[[str], str]:
    """Runs a documented command with --json; its output."""

    def call(command: str) -> str:
        make = RUNS.get(command, lambda world, name: world.registered(name).run.run_key)
        run_key = make(world, f"of-{command.replace(' ', '-').lower()}")
        if command.startswith("checkpoints"):
            assert isinstance(world.services.runs, InMemoryRunStore)
            world.services.runs.write_checkpoint(run_key, 5)
        more = {"clean": ["--older-than", "1"], "sweep SPEC": ["--set", "training.max_steps=5,10"]}.get(command, [])
        said = online(*command.replace("RUN", run_key).replace("SPEC", str(spec)).split(), *more, "--json")
        assert said.status in (0, 1), said.err
        return said.out

    return call


def schemas() -> dict[str, Any]:
    with connect() as api:
        found: dict[str, Any] = api.ask(endpoints.openapi())["components"]
    return found


@pytest.mark.parametrize("command", [each for each in documented() if each not in ("plan SPEC",)])
def test_a_command_prints_what_is_documented(command: str, ask: Callable[[str], str]) -> None:
    words = documented()[command]
    printed = ask(command)
    value = json.loads(printed) if not command.startswith("logs") else json.loads(printed.splitlines()[0])
    named = re.match(r"`(\[?)(\w+)\]?`", words)
    if named is None:
        fields = set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", words.partition(";")[0])))
        one = value[0] if isinstance(value, list) else value
        assert set(one) == fields
        return
    components = schemas()
    schema = {"$ref": f"#/components/schemas/{named[2]}", "components": components}
    values = value if named[1] else [value]
    assert isinstance(values, list)
    known = components["schemas"][named[2]]["properties"]
    for each in values:
        assert set(each) <= set(known)
        version = {"schema_version": 1} if "schema_version" in known else {}
        assert not list(Draft202012Validator(schema).iter_errors({**version, **each}))


def test_every_command_with_the_option_is_documented(frenzy: Command) -> None:
    verbs = {each.split()[0] for each in documented()}
    listed = re.findall(r"^\s{2}(\w+)\s{2,}", frenzy("--help").out.partition("Commands:")[2], re.MULTILINE)
    with_option = {each for each in listed if "--json" in frenzy(each, "--help").out}
    assert with_option - {"simulate", "demo"} == verbs
    assert set(listed) - with_option == {"demo", "down", "init", "marp", "metrics", "up"}
