"""Conversations to tokens by a chat template, with marks: which tokens are learnt, and where a conversation begins.

A template says with ``{% generation %}`` what the assistant gives. A token counts where it overlaps that; without
the marks nothing tells an answer from a question, so the row is refused. Marks are the two highest bits of an id.
"""

from __future__ import annotations

import re
import threading
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from frenzy.core.values.job import GENERATION_MARK, DataSpec
from frenzy.trainer.data.conversations import parsed_line
from frenzy.trainer.data.documents import MOST_CHARACTERS
from frenzy.trainer.data.encoding import Encoder, TextBatch
from frenzy.trainer.data.source_parts import digest_of
from frenzy.trainer.outcome import BadInputError, one_line

COUNTED: Final = 1 << 31
START: Final = 1 << 30
_IDS: Final = START - 1
_FIELD: Final = "data.messages.template"
_IN_SET_BLOCK: Final = re.compile(r"\{%-?\s*set\s+\w+\s*-?%\}(?:(?!endset).)*" + GENERATION_MARK, re.DOTALL)


class MarkedTokens(NamedTuple):
    """tokens: int64; counted, starts: of the same shape, None where ids carry no marks."""

    tokens: NDArray[np.int64]
    counted: NDArray[np.bool_] | None
    starts: NDArray[np.bool_] | None


def unmarked(ids: NDArray[Any], *, is_marked: bool) -> MarkedTokens:
    """``ids`` as they were stored, without their marks."""
    if not is_marked:
        return MarkedTokens(ids.astype(np.int64), None, None)
    return MarkedTokens((ids & _IDS).astype(np.int64), (ids & COUNTED) != 0, (ids & START) != 0)


def encoder_of(data: DataSpec, tokenizer: Any) -> Encoder:
    """What makes the tokens of ``data``."""
    return Encoder(tokenizer) if data.messages is None else ConversationEncoder(tokenizer)


class ConversationEncoder(Encoder):
    """A tokenizer with its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.dtype = np.dtype("<u4")
        given = tokenizer.chat_template or ""
        # some tokenizers have several by name
        self._template: str = given if isinstance(given, str) else given.get("default", "")
        self._rendering = threading.Lock()  # a compiled template notes its marks in one place for all callers

    @property
    def digest(self) -> str:
        return digest_of(f"{super().digest} {self._template}")

    def _tokens(self, batch: TextBatch) -> list[NDArray[Any]]:
        """The marked tokens of the conversations. Raises BadInputError for one in which no answer is found."""
        lines = [parsed_line(text) for text, _ in batch.texts]
        texts, spans = [], []
        for where, messages in lines:
            text, answers = self._rendered(where, messages)
            texts.append(text)
            spans.append(answers)
        found = [] if self._rust is None else self._rust.encode_batch(texts, add_special_tokens=False)
        return [
            self._marked(each, answers, where) for each, answers, (where, _) in zip(found, spans, lines, strict=True)
        ]

    def _rendered(self, where: str, messages: list[dict[str, Any]]) -> tuple[str, list[tuple[int, int]]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        self._check(where)
        special = self._tokenizer.special_tokens_map
        try:
            with self._rendering:
                found: Any = render_jinja_template(
                    [messages], chat_template=self._template, return_assistant_tokens_mask=True, **special
                )
        except Exception as error:  # a template raises what it likes
            raise BadInputError(_FIELD, where, f"it cannot be applied there ({one_line(error)})") from error
        (text,), (answers,) = found
        if len(text) > MOST_CHARACTERS:
            raise BadInputError(_FIELD, where, f"it writes more than {MOST_CHARACTERS // 1_000_000} million characters")
        return text, answers

    def _check(self, where: str) -> None:
        if not self._template:
            allowed = "the tokenizer has no chat template; give one, with {% generation %} around the answers"
        elif not re.search(GENERATION_MARK, self._template):
            allowed = "the chat template has no {% generation %} around the answers, so none can be told; give one"
        elif re.search(_IN_SET_BLOCK, self._template):
            allowed = "{% generation %} stands within a {% set %} block, where its place is not known; write it outside"
        elif self._rust is None:
            allowed = "the tokenizer is a slow one, which does not say where a token stands; save it as a fast one"
        else:
            return
        raise BadInputError(_FIELD, where, allowed)

    def _marked(self, encoding: Any, answers: list[tuple[int, int]], where: str) -> NDArray[Any]:
        ids = np.array(encoding.ids, dtype=self.dtype)
        begins, ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
        counted = np.zeros(ids.shape, dtype=np.bool_)
        for start, stop in answers:
            counted |= (begins < stop) & (ends > start)
        if not counted.any():
            allowed = "the template marks no answer in it: it needs a message of the assistant's; mend or drop the row"
            raise BadInputError("data.messages", where, allowed)
        ids[counted] |= COUNTED
        ids[0] |= START
        return ids
