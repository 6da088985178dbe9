"""Tokenizers: bytes, a byte-level BPE trained on the run's data, or one that exists already.

The chosen one is saved in the run directory by the first attempt; every later attempt and the
exported model use that copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from frenzy.core.values.job import BYTE_TOKENS, ModelSpec
from frenzy.trainer.outcome import BadInputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT: Final = "<|endoftext|>"
READY_FILE: Final = "tokenizer_config.json"
_MAX_TRAINING_CHARACTERS: Final = 200_000_000
_PIECE_CHARACTERS: Final = 100_000


def byte_tokenizer() -> Any:
    """Token i is byte i; token 256 ends a text."""
    from tokenizers import Tokenizer, models
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    stand_in = bytes_to_unicode()
    core = Tokenizer(models.BPE(vocab={stand_in[byte]: byte for byte in range(256)}, merges=[]))
    return _finish(core, use_regex=False)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Any:
    """A byte-level BPE of at most ``vocab_size`` tokens learnt from ``texts``."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_pieces(texts), trainer=trainer)
    return _finish(core, use_regex=True)


def load_tokenizer(folder: str | Path, revision: str | None = None) -> Any:
    """The tokenizer in ``folder`` (or of a hub id, at ``revision``). Raises BadInputError when there is none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), revision=revision or "main", trust_remote_code=False)
    except Exception as error:
        allowed = f"it must be a folder or hub id with a tokenizer, or byte or train ({type(error).__name__})"
        raise BadInputError("model.tokenizer", str(folder), allowed) from error
    if tokenizer.eos_token_id is None:
        raise BadInputError("model.tokenizer", str(folder), "its tokenizer must define an end-of-text (eos) token")
    return tokenizer


def make_tokenizer(model: ModelSpec, texts: Iterable[str]) -> Any:
    """The tokenizer ``model`` asks for; ``texts`` are read only when one is to be trained."""
    if model.tokenizer_used == "byte":
        return byte_tokenizer()
    if model.tokenizer_used == "train":
        return train_tokenizer(texts, vocab_size=model.tokenizer_vocab_size)
    if model.tokenizer_used != "model":
        return load_tokenizer(model.tokenizer_used)
    source = model.path or model.hub_id
    if source is None:
        allowed = "'model' needs model.path or model.hub_id; with model.config use byte, train or a folder"
        raise BadInputError("model.tokenizer", "model", allowed)
    return load_tokenizer(source, model.revision)


def is_byte_tokenizer(tokenizer: Any) -> bool:
    """Whether token ids are simply the bytes of the text (then encoding needs no library)."""
    return len(tokenizer) == BYTE_TOKENS and tokenizer.eos_token_id == 256


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """``texts`` cut to pieces the trainer can hold, up to the limit of what it needs to see."""
    seen = 0
    for text in texts:
        for start in range(0, len(text), _PIECE_CHARACTERS):
            yield text[start : start + _PIECE_CHARACTERS]
        seen += len(text)
        if seen > _MAX_TRAINING_CHARACTERS:
            return


def _finish(core: Tokenizer, *, use_regex: bool) -> Any:
    from tokenizers import decoders, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([END_OF_TEXT])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END_OF_TEXT, bos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )
