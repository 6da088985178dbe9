"""Every combination of some values of a specification: the runs of a sweep, each with a specification of its own.

combinations("include/jobs/small.yaml", {"training.learning_rate": [1e-4, 3e-4], "training.lora.rank": [4, 16]})
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

from frenzy.adapters.spec.job_spec import job_from_document, job_to_document
from frenzy.adapters.spec.refusals import refused, shown
from frenzy.adapters.spec.spec_file import read_text
from frenzy.adapters.spec.yaml_core import load_yaml
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.resource_plan import short_hash

MOST_RUNS: Final = 32
_LONGEST_NAME: Final = 63
_HASH: Final = 8
_HIDDEN: Final = frozenset({"env", "secrets"})
# Below, 0.0003 is written 3e-4.
_SMALL: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One run of a sweep: its values by dotted path, and its specification, under a name that has the values."""

    name: str
    values: Mapping[str, Any]
    document: dict[str, Any]


def combinations(
    job: TrainingJob | Mapping[str, Any] | str | os.PathLike[str],
    settings: Mapping[str, Sequence[Any]],
    *,
    max_runs: int = MOST_RUNS,
) -> list[dict[str, Any]]:
    """A specification for each combination of ``settings``, checked; what ``frenzy_training.expand(job=...)`` takes.

    job: what all have in common: a value, a mapping, or the path of a YAML file.
    settings: values by the dotted path of their field; the last one changes fastest.
    Raises SpecError with every violation of any of them.
    """
    return [each.document for each in combined(_document(job), settings, max_runs=max_runs)]


def combined(
    document: Mapping[str, Any], settings: Mapping[str, Sequence[Any]], *, max_runs: int = MOST_RUNS
) -> tuple[Combination, ...]:
    """The same with the values and names of each. Raises SpecError with every violation."""
    _refuse_bad_settings(settings, max_runs)
    chosen = [dict(zip(settings, values, strict=True)) for values in product(*settings.values())]
    names = _names(str(document.get("name", "")), chosen)
    found = tuple(
        Combination(name=name, values=values, document=_changed(document, {"name": name, **values}))
        for name, values in zip(names, chosen, strict=True)
    )
    violations = dict.fromkeys(each for combination in found for each in _violations(combination.document))
    if violations:
        raise SpecError(violations)
    return found


def settings_of(texts: Iterable[str]) -> dict[str, list[Any]]:
    """``training.learning_rate=1e-4,3e-4`` and the like as values by path: what YAML reads between brackets.

    Raises SpecError for a text of another form, and for a path that is given twice.
    """
    settings: dict[str, list[Any]] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        path = path.strip()
        if not (path and equals):
            raise refused("--set", shown(text), "write a field and its values: training.learning_rate=1e-4,3e-4")
        if path in settings:
            raise refused(path, shown(values), "it is given twice; list all its values once, with commas")
        settings[path] = load_yaml(f"[{values}]")
    return settings


def _document(job: Any) -> Mapping[str, Any]:
    if isinstance(job, TrainingJob):
        return job_to_document(job)
    document = job if isinstance(job, Mapping) else load_yaml(read_text(Path(job)))
    if not isinstance(document, Mapping):
        job_from_document(document)  # says what a specification is
    return dict(document)


def _refuse_bad_settings(settings: Mapping[str, Sequence[Any]], max_runs: int) -> None:
    if not settings:
        raise refused("the settings", "nothing", "name at least one field and its values")
    for path, values in settings.items():
        _refuse_bad_values(path, values)
    count = prod(map(len, settings.values()))
    if count > max_runs:
        raise refused("the settings", f"{count} combinations", f"at most {max_runs} runs; raise --max-runs (max_runs)")


def _refuse_bad_values(path: str, values: Any) -> None:
    if path == "name":
        raise refused(path, shown(values), "each run is named after the job and its values; set other fields")
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise refused(path, shown(values), "give a list of at least one value")
    repeated = [value for at, value in enumerate(values) if value in values[:at]]
    if repeated:
        raise refused(path, shown(repeated[0]), "it is given twice; give each value once")


def _changed(document: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``document`` with ``values``; sections that it lacks are made."""
    changed = copy.deepcopy(dict(document))
    for path, value in values.items():
        *sections, name = path.split(".")
        place = changed
        for at, section in enumerate(sections):
            if place.get(section) is None:
                place[section] = {}
            place = place[section]
            if not isinstance(place, dict):
                raise refused(path, shown(place), f"{'.'.join(sections[: at + 1])} is no section, it has no fields")
        place[name] = copy.deepcopy(value)
    return changed


def _violations(document: Mapping[str, Any]) -> tuple[Violation, ...]:
    try:
        job_from_document(document)
    except SpecError as error:
        return error.violations
    return ()


def _names(job: str, chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """The job's name and the values, as ``small-lr1e-4-rank16``; all are numbered where two would have the same."""
    texts = ["-".join(f"{_short(path)}{_text(path, value)}" for path, value in values.items()) for values in chosen]
    if len(set(texts)) < len(texts):
        texts = [f"{text}-{number}" for number, text in enumerate(texts, start=1)]
    return [_fitting(job, text) for text in texts]


def _fitting(job: str, text: str) -> str:
    name = f"{job}-{text}"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - _HASH - 1].rstrip('-_')}-{short_hash(name, length=_HASH)}"


def _short(path: str) -> str:
    """``lr`` for ``training.learning_rate``, ``rank`` for ``training.lora.rank``, ``layer`` for ``n_layer``."""
    words = [each for each in re.split("[^a-z0-9]+", path.rpartition(".")[2].lower().removeprefix("n_")) if each]
    return words[0] if len(words) == 1 else "".join(word[0] for word in words)


def _text(path: str, value: Any) -> str:
    """``value`` in letters that a job's name may have, also at its end; none where everybody may not see it."""
    if path.partition(".")[0] in _HIDDEN:
        return ""
    text = str(value)
    if isinstance(value, float):
        text = f"{value:.6e}" if 0 < abs(value) < _SMALL else f"{value:g}"
        text = re.sub(r"\.?0*e([-+])0*(\d)", r"e\1\2", text)
    return re.sub("[^a-z0-9-]+", "_", text.lower().replace("/", "-")).strip("-_") or "none"
