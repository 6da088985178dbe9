"""The documentation says what the code does: generated pages, links, examples, and nothing left out."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from fastapi import FastAPI
from starlette.testclient import TestClient

from frenzy.adapters.k8s.pod_rules import parse_pod_rules
from frenzy.adapters.spec.cluster_file import parse_cluster
from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.adapters.spec.queue_file import parse_queue_rules
from frenzy.cli.main import make_cli
from frenzy.core.values.errors import ReasonCode
from frenzy.settings import CHECKOUT, variable_names
from frenzy.sim.profiles import parse_profiles
from frenzy.trainer.measure.case_grid import grid_cases
from frenzy.web import error_replies as errors
from tools.docs.__main__ import DOCS, pages, write_pages

OF_THE_ROOT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = sorted((*(CHECKOUT / name for name in OF_THE_ROOT), *DOCS.rglob("*.md")))
NAMES = [str(page.relative_to(CHECKOUT)) for page in PAGES]
every_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CALL = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:\S*bin/)?frenzy ([a-z][^|#;&\n]*)", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@cache
def cli() -> Any:
    """The command with all that it takes: making it for each call would be most of these tests' time."""
    return typer.main.get_group(make_cli())


def blocks(page: Path, language: str) -> Iterator[str]:
    return (text for kind, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language)


def headings(page: Path) -> tuple[str, ...]:
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    return tuple(re.findall(r"^#+ (.+)$", prose, re.MULTILINE))


def anchor(heading: str) -> str:
    """A heading's anchor as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("name", pages())
def test_generated_pages_are_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], "run: make docs"


def test_writing_the_pages_again_changes_nothing(tmp_path: Path) -> None:
    assert set(write_pages(tmp_path)) == set(pages())
    assert write_pages(tmp_path) == ()


def test_the_runbook_has_one_section_for_each_reason_code() -> None:
    named = [each for each in headings(DOCS / "runbook.md") if re.fullmatch(r"[A-Z]+(_[A-Z]+)+|[A-Z]{6,}", each)]
    assert sorted(named) == sorted(ReasonCode)


def test_each_section_of_the_runbook_says_what_to_look_at_and_what_to_do() -> None:
    text = (DOCS / "runbook.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## ([A-Z_]+)\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL))
    incomplete = [name for name, body in sections.items() if "**Look at:**" not in body or "**Do:**" not in body]
    assert incomplete == []


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        place, _, fragment = target.partition("#")
        file = (page.parent / place).resolve() if place else page
        if not file.exists() or (fragment and fragment not in map(anchor, headings(file))):
            broken.append(target)
    assert broken == []


def test_modules_that_the_architecture_names_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`", text)
    assert named
    assert [each for each in named if not (CHECKOUT / "plugins/frenzy" / each).exists()] == []


@cache
def from_the_index() -> set[Path]:
    """The pages that links lead to, from the README and the index on."""
    reachable: set[Path] = set()
    waiting = [CHECKOUT / "README.md", DOCS / "index.md"]
    while waiting:
        current = waiting.pop()
        if current in reachable:
            continue
        reachable.add(current)
        links = _LINK.findall(current.read_text(encoding="utf-8"))
        found = ((current.parent / each.partition("#")[0]).resolve() for each in links if "://" not in each)
        waiting += [each for each in found if each.suffix == ".md" and each.is_file()]
    return reachable


@every_page
def test_pages_can_be_found_from_the_index(page: Path) -> None:
    assert page in from_the_index()


@every_page
def test_examples_are_accepted(page: Path) -> None:
    for text in blocks(page, "yaml"):
        given = yaml.safe_load(text)
        if "nodes" in given:
            parse_cluster(text)
        elif "queues" in given:
            assert parse_queue_rules(text)
        elif "overlays" in given:
            assert parse_pod_rules(f"image: trainer:1\n{text}").overlays
        elif "profiles" in given:
            assert parse_profiles(text, source=page.name)
        elif "models" in given:
            assert grid_cases(given, name=page.name, seed=0)
        else:
            job_from_yaml(text)
    for text in blocks(page, "python"):
        compile(text, str(page), "exec")


@every_page
def test_commands_exist(page: Path) -> None:
    verbs = set(cli().commands)
    targets = set(re.findall(r"^([a-z0-9-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = "\n".join((*blocks(page, "bash"), *re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))))
    assert set(re.findall(r"(?:^|bin/)frenzy ([a-z]+)", shown, re.MULTILINE)) <= verbs
    assert set(re.findall(r"(?:^|\s)make ([a-z0-9-]+)", shown, re.MULTILINE)) <= targets


@every_page
def test_options_exist(page: Path) -> None:
    shown = "\n".join((*blocks(page, "bash"), *re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))))
    for call in _CALL.findall(shown):
        words = call.split()
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= options_of(words), call


@every_page
def test_commands_are_understood_with_their_arguments(page: Path) -> None:
    for call in _CALL.findall("\n".join((*blocks(page, "bash"), *blocks(page, "sh")))):
        understand(cli(), shlex.split(call, comments=True))


def test_a_command_with_a_wrong_value_is_not_understood() -> None:
    with pytest.raises(typer.BadParameter):
        understand(cli(), ["logs", "RUN", "--rank", "first"])


def understand(group: Any, words: Sequence[str]) -> None:
    """Raises where the command line would; runs nothing."""
    with group.make_context("frenzy", list(words)) as context:
        name, command, left = group.resolve_command(context, [*context._protected_args, *context.args])
        if hasattr(command, "commands"):
            understand(command, left)
        else:
            command.make_context(name, left, parent=context).close()


def options_of(words: Sequence[str]) -> set[str]:
    """What the (sub)command that ``words`` begin with takes."""
    command = cli()
    for word in words:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)}


def test_the_glossary_has_each_term_once_in_alphabetical_order_and_one_sentence() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)[1:]
    terms = [term.lower() for term, _ in rows]
    assert terms == sorted(set(terms))
    assert [meaning for _, meaning in rows if meaning.count(". ") or not meaning.endswith(".")] == []


def test_operations_name_every_setting_and_every_verb() -> None:
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    verbs = cli().commands
    assert [name for name in variable_names() if f"`{name}`" not in text] == []
    assert [verb for verb in verbs if f"`frenzy {verb}" not in text] == []


def test_the_form_of_an_error_is_as_documented() -> None:
    (shown,) = blocks(DOCS / "architecture.md", "json")
    documented = json.loads(shown)["detail"]
    app = FastAPI()
    errors.install(app)
    made = TestClient(app).get("/nowhere").json()["detail"]
    assert documented.keys() == made.keys()


def test_every_decision_is_in_the_list() -> None:
    listed = _LINK.findall((DOCS / "decisions/README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(each.name for each in (DOCS / "decisions").glob("*.md") if each.stem != "README")


@every_page
def test_nothing_is_left_to_be_done(page: Path) -> None:
    assert re.findall(r"\b(TODO|FIXME|TBD|XXX)\b", page.read_text(encoding="utf-8")) == []
