"""The complete Hugging Face config of a model: what the memory model reads.

Defaults are filled in by transformers itself, so that planner and trainer see the same model. It
is asked in a process of its own that is kept from importing torch (a config needs none of it):
half the time, and nothing of either stays in the caller; Airflow's variables are kept from it. Answers
are kept in a folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TextIO

from frenzy.adapters.library_process import TIMEOUT_S, ask
from frenzy.adapters.misspelt_sizes import misspelt_sizes
from frenzy.core.memory.model_trace import library_config
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, SpecError, TemporaryError, Violation
from frenzy.core.values.job import ModelSpec

_WRITTEN: Final = "model.config"
# Of what is kept: another number where other keys of a written config are refused.
_CHECK: Final = 3
_CONFIG_FILE: Final = "config.json"
# So transformers begins the list of all families when it does not know one.
_BEFORE_FAMILIES: Final = "Should contain one of "
_MOST_CHARACTERS: Final = 4 * 1024**2
# Of the time that an answer has, after as many that came too late.
_MOST_DOUBLED: Final = 3
logger = logging.getLogger(__name__)
_READER: Final = """
import json, os, sys, tempfile
sys.modules["torch"] = None
asked, commit, names, away = json.load(sys.stdin), None, [], None
if "hub_id" in asked:
    from frenzy.adapters.hub_connection import why_away
    if away := why_away(os.environ):
        os.environ["HF_HUB_OFFLINE"] = "1"  # what was fetched before is there at once
from transformers import AutoConfig
try:
    if "hub_id" in asked:
        from transformers.utils.hub import cached_file
        with tempfile.TemporaryDirectory() as nowhere:  # elsewhere a folder of its name would be taken for it
            os.chdir(nowhere)
            found = cached_file(asked["hub_id"], "config.json", revision=asked["revision"])
            commit = os.path.basename(os.path.dirname(found))  # a folder for each in the cache of the hub's client
            config = AutoConfig.from_pretrained(os.path.dirname(found), trust_remote_code=False)
    else:
        from frenzy.trainer.model.library_configs import config_of, field_names
        config = config_of({**asked["options"], "model_type": asked["family"]})
        names = field_names(config)
    answer = {"config": json.loads(config.get_text_config().to_json_string(use_diff=False))}
    answer |= {"commit": commit, "names": names}
except Exception as error:
    answer = {"error": str(error) or type(error).__name__, "away": away}
