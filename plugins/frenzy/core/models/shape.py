"""From a Hugging Face config to a ``ModelShape``, one function for each supported family.

Each reader lists the parameters its family's module registers; a test holds every count equal to
the real model's. The config must be complete: this module knows no defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from frenzy.core.models import gpt_families, llama_families
from frenzy.core.models.family_fields import Config
from frenzy.core.models.module_tree import MODULE_TREE, TREE_PROBLEM, shape_of_tree
from frenzy.core.models.parameters import ModelShape, checked_shape
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode

__all__ = ["SUPPORTED_FAMILIES", "ModelShape", "model_shape"]

_READERS: Final[Mapping[str, Callable[[Config], ModelShape]]] = {
    "gpt2": gpt_families.gpt2,
    "gpt_bigcode": gpt_families.gpt_bigcode,
    "gpt_neox": gpt_families.gpt_neox,
    "opt": gpt_families.opt,
    "mpt": gpt_families.mpt,
    "llama": llama_families.llama,
    "mistral": llama_families.mistral,
    "granite": llama_families.llama,
    "qwen2": llama_families.qwen2,
    "qwen3": llama_families.qwen3,
    "gemma": llama_families.gemma,
    "gemma2": llama_families.gemma2,
    "gemma3_text": llama_families.gemma3_text,
    "phi": gpt_families.phi,
    "phi3": llama_families.phi3,
    "mixtral": llama_families.mixtral,
    "qwen3_moe": llama_families.qwen3_moe,
    "bert": gpt_families.bert,
    "roberta": gpt_families.roberta,
}
SUPPORTED_FAMILIES: Final = tuple(_READERS)


def model_shape(config: Config) -> ModelShape:
    """The shape of the model a full Hugging Face ``config`` describes.

    A family without a reader is read from its parameters, where the config lists them.
    Raises PermanentError (MODEL_NOT_SUPPORTED) for an unknown family or an unreadable field.
    """
    family = config.get("model_type")
    reader = _READERS.get(str(family))
    if reader is None:
        return _unknown(config)
    try:
        return checked_shape(reader(config))
    except KeyError as error:
        raise _refused(f"The {family} config has no field {error.args[0]!r}.", "Give the complete config.") from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise _refused(f"The {family} config cannot be read: {error}.", "Correct the field.") from error


def _unknown(config: Config) -> ModelShape:
    """By the module's own parameters, or an honest refusal."""
    family = config.get("model_type")
    if MODULE_TREE not in config:
        problem = f", and its class makes no model here: {config[TREE_PROBLEM]}" if TREE_PROBLEM in config else ""
        raise _refused(
            f"model_type {family!r} is not a family the memory model knows{problem}.",
            f"Use one of the families {', '.join(SUPPORTED_FAMILIES)}.",
        )
    try:
        return checked_shape(shape_of_tree(config))
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise _refused(
            f"model_type {family!r} is not a family the memory model knows, and its parameters are not embeddings, "
            f"equal layers and a head: {error}.",
            "See what it needs with `frenzy marp trace`, or use a covered family.",
        ) from error


def _refused(detail: str, remedy: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.MODEL_NOT_SUPPORTED, detail=detail, remedy=remedy))
