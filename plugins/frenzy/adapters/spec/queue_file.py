"""The queue file: shares, quotas, users and secrets of queues and teams, in YAML, checked at the edge.

    queues:
      research: {weight: 3}
      production: {weight: 1, max_gpus: 16, max_gpus_by_type: {a100-80: 8}, users: [ada], max_priority: 100}
    teams:
      vision: {max_gpus: 8, members: [ada, ben], secrets: ["env:WANDB_API_KEY", "k8s:vision/*"]}
      "*": {max_gpus: 4}        # every team that is not named, each by itself

Where queues are named, a job must name one of them; ``default`` is the queue of a job that names none.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frenzy.adapters.spec.refusals import Location, file_text, refused, violations_of
from frenzy.adapters.spec.yaml_core import FILE, load_yaml
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import SpecError
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.job import MAX_PRIORITY, NAME_PATTERN
from frenzy.core.values.queue_rules import ANY_OTHER, QueueRule, QueueRules, Quota, TeamRule, idle_quota

log = logging.getLogger(__name__)

_TEAM: Final = rf"^\*$|{NAME_PATTERN}"
_REFERENCE: Final = r"^(env|k8s):."
_NAME_WORDS: Final = "lower-case letters, digits, - and _"
_PATTERNS: Final = {
    NAME_PATTERN: _NAME_WORDS,
    _TEAM: f"{_NAME_WORDS}, or {ANY_OTHER!r} for every other team",
    _REFERENCE: "env:NAME or k8s:secret/key; * stands for any text",
}


def load_queue_rules(path: str | Path) -> QueueRules:
    """The rules in the YAML file at ``path``.

    Raises SpecError with every violation: the path of the field, its value, what is allowed.
    """
    text = file_text(path, "queue file")
    try:
        return parse_queue_rules(text)
    except SpecError as error:
        raise SpecError(replace(each, path=f"{path}: {each.path}") for each in error.violations) from error


def parse_queue_rules(text: str) -> QueueRules:
    """The rules in YAML ``text``. Raises SpecError as ``load_queue_rules`` does."""
    try:
        file = _QueueFile.model_validate(load_yaml(text, FILE) or {})
    except ValidationError as error:
        raise SpecError(violations_of(error, _fields_at, "queue file", _PATTERNS)) from error
    if not file.queues and not file.teams:
        raise refused("queue file", "nothing", "name queues, teams or both")
    return QueueRules(
        queues=tuple(_queue_rule(name, entry or _QueueEntry()) for name, entry in file.queues.items()),
        teams=tuple(_team_rule(name, entry or _TeamEntry()) for name, entry in file.teams.items()),
    )


def idle_quotas(rules: QueueRules, *clusters: Cluster) -> list[str]:
    """A sentence on each quota for a GPU type that none of ``clusters`` has: it limits nothing.

    Raises SpecError for those that name no card of the catalogue either.
    """
    there = {gpu.name: gpu for each in clusters for gpu in each.gpu_types}.values()
    if refused := rules.unknown_gpu_types(there, [each.gpu for each in CATALOGUE.values()]):
        raise SpecError(refused)
    return [idle_quota(each) for each in rules.unknown_gpu_types(there)]


class QueueFile:
    """The rules in a file. A change is taken over when it is next asked; one that is refused is logged, and the
    rules stay as they were.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises SpecError for a bad file."""
        self._path = Path(path)
        self._seen = self._stamp()
        self._rules = load_queue_rules(path)

    def rules(self) -> QueueRules:
        """The rules as they are now."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._rules = load_queue_rules(self._path)
            except SpecError as error:
                log.error("%s is refused, the queues stay as they were: %s", self._path, error)
        return self._rules

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Gpus = Annotated[int, Field(ge=0, strict=True)]
_User = Annotated[str, Field(min_length=1, max_length=250)]
_Secret = Annotated[str, Field(pattern=_REFERENCE)]


class _Entry(_Strict):
    max_gpus: _Gpus | None = None
    max_gpus_by_type: dict[str, _Gpus] = Field(default_factory=dict)
    secrets: list[_Secret] = Field(default_factory=list)


class _TeamEntry(_Entry):
    members: list[_User] | None = None


class _QueueEntry(_Entry):
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] = 1.0
    users: list[_User] | None = None
    max_priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY, strict=True)] | None = None


class _QueueFile(_Strict):
    queues: dict[Annotated[str, Field(pattern=NAME_PATTERN)], _QueueEntry | None] = Field(default_factory=dict)
    teams: dict[Annotated[str, Field(pattern=_TEAM)], _TeamEntry | None] = Field(default_factory=dict)


def _queue_rule(name: str, entry: _QueueEntry) -> QueueRule:
    return QueueRule(
        name=name,
        weight=entry.weight,
        quota=_quota(entry),
        users=None if entry.users is None else tuple(entry.users),
        max_priority=entry.max_priority,
        secrets=tuple(entry.secrets),
    )


def _team_rule(name: str, entry: _TeamEntry) -> TeamRule:
    members = None if entry.members is None else tuple(entry.members)
    return TeamRule(name=name, quota=_quota(entry), members=members, secrets=tuple(entry.secrets))


def _quota(entry: _Entry) -> Quota:
    return Quota(max_gpus=entry.max_gpus, max_gpus_by_type=tuple(entry.max_gpus_by_type.items()))


def _fields_at(location: Location) -> list[str]:
    entry: type[BaseModel] = _QueueFile
    if len(location) > 1:
        entry = _QueueEntry if location[0] == "queues" else _TeamEntry
    return list(entry.model_fields)