print(json.dumps(answer))
"""


def resolve_model_config(model: ModelSpec, *, cache_folder: Path | None = None) -> dict[str, Any]:
    """``model``'s config with every default, as plain JSON types.

    cache_folder: where answers for inline and local configs are kept, if anywhere.
    Raises SpecError when the spec's config or folder is refused, PermanentError when a hub id
    cannot be read, TemporaryError when the hub cannot be reached.
    """
    return resolve_model(model, cache_folder=cache_folder)[1]


def resolve_model(model: ModelSpec, *, cache_folder: Path | None = None) -> tuple[ModelSpec, dict[str, Any]]:
    """``model`` with the commit that its hub id and revision stand for now, and its config; else as above."""
    if model.config is not None:
        return model, _complete(dict(model.config), _WRITTEN, cache_folder)
    if model.path is not None:
        return model, _complete(_read_folder(model.path), "model.path", cache_folder)
    answer = _from_hub(model)
    return replace(model, revision=answer["commit"]), answer["config"]


def _complete(given: Mapping[str, Any], path: str, cache_folder: Path | None) -> dict[str, Any]:
    kept = None if cache_folder is None else cache_folder / f"{_digest(given, path)}.json"
    with turn(kept):
        return _kept_or_asked(given, path, kept)


@contextmanager
def turn(kept: Path | None) -> Iterator[None]:
    """One process at a time finds out what is ``kept``: the runs of a sweep do so all at once."""
    with ExitStack() as stack:
        # It only saves time: where nothing may be written, each asks.
        with suppress(OSError):
            if kept is not None and not kept.is_file():
                kept.parent.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context(kept.with_suffix(".lock").open("w"))
                _wait_for(lock)
        yield


def _wait_for(lock: TextIO) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("Another process asks about the same model: its answer is waited for.")
        fcntl.flock(lock, fcntl.LOCK_EX)


def ask_patiently(program: str, asked: Mapping[str, Any], kept: Path | None, **of_ask: Any) -> Any:
    """The answer of ``ask``. What took too long is remembered beside ``kept``: the next try has twice the time."""
    late = None if kept is None else kept.with_suffix(".late")
    tries = min(_MOST_DOUBLED, (known(late) or {}).get("tries", 0))
    timeout_s = of_ask.pop("timeout_s", TIMEOUT_S) * 2**tries
    try:
        answer = ask(program, asked, timeout_s=timeout_s, **of_ask)
    except TemporaryError:
        if late is not None:
            keep(late, {"tries": tries + 1})
        raise
    if late is not None and tries:
        late.unlink(missing_ok=True)
    return answer


def known(kept: Path | None) -> dict[str, Any] | None:
    """What is kept there; None where it is nothing, or cannot be read."""
    if kept is not None:
        with suppress(OSError, ValueError):
            document: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
            return document
    return None


def _kept_or_asked(given: Mapping[str, Any], path: str, kept: Path | None) -> dict[str, Any]:
    if (document := known(kept)) is not None:
        return document
    given = library_config(given)
    options = dict(given)
    answer = ask_patiently(_READER, {"family": str(options.pop("model_type", "")), "options": options}, kept)
    if "config" not in answer:
        raise SpecError([_violation(given, path, str(answer["error"]))])
    if path == _WRITTEN and (misspelt := _misspelt(options, answer)):
        raise SpecError(misspelt)
    config = library_config(answer["config"])  # what is measured of a model is not the user's to say
    if kept is not None:
        keep(kept, config)
    return config


def _violation(given: Mapping[str, Any], path: str, error: str) -> Violation:
    """What transformers says; of a family that it does not know, the nearest ones in place of all."""
    _, is_unknown, families = error.partition(_BEFORE_FAMILIES)
    if not is_unknown:
        return Violation(path=path, value=_shown(given), allowed=_one_line(error))
    family = str(given.get("model_type"))
    near = get_close_matches(family, families.split(", "))
    allowed = f"did you mean {' or '.join(near)}?" if near else "a model_type that transformers knows, such as llama"
    return Violation(path=f"{path}.model_type", value=repr(family), allowed=allowed)


def _misspelt(given: Mapping[str, Any], answer: Mapping[str, Any]) -> list[Violation]:
    return [
        Violation(path=f"{_WRITTEN}.{key}", value=repr(given[key])[:200], allowed=f"did you mean {meant}?")
        for key, meant in misspelt_sizes(given, answer["names"], answer["config"])
    ]


def _digest(given: Mapping[str, Any], path: str) -> str:
    """Of what is asked; slips are looked for only in a ``path`` that is written by hand."""
    text = json.dumps([version("transformers"), path == _WRITTEN and _CHECK, given], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def keep(place: Path, config: Mapping[str, Any]) -> None:
    """Write what was found to ``place``, whole or not at all."""
    draft = place.with_suffix(f".{hashlib.sha256(str(id(config)).encode()).hexdigest()[:8]}")
    # It only saves time: where nothing may be written, transformers is asked again.
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(config), encoding="utf-8")
        draft.replace(place)


def _read_folder(folder: str) -> dict[str, Any]:
    import fsspec

    place = f"{folder.rstrip('/')}/{_CONFIG_FILE}"
    try:
        with fsspec.open(place, "rt", encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(f"it is longer than {_MOST_CHARACTERS} characters")
        document = json.loads(text)
    except (OSError, ValueError) as error:
        allowed = f"give a folder with a {_CONFIG_FILE} that can be read ({_one_line(error)})"
        raise SpecError([Violation(path="model.path", value=repr(folder), allowed=allowed)]) from error
    if not isinstance(document, dict) or "model_type" not in document:
        allowed = f"its {_CONFIG_FILE} must be an object that names its model_type"
        raise SpecError([Violation(path="model.path", value=repr(folder), allowed=allowed)])
    return document


def _from_hub(model: ModelSpec) -> dict[str, Any]:
    asked = {"hub_id": model.hub_id, "revision": model.revision or "main"}
    answer: dict[str, Any] = ask(_READER, asked)
    if "config" not in answer and answer.get("away"):
        detail = f"The hub cannot be reached ({answer['away']}), and the config of {model.hub_id!r} is not kept here."
        remedy = "Try again, or give model.path or model.config."
        raise TemporaryError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))
    if "config" not in answer:
        of = "" if model.revision is None else f" at model.revision {model.revision!r}"
        raise PermanentError(
            Reason(
                code=ReasonCode.BAD_CONFIG_OR_DATA,
                detail=f"model.hub_id {model.hub_id!r}{of} cannot be read: {_one_line(answer['error'])}",
                remedy="Check id, revision and that the hub can be reached, or give model.path or model.config.",
            )
        )
    return {**answer, "config": library_config(answer["config"])}


def _shown(given: Mapping[str, Any]) -> str:
    text = json.dumps(given, default=str)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
