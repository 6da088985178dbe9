"""Sequence classification by transformers.Trainer: a text, and to which class it belongs.

Labels are texts or whole numbers; the classes are those that occur. The last rows, ``data.validation_fraction`` of all,
are held out, and the accuracy on them is printed at the end. A job of Frenzy (include/jobs/recipes/classify.yaml), or
under torchrun:

    torchrun --nproc-per-node 2 include/recipes/classify.py --model FOLDER --data speakers.jsonl --label speaker
"""

from __future__ import annotations

import argparse
from typing import Any

import recipe_parts as recipe
from datasets import Dataset
from peft import get_peft_model
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)

import frenzy_agent


def parsed() -> argparse.Namespace:
    parser = recipe.command_line(__doc__)
    parser.add_argument("--label", default="label", help="the column of the class; the text's is data.text_column")
    return parser.parse_args()


def classes_of(rows: Dataset, column: str, text: str) -> list[str]:
    """The classes in order; every row is looked at before any training."""
    for index, row in enumerate(rows):
        if isinstance(row[column], bool) or not isinstance(row[column], str | int) or row[column] == "":
            recipe.refuse_row(index, f"{column}, a {type(row[column]).__name__}, is neither a text nor a whole number")
        if not isinstance(row[text], str) or not row[text]:
            recipe.refuse_row(index, f"{text} has no text")
    # whole numbers as numbers: 10 comes after 9
    values = sorted(set(rows[column]), key=lambda each: (isinstance(each, str), each))
    found = list(dict.fromkeys(map(str, values)))
    if len(found) < 2:
        recipe.refuse_row(0, f"{column} is {found[0]!r} in every row, so that nothing can be told apart")
    return found


def tokens_of(rows: Dataset, tokenizer: PreTrainedTokenizerBase, text: str, column: str, classes: list[str]) -> Dataset:
    numbers = {name: number for number, name in enumerate(classes)}
    length = int(recipe.section("data").get("sequence_length", 256))

    def one(row: dict[str, Any]) -> dict[str, Any]:
        found = tokenizer(row[text], truncation=True, max_length=length)
        return {"input_ids": found["input_ids"], "labels": numbers[str(row[column])]}

    return rows.map(one, remove_columns=rows.column_names)


def accuracy(predicted: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def main() -> None:
    words = parsed()
    text = recipe.section("data").get("text_column", "text")
    tokenizer = recipe.tokenizer_of(words.model)
    rows = recipe.rows_of(words.data)
    recipe.need_columns(rows, text, words.label)
    classes = classes_of(rows, words.label, text)
    names = dict(enumerate(classes))
    labels = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    model = recipe.model_of(AutoModelForSequenceClassification, words.model, tokenizer, **labels)
    lora = recipe.adapters("SEQ_CLS")
    arguments = TrainingArguments(**recipe.trainer_settings())
    with arguments.main_process_first():
        tokens = tokens_of(rows, tokenizer, text, words.label, classes)
    num_held_out = int(len(tokens) * recipe.section("data").get("validation_fraction", 0.02))
    trainer = Trainer(
        model=model if lora is None else get_peft_model(model, lora),
        args=arguments,
        train_dataset=tokens.select(range(len(tokens) - num_held_out)),
        eval_dataset=tokens.select(range(len(tokens) - num_held_out, len(tokens))) if num_held_out else None,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
        callbacks=[frenzy_agent.FrenzyCallback()],
    )
    if recipe.train(trainer) and num_held_out:
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
