"""Keys of a written ``model.config`` that mean a size of the model and are not what its family calls it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

# Real configs hold many keys that their family does not know. One that differs by a letter is a slip.
_SLIP: Final = 0.9
_SIZE: Final = re.compile(
    r"(?!_).*(layers?|heads?|head_dim|hidden_size|intermediate_size|vocab_size|embd|experts|experts_per_tok)|d_model|d_ff"
)
# What families and other libraries call the same size, without underscores and plural (see ``_plain``).
_SAME: Final = tuple(
    frozenset(each.split())
    for each in (
        "numhiddenlayer numlayer nlayer layer numblock nblock",
        "numattentionhead numhead nhead attentionhead head",
        "numkeyvaluehead numkvhead nkvhead nheadkv kvhead keyvaluehead numquerygroup multiquerygroupnum",
        "hiddensize nembd nembed dmodel dim embeddim embdim modeldim",
        # files of Meta, Mistral and Gemma mean the MLP by hidden_dim
        "intermediatesize hiddendim intermediatedim ffndim dff ninner ffnhiddensize ffnsize ffndimension mlpdim "
        "mlphiddensize",
        "headdim headsize dhead dkv kvchannel attentionheaddim",
        "vocabsize vocabularysize nvocab numvocab paddedvocabsize",
        "numexpert numlocalexpert nexpert nroutedexpert moenumexpert",
        "numexpertspertok numexpertspertoken nexpertspertok expertspertoken numexpertpertok moetopk",
    )
)


def misspelt_sizes(
    given: Mapping[str, Any], names: Collection[str], complete: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Each such key of ``given`` and the field that was meant: one of ``names``, which the family knows, that is not
    given, each once. transformers would ignore the key; one of value None asks for nothing.

    complete: the config as it was understood. A key that its class reads under another name has its value there.
    Sizes alone, for they make another model. Other fields have many names that classes read and do not list, and
    tokens' ids are alike without being slips.
    """
    missing = [each for each in names if each not in given and _SIZE.fullmatch(each)]
    offered: set[str] = set()
    for key, value in given.items():
        if key in names or value is None:
            continue
        near = [each for each in get_close_matches(key, missing, n=1, cutoff=_SLIP) if each not in key]
        meant = near or _same_size(key, value, {*given, *offered}, names, complete)
        if meant and meant[0] not in offered:
            offered.add(meant[0])
            yield key, meant[0]


def _same_size(
    key: str, value: Any, given: Collection[str], names: Collection[str], complete: Mapping[str, Any]
) -> list[str]:
    """What the family calls the size; nothing where that is given, too, or has the value all the same."""
    group = _group(key)
    known = [each for each in names if _plain(each) in group]
    if any(each in given or complete.get(each) == value for each in known):
        return []
    if group == _group("head_dim") and _is_even_share(value, complete):
        return []
    return sorted(known, key=lambda each: each not in complete)


def _is_even_share(head_width: Any, complete: Mapping[str, Any]) -> bool:
    """Whether it is the hidden size over the heads: a class whose own field is None takes that."""
    hidden, heads = (
        next((complete[each] for each in complete if _plain(each) in _group(size)), None)
        for size in ("hidden_size", "num_attention_heads")
    )
    return all(isinstance(each, int) for each in (head_width, hidden, heads)) and head_width * heads == hidden


def _group(key: str) -> frozenset[str]:
    return next((each for each in _SAME if _plain(key) in each), frozenset())


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("s")
