"""Imports the heavy libraries once, in the launcher, without starting a thread or a GPU context."""

from __future__ import annotations

import contextlib
import logging
import warnings

from frenzy.core.values.job import ModelSpec, TrainingSpec
from frenzy.trainer import env
from frenzy.trainer.model.loading import load_config
from frenzy.trainer.outcome import BadInputError


def import_libraries(model: ModelSpec, training: TrainingSpec | None = None) -> None:
    """torch, DeepSpeed, the model's own code and the options' libraries, for every forked rank to find loaded."""
    with env.importing_libraries():
        _import(model, training)


def _import(model: ModelSpec, training: TrainingSpec | None) -> None:
    import deepspeed
    import transformers
    from transformers import AutoModelForCausalLM

    with env.without_compiler():
        # DeepSpeed's engine imports it when it is made, in every rank, which is to have no use for it.
        import deepspeed.runtime.zero.muon.muon_optimizer
    for name in ("DeepSpeed", "deepspeed", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.WARNING)
    deepspeed.logger.setLevel(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    # DeepSpeed calls torch's collectives by their old names; nothing a user could do about it.
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*is deprecated", module=r"torch\.distributed")
    if training is not None:
        _import_options(training)
    # A wrong config is reported by the preparation, with its sentence.
    with contextlib.suppress(BadInputError, KeyError):
        AutoModelForCausalLM._model_mapping[type(load_config(model))]


def _import_options(training: TrainingSpec) -> None:
    import torch

    if training.compile:
        import functorch.compile  # noqa: F401
    if torch.cuda.is_available():
        # bitsandbytes starts CUDA when it is imported, which each rank must do after the fork.
        return
    if training.lora is not None or training.optimizer == "adamw-8bit":
        # On a CPU it looks for optional kernels and says that it did not find them.
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
        import bitsandbytes  # noqa: F401  # the adapters' library imports it, too
    if training.lora is not None:
        import peft  # noqa: F401
