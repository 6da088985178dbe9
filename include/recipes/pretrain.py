"""Continued pre-training by transformers.Trainer on texts: a dataset that was saved to disk, parquet, JSON lines.

The texts are put one behind the other, each with its end, and cut into sequences. A job of Frenzy
(include/jobs/recipes/pretrain.yaml), or under torchrun:

    torchrun --nproc-per-node 2 include/recipes/pretrain.py --model FOLDER --data DATASET
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import recipe_parts as recipe
from datasets import Dataset
from peft import get_peft_model
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

import frenzy_agent


def sequences_of(rows: Dataset, tokenizer: PreTrainedTokenizerBase, column: str, length: int) -> Dataset:
    """Sequences of ``length`` tokens; what is left at the end of a thousand texts is dropped."""

    def tokens(texts: dict[str, list[Any]], indices: list[int]) -> dict[str, list[list[int]]]:
        for index, text in zip(indices, texts[column], strict=True):
            if not isinstance(text, str):
                recipe.refuse_row(index, f"{column}, a {type(text).__name__}, is no text")
        found = tokenizer(texts[column], add_special_tokens=False)["input_ids"]
        line = list(chain.from_iterable([*each, tokenizer.eos_token_id] for each in found))
        cut = [line[start : start + length] for start in range(0, len(line) - length + 1, length)]
        return {"input_ids": cut, "labels": cut}

    return rows.map(tokens, batched=True, with_indices=True, remove_columns=rows.column_names)


def main() -> None:
    words = recipe.command_line(__doc__).parse_args()
    length = int(recipe.section("data").get("sequence_length", 256))
    column = recipe.section("data").get("text_column", "text")
    tokenizer = recipe.tokenizer_of(words.model)
    rows = recipe.rows_of(words.data)
    recipe.need_columns(rows, column)
    arguments = TrainingArguments(**recipe.trainer_settings())
    with arguments.main_process_first():
        sequences = sequences_of(rows, tokenizer, column, length)
    if len(sequences) == 0:
        frenzy_agent.refuse(f"the data has fewer tokens than data.sequence_length = {length}")
    model, lora = recipe.model_of(AutoModelForCausalLM, words.model, tokenizer), recipe.adapters("CAUSAL_LM")
    trainer = Trainer(
        model=model if lora is None else get_peft_model(model, lora),
        args=arguments,
        train_dataset=sequences,
        processing_class=tokenizer,
        data_collator=default_data_collator,
        callbacks=[frenzy_agent.FrenzyCallback()],
    )
    recipe.train(trainer)


if __name__ == "__main__":
    main()
