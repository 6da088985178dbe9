"""Conversations as rows have them, in the form in which they pass through the preparation: a line of JSON.

The line has where the row stands, for whoever has to mend it, and the messages with their keys and roles mapped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from frenzy.core.values.job import DataSpec, MessagesSpec
from frenzy.trainer.outcome import BadInputError

_WHERE, _MESSAGES = "where", "messages"
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_CALLS: Final = "tool_calls"


def conversation_line(row: object, where: str, asked: MessagesSpec) -> str:
    """The messages in ``row``, a list of mappings, as a line. Raises BadInputError with ``where``."""
    if not isinstance(row, Sequence) or isinstance(row, str) or not row:
        raise _refused("data.messages.column", where, f"it holds {_kind(row)} there, not a list of messages")
    messages = [_message(each, where, asked) for each in row]
    said = [each for each in messages if each["role"] == "assistant"]
    if said and not any(each["content"] or each.get(_CALLS) for each in said):
        raise _refused("data.messages.content", where, f"its assistant says nothing in {asked.content!r}")
    try:
        line = json.dumps({_WHERE: where, _MESSAGES: messages}, ensure_ascii=False, default=str, allow_nan=False)
        line.encode()
    except (TypeError, ValueError) as error:
        if not isinstance(error, UnicodeEncodeError):
            raise _refused("data.messages.column", where, f"a message of it is no JSON ({error})") from error
        allowed = "its text has half of a character (a lone surrogate); mend or drop the row"
        raise _refused("data.path", where, allowed) from error
    return line


def parsed_line(line: str) -> tuple[str, list[dict[str, Any]]]:
    """Where the conversation stands, and its messages."""
    found = json.loads(line)
    return found[_WHERE], found[_MESSAGES]


def words_of(data: DataSpec, text: str) -> str:
    """What is said in a piece of ``data``: the text itself, or all messages of a conversation."""
    if data.messages is None or not text:
        return text
    return "\n".join(each["content"] for each in parsed_line(text)[1] if each["content"])


def _message(given: object, where: str, asked: MessagesSpec) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise _refused("data.messages.column", where, f"a message of it is {_kind(given)}, not a mapping")
    others = _without_nulls(given)
    role, content = others.pop(asked.role, None), others.pop(asked.content, None)
    if content is None and others.get(_CALLS):
        content = ""
    for field, key, value in (("role", asked.role, role), ("content", asked.content, content)):
        if not isinstance(value, str):
            keys = ", ".join(map(str, given))
            allowed = f"a message of it has {_kind(value)} as {key!r}, not text; its keys are {keys}"
            raise _refused(f"data.messages.{field}", where, allowed)
    known = asked.roles.get(role, role)
    if known not in (*_ROLES, *asked.roles.values()):
        allowed = f"a message of it has the role {role!r}; map it to one of {', '.join(_ROLES)}, or to itself"
        raise _refused("data.messages.roles", where, allowed)
    return {**others, "role": known, "content": content}


def _without_nulls(value: Any) -> Any:
    """Columns of mappings have every key that any row has; a template would write the empty ones."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(each) for each in value]
    return value


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _refused(field: str, where: str, allowed: str) -> BadInputError:
    return BadInputError(field, where, allowed)
