"""Continued pre-training by transformers.Trainer on texts: a dataset that was saved to disk, parquet, JSON lines.

The texts are put one behind the other, each with its end, and cut into sequences. A job of Frenzy
(include/jobs/recipes/pretrain.yaml), or under torchrun:

    torchrun --nproc-per-node 2 include/recipes/pretrain.py --model FOLDER --data DATASET
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from datasets import Dataset
from peft import get_peft_model
from recipe_parts import (
    adapters,
    command_line,
    model_of,
    need_columns,
    refuse_row,
    rows_of,
    section,
    setting,
    tokenizer_of,
    trainer_settings,
)
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
                refuse_row(index, f"{column} = {text!r} is no text")
        found = tokenizer(texts[column], add_special_tokens=False)["input_ids"]
        line = list(chain.from_iterable([*each, tokenizer.eos_token_id] for each in found))
        cut = [line[start : start + length] for start in range(0, len(line) - length + 1, length)]
        return {"input_ids": cut, "labels": cut}

    return rows.map(tokens, batched=True, with_indices=True, remove_columns=rows.column_names)


def main() -> None:
    words = command_line(__doc__).parse_args()
    length = int(section("data").get("sequence_length", 256))
    column = section("data").get("text_column", "text")
    tokenizer = tokenizer_of(words.model)
    rows = rows_of(words.data)
    need_columns(rows, column)
    arguments = TrainingArguments(**trainer_settings())
    with arguments.main_process_first():
        sequences = sequences_of(rows, tokenizer, column, length)
    if len(sequences) == 0:
        frenzy_agent.refuse(f"the data has fewer tokens than data.sequence_length = {length}")
    model, lora = model_of(AutoModelForCausalLM, words.model, tokenizer), adapters("CAUSAL_LM")
    trainer = Trainer(
        model=model if lora is None else get_peft_model(model, lora),
        args=arguments,
        train_dataset=sequences,
        processing_class=tokenizer,
        data_collator=default_data_collator,
        callbacks=[frenzy_agent.FrenzyCallback()],
    )
    trainer.train(resume_from_checkpoint=frenzy_agent.resume_from())
    if trainer.state.global_step == arguments.max_steps:
        trainer.save_model(setting("MODEL_DIR", "build/recipe/model"))


if __name__ == "__main__":
    main()
