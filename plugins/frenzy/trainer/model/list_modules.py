"""Lists a model's parameters without making them: ``python -m frenzy.trainer.model.list_modules`` < question.

The question is JSON, the config's fields; the answer
``{"module_tree": [[name, dimensions, is a linear map's weight], ...]}`` or ``{"error": why}``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from frenzy.trainer.model.library_configs import config_of


def module_tree(config: Any) -> list[tuple[str, list[int], bool]]:
    """The parameters of the causal language model of a Hugging Face ``config``, in registration order."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False, attn_implementation="eager")
    linear = {id(each.weight) for each in model.modules() if isinstance(each, torch.nn.Linear)}
    tables = {id(each.weight) for each in model.modules() if isinstance(each, torch.nn.Embedding)}
    return [
        (name, list(each.shape), id(each) in linear and id(each) not in tables)
        for name, each in model.named_parameters()
    ]


def main() -> int:
    """Answer the question on standard input."""
    try:
        answer: dict[str, Any] = {"module_tree": module_tree(config_of(json.load(sys.stdin)))}
    except Exception as error:  # a config can be wrong in as many ways as there are families
        answer = {"error": " ".join(str(error).split())[:300] or type(error).__name__}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
