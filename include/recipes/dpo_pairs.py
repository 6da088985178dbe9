"""Direct preference optimisation by TRL's DPOTrainer: what was chosen beside what was rejected.

The columns hold texts or lists of messages. Whole weights, with a second model as the reference, or adapters where the
job has ``training.lora``, with the model without them as the reference. Runs as a job of Frenzy
(include/jobs/recipes/dpo.yaml), or under torchrun:

    torchrun --nproc-per-node 2 include/recipes/dpo_pairs.py --model FOLDER --data preferences.jsonl
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import recipe_parts as recipe
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from trl import DPOConfig, DPOTrainer

import frenzy_agent

COLUMNS = ("prompt", "chosen", "rejected")


def parsed() -> argparse.Namespace:
    parser = recipe.command_line(__doc__)
    parser.add_argument("--beta", type=float, default=0.1, help="how dear it is to leave the reference")
    for name in COLUMNS:
        parser.add_argument(f"--{name}", default=name, help=f"the column of what is {name} in TRL's words")
    return parser.parse_args()


def is_chat(value: Any) -> bool:
    """Whether it is a list of messages."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def pairs_of(rows: Dataset, names: tuple[str, ...], tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """The three columns under TRL's names; every row is looked at before any training."""
    rows = rows.select_columns(list(names))
    for index, row in enumerate(rows):
        values = [row[name] for name in names]
        for name, value in zip(names, values, strict=True):
            if not is_chat(value) and not (isinstance(value, str) and value):
                recipe.refuse_row(index, f"{name} is neither a text nor a list of messages")
        if len({is_chat(each) for each in values}) > 1:
            recipe.refuse_row(index, f"{', '.join(names)} are not of one kind, all texts or all lists of messages")
        if is_chat(values[0]) and not tokenizer.chat_template:
            recipe.refuse_row(index, "the tokenizer has no chat template, so that no chat can be written")
        if values[1] == values[2]:
            recipe.refuse_row(index, f"{names[1]} and {names[2]} are the same, so that nothing is preferred")
    return rows.rename_columns({old: new for old, new in zip(names, COLUMNS, strict=True) if old != new})


def main() -> None:
    words = parsed()
    length = int(recipe.section("data").get("sequence_length", 256))
    names = tuple(getattr(words, each) for each in COLUMNS)
    tokenizer = recipe.tokenizer_of(words.model)
    rows = recipe.rows_of(words.data)
    recipe.need_columns(rows, *names)
    pairs = pairs_of(rows, names, tokenizer)
    model, lora = recipe.model_of(AutoModelForCausalLM, words.model, tokenizer), recipe.adapters("CAUSAL_LM")
    arguments = DPOConfig(**recipe.trainer_settings(), max_length=length, beta=words.beta)
    trainer = DPOTrainer(
        model=model,
        ref_model=copy.deepcopy(model) if lora is None else None,
        args=arguments,
        train_dataset=pairs,
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[frenzy_agent.FrenzyCallback()],
    )
    recipe.train(trainer)


if __name__ == "__main__":
    main()
