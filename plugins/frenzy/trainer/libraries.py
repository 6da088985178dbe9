"""Imports the heavy libraries once, in the launcher, without starting a thread or a GPU context."""

from __future__ import annotations

import contextlib
import logging
import warnings

from frenzy.core.job import ModelSpec
from frenzy.trainer.model import load_config
from frenzy.trainer.outcome import BadInputError


def import_libraries(model: ModelSpec) -> None:
    """torch, DeepSpeed and the model's own code, so that every forked rank finds them loaded."""
    import deepspeed
    import functorch.compile  # noqa: F401  # DeepSpeed's engine imports it when it is made, in every rank
    import transformers
    from transformers import AutoModelForCausalLM

    for name in ("DeepSpeed", "deepspeed", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.WARNING)
    deepspeed.logger.setLevel(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    # DeepSpeed calls torch's collectives by their old names; nothing a user could do about it.
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*is deprecated", module=r"torch\.distributed")
    # A wrong config is reported by the preparation, with its sentence.
    with contextlib.suppress(BadInputError, KeyError):
        AutoModelForCausalLM._model_mapping[type(load_config(model))]
